# mypy: disable-error-code="no-untyped-call"
"""The approximate prefix tree of SGLang's gateway: which prefix was sent where, and when last. On the workload's trie
without namespaces (the gateway sees text), so that a node is an element and a prefix a path."""

from __future__ import annotations

import numpy as np

from prefixsim.errors import DoesNotFitError
from prefixsim.fleet.approx_tree_kernels import enter, longest_match
from prefixsim.workload.intern import Trie
from prefixsim.workload.table import I64

MAX_CELLS = 1 << 30


class ApproxTree:
    """sent int32 (replicas, E): number of the latest sending of an element to a replica, 0 never or trimmed. last int32
    (E,): the replica among these with the latest, -1 none. size_tokens int64 (replicas,): tokens in each one's tree."""

    def __init__(self, trie: Trie, prompt_tokens: I64, n_replicas: int) -> None:
        if trie.n_elements * n_replicas > MAX_CELLS:
            raise DoesNotFitError(
                f"router cache_aware: {n_replicas} replicas times {trie.n_elements:,} pieces of text is more than it can "
                f"remember ({MAX_CELLS:,}); use fewer replicas or a coarser trace"
            )
        self.trie, self.prompt_tokens = trie, prompt_tokens
        self.sent = np.zeros((n_replicas, trie.n_elements), dtype=np.int32)
        self.last = np.full(trie.n_elements, -1, dtype=np.int32)
        self.size_tokens = np.zeros(n_replicas, dtype=np.int64)
        self.count = 0

    def match(self, request: int) -> tuple[int, int]:
        """(tokens of the longest prefix of the prompt in any tree, the replica its deepest part was last sent to or -1)."""
        t = self.trie
        prompt = self.prompt_tokens[request]
        tokens, replica = longest_match(t.run_offset, t.run_start, t.run_end, t.element_end, self.last, request, prompt)
        return int(tokens), int(replica)

    def enter(self, request: int, replica: int) -> None:
        """The prompt was sent to a replica."""
        t = self.trie
        self.count += 1
        self.size_tokens[replica] += enter(
            t.run_offset, t.run_start, t.run_end, t.element_end, t.element_tokens,
            self.sent, self.last, request, self.prompt_tokens[request], replica, self.count,
        )  # fmt: skip

    def trim(self, limit_tokens: int) -> None:
        """Cuts each replica's tree to `limit_tokens`: least recently sent first, deeper first among equals, so that leaves
        go before their parents."""
        for replica in np.flatnonzero(self.size_tokens > limit_tokens):
            mine = self.sent[replica]
            held = np.flatnonzero(mine)
            order = held[np.lexsort((-self.trie.element_end[held], mine[held]))]
            gone_tokens = np.cumsum(self.trie.element_tokens[order], dtype=np.int64)
            n = int(np.searchsorted(gone_tokens, self.size_tokens[replica] - limit_tokens, side="left")) + 1
            gone = order[:n]
            mine[gone] = 0
            self.size_tokens[replica] -= int(gone_tokens[n - 1])
            latest = self.sent[:, gone].max(axis=0)
            self.last[gone] = np.where(latest > 0, self.sent[:, gone].argmax(axis=0), -1)
