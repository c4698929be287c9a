"""Precise routing on cache events that arrive late."""

from __future__ import annotations

from typing import Any

from prefixsim.fleet.routers.base import Router, RouterContext, View, least
from prefixsim.units import seconds_to_ns


class KvEvents(Router):
    """The router's view of each cache is exact, but `lag_s` old; its view of the load is its own and current.

    Cost of a replica: overlap_weight x (prompt tokens it was seen not to hold) + KV tokens in use; least cost wins, then
    fewest requests, then the lowest number. A request whose arrival becomes known less than the lag ahead (a turn after
    a short pause) is matched on the caches as they were when it became known.
    """

    kind = "kv_events"
    looks_at_state = True

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        self.lag_ns = seconds_to_ns(options.lag_s)
        self.seen: dict[int, list[int]] = {}

    def observe(self, request: int, view: View) -> None:
        """What events sent until now say about each replica."""
        self.seen[request] = [view.match_tokens(i, request) for i in range(self.context.n_replicas)]

    def route(self, request: int, view: View) -> int:
        """The replica with the least cost."""
        n = self.context.n_replicas
        if self.lag_ns == 0:
            self.observe(request, view)
        seen = self.seen.pop(request)
        prompt = int(self.context.workload.prompt_tokens[request])
        weight = self.options.overlap_weight
        costs = [weight * (prompt - seen[i]) + view.kv_tokens(i) for i in range(n)]
        best = min(costs)
        return least([float(load) for load in view.loads()], [i for i in range(n) if costs[i] == best])

    def notes(self) -> tuple[str, ...]:
        """Says what is modelled."""
        return (f"router kv_events: modelled; exact views {self.options.lag_s:g} s old",)


ROUTER = KvEvents
