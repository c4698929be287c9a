"""SGLang gateway's `cache_aware`, on the tokens of the workload instead of text."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.fleet.routers.base import Router, RouterContext, View, least
from prefixsim.units import seconds_to_ns


class CacheAware(Router):
    """One approximate prefix tree of what was sent to which replica; replicas are never asked what they hold.

    Load = unfinished requests. If max - min > balance_abs_threshold and max > balance_rel_threshold * min: the least
    loaded. Else, if the longest match is more than cache_threshold of the prompt: the replica it was last sent to; else
    the least loaded. The prompt is then entered for the chosen replica. Every eviction_interval_s each replica's part of
    the tree is trimmed to max_tree_size characters, least recently sent first.

    The tree is the workload's trie (namespaces ignored: the gateway sees text): `sent[i, e]` is the number of the last
    request that sent element e to replica i, 0 for never or trimmed.
    """

    kind = "cache_aware"
    looks_at_state = True

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        self.trie = context.trie()
        self.sent = np.zeros((context.n_replicas, self.trie.n_elements), dtype=np.int32)
        self.last = np.full(self.trie.n_elements, -1, dtype=np.int32)  # replica of the latest sending, -1: in no tree
        self.size_tokens = np.zeros(context.n_replicas, dtype=np.int64)
        self.count = 0
        self.interval_ns = seconds_to_ns(options.eviction_interval_s)
        self.next_trim_ns = self.interval_ns
        self.limit_tokens = int(options.max_tree_size / options.chars_per_token)

    def route(self, request: int, view: View) -> int:
        """Chooses, and remembers the choice."""
        if view.now_ns >= self.next_trim_ns:
            self._trim_all()
            self.next_trim_ns = view.now_ns - view.now_ns % self.interval_ns + self.interval_ns
        loads = [view.outstanding(i) for i in range(self.context.n_replicas)]
        spread, low = max(loads) - min(loads), min(loads)
        unbalanced = (
            spread > self.options.balance_abs_threshold and max(loads) > self.options.balance_rel_threshold * low
        )
        spans = self._prompt_spans(request)
        chosen = least([float(load) for load in loads])
        if not unbalanced:
            matched, replica = self._match(spans)
            prompt = int(self.context.workload.prompt_tokens[request])
            if replica >= 0 and matched > self.options.cache_threshold * prompt:
                chosen = replica
        self._enter(spans, chosen)
        return chosen

    def _prompt_spans(self, request: int) -> list[tuple[int, int]]:
        """The prompt's elements as [start, end) ranges of consecutive ids."""
        trie = self.trie
        first, last = int(trie.run_offset[request]), int(trie.run_offset[request + 1])
        prompt = int(self.context.workload.prompt_tokens[request])
        spans, before = [], 0
        for j in range(first, last):
            start, upto = int(trie.run_start[j]), int(trie.run_end[j])
            end = start + upto - before
            before = upto
            if int(trie.element_end[end - 1]) > prompt:
                end = start + int(np.searchsorted(trie.element_end[start:end], prompt, side="right"))
                if end > start:
                    spans.append((start, end))
                break
            spans.append((start, end))
        return spans

    def _match(self, spans: list[tuple[int, int]]) -> tuple[int, int]:
        """(tokens of the longest prefix in any replica's tree, the replica its deepest element was last sent to)."""
        deepest = -1
        for start, end in spans:
            known = self.last[start:end] >= 0
            if known.all():
                deepest = end - 1
                continue
            n = int(np.argmin(known))
            deepest = start + n - 1 if n else deepest
            break
        if deepest < 0:
            return 0, -1
        return int(self.trie.element_end[deepest]), int(self.last[deepest])

    def _enter(self, spans: list[tuple[int, int]], replica: int) -> None:
        self.count += 1
        mine = self.sent[replica]
        for start, end in spans:
            new = mine[start:end] == 0
            self.size_tokens[replica] += int(self.trie.element_tokens[start:end][new].sum(dtype=np.int64))
            mine[start:end] = self.count
            self.last[start:end] = replica

    def _trim_all(self) -> None:
        """Least recently sent first, deeper first among equals: leaves go before their parents."""
        for replica in np.flatnonzero(self.size_tokens > self.limit_tokens):
            mine = self.sent[replica]
            held = np.flatnonzero(mine)
            order = held[np.lexsort((-self.trie.element_end[held], mine[held]))]
            gone_tokens = np.cumsum(self.trie.element_tokens[order], dtype=np.int64)
            excess = self.size_tokens[replica] - self.limit_tokens
            n = int(np.searchsorted(gone_tokens, excess, side="left")) + 1
            gone = order[:n]
            mine[gone] = 0
            self.size_tokens[replica] -= int(gone_tokens[n - 1])
            latest = self.sent[:, gone].max(axis=0)
            self.last[gone] = np.where(latest > 0, self.sent[:, gone].argmax(axis=0), -1)

    def notes(self) -> tuple[str, ...]:
        """Says what is modelled."""
        return (
            "router cache_aware: SGLang gateway's rule on tokens instead of characters; a prefix held by several trees "
            "counts for the replica it was last sent to",
        )


ROUTER = CacheAware
