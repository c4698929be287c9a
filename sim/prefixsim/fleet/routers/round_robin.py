"""Replicas in turn, in order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.fleet.routers.base import Router, RouterContext, View
from prefixsim.records import I64


class RoundRobin(Router):
    """Request number k to arrive goes to replica k mod n."""

    kind = "round_robin"

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        self.next = 0

    def route(self, request: int, view: View) -> int:
        """The next replica."""
        chosen = self.next % self.context.n_replicas
        self.next += 1
        return chosen

    def route_all(self, requests: I64) -> I64:
        """All at once."""
        chosen = (self.next + np.arange(len(requests), dtype=np.int64)) % self.context.n_replicas
        self.next += len(requests)
        return chosen


ROUTER = RoundRobin
