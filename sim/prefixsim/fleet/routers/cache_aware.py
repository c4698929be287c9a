"""SGLang gateway's `cache_aware`, on the tokens of the workload instead of text."""

from __future__ import annotations

from typing import Any

from prefixsim.fleet.approx_tree import ApproxTree
from prefixsim.fleet.routers.base import Router, RouterContext, View
from prefixsim.units import seconds_to_ns


class CacheAware(Router):
    """One approximate prefix tree of what was sent to which replica; replicas are never asked what they hold.

    Load = unfinished requests. If max - min > balance_abs_threshold and max > balance_rel_threshold * min: the least
    loaded. Else, if the longest match is more than cache_threshold of the prompt: the replica it was last sent to; else
    the least loaded. The prompt is then entered for the chosen replica. Every eviction_interval_s each replica's part of
    the tree is trimmed to max_tree_size characters, least recently sent first.
    """

    kind = "cache_aware"
    looks_at_state = True

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        self.tree = ApproxTree(context.trie(), context.workload.prompt_tokens, context.n_replicas)
        self.interval_ns = seconds_to_ns(options.eviction_interval_s)
        self.next_trim_ns = self.interval_ns
        self.limit_tokens = int(options.max_tree_size / options.chars_per_token)

    def route(self, request: int, view: View) -> int:
        """Chooses, and remembers the choice."""
        now, o = view.now_ns, self.options
        if now >= self.next_trim_ns:
            self.trim(now)
        loads = view.loads()
        high, low = max(loads), min(loads)
        chosen = loads.index(low)
        if high - low <= o.balance_abs_threshold or high <= o.balance_rel_threshold * low:
            matched, replica = self.tree.match(request)
            if replica >= 0 and matched > o.cache_threshold * int(self.context.workload.prompt_tokens[request]):
                chosen = replica
        self.tree.enter(request, chosen)
        return chosen

    def trim(self, now_ns: int) -> None:
        """The cut that is due at an arrival."""
        self.tree.trim(self.limit_tokens)
        self.next_trim_ns = now_ns - now_ns % self.interval_ns + self.interval_ns

    def notes(self) -> tuple[str, ...]:
        """Says what is modelled."""
        return (
            "router cache_aware: SGLang gateway's rule on tokens instead of characters; a prefix held by several trees "
            "counts for the replica it was last sent to",
        )


ROUTER = CacheAware
