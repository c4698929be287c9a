"""A replica drawn uniformly for each request."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.fleet.routers.base import Router, RouterContext, View


class RandomRouter(Router):
    """Draws are made once, by request: a request's replica does not depend on when it arrives."""

    kind = "random"

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        draws = context.rng(self.kind).integers(0, context.n_replicas, size=context.workload.n)
        self.chosen = draws.astype(np.int64)

    def route(self, request: int, view: View) -> int:
        """The request's draw."""
        return int(self.chosen[request])


ROUTER = RandomRouter
