"""A router that sees every cache as it is."""

from __future__ import annotations

from prefixsim.fleet.routers.base import Router, View


class Oracle(Router):
    """The longest prefix held at this instant; the least loaded among equals, then the lowest number. Greedy."""

    kind = "oracle"
    looks_at_state = True

    def route(self, request: int, view: View) -> int:
        """The replica with the longest match."""
        loads = view.loads()
        return min(range(len(loads)), key=lambda i: (-view.match_tokens(i, request), loads[i], i))

    def notes(self) -> tuple[str, ...]:
        """Says what it is not."""
        return ("router oracle: greedy on perfect knowledge of the caches; the bound is the pooled ceiling",)


ROUTER = Oracle
