"""The replica with the least unfinished work."""

from __future__ import annotations

from typing import Any

from prefixsim.fleet.routers.base import Router, View, least


class LeastLoaded(Router):
    """Least by requests or KV tokens in use; the lowest number among equals."""

    kind = "least_loaded"
    looks_at_state = True

    def route(self, request: int, view: View) -> int:
        """The least loaded replica."""
        if self.options.measure == "requests":
            loads = view.loads()
            return loads.index(min(loads))
        return least([load_of(self.options, view, i) for i in range(self.context.n_replicas)])


def load_of(options: Any, view: View, replica: int) -> float:
    """A replica's load by the measure asked for; requests decide between equal KV use."""
    requests = view.outstanding(replica)
    if options.measure == "requests":
        return requests
    return view.kv_tokens(replica) + min(requests, 1_000_000) * 1e-6


ROUTER = LeastLoaded
