"""Power of two choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.fleet.routers.base import Router, RouterContext, View
from prefixsim.fleet.routers.least_loaded import load_of


class PowerOfTwo(Router):
    """Two different replicas drawn for each request, the less loaded one taken; the first drawn among equals."""

    kind = "power_of_two"
    looks_at_state = True

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        n, rng = context.n_replicas, context.rng(self.kind)
        self.first = rng.integers(0, n, size=context.workload.n)
        other = rng.integers(0, max(n - 1, 1), size=context.workload.n)
        self.second = np.where(other >= self.first, np.minimum(other + 1, n - 1), other)

    def route(self, request: int, view: View) -> int:
        """The less loaded of the request's two draws."""
        a, b = int(self.first[request]), int(self.second[request])
        if a == b:
            return a
        return b if load_of(self.options, view, b) < load_of(self.options, view, a) else a


ROUTER = PowerOfTwo
