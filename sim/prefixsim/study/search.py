"""Bisection on one number, in rounds: every round hands out all the evaluations that can run side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class RateSearch:
    """The largest rate that passes, on a logarithmic scale, between `low` and `high`, to a relative `tolerance`.

    Ask `next_value()` (None: done) and `tell()`; the answer is `best` (None: not even `low` passes). Assumes that what
    fails at a rate fails at every higher one; `capped` says that even `high` passes.
    """

    low: float
    high: float
    tolerance: float
    best: float | None = None
    worst: float | None = None
    capped: bool = False
    _done: bool = False

    def next_value(self) -> float | None:
        """The next rate to try."""
        if self._done:
            return None
        if self.best is None and self.worst is None:
            return self.low
        if self.worst is None:
            assert self.best is not None
            return min(self.best * 4.0, self.high)
        if self.best is None or self.worst / self.best <= 1.0 + self.tolerance:
            return None
        return math.sqrt(self.best * self.worst)

    def tell(self, value: float, passes: bool) -> None:
        """Result of one evaluation."""
        if passes:
            self.best = value
            if value >= self.high:
                self.capped = self._done = True
        else:
            self.worst = value
            if self.best is None:
                self._done = True


@dataclass(slots=True)
class FleetSearch:
    """The smallest number of replicas that passes between `low` and `high`: doubling, then bisection."""

    low: int
    high: int
    best: int | None = None
    worst: int | None = None

    def next_value(self) -> int | None:
        """The next number to try."""
        if self.best is None:
            if self.worst is None:
                return self.low
            return min(self.worst * 2, self.high) if self.worst < self.high else None
        floor = self.low - 1 if self.worst is None else self.worst
        return (self.best + floor) // 2 if self.best - floor > 1 else None

    def tell(self, value: int, passes: bool) -> None:
        """Result of one evaluation."""
        if passes:
            self.best = value
        else:
            self.worst = value
