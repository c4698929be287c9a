"""When sessions start: the `arrivals:` part of a workload."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from prefixsim.scenario.base import Strict
from prefixsim.scenario.distribution import Distribution, constant

_NEEDS: dict[str, tuple[set[str], set[str]]] = {  # process -> (needed, allowed besides)
    "poisson": ({"rate_per_s"}, set()),
    "constant": ({"rate_per_s"}, set()),
    "gamma": ({"rate_per_s", "shape"}, set()),
    "weibull": ({"rate_per_s", "shape"}, set()),
    "day_curve": ({"rate_per_s", "curve"}, {"period_s"}),
    "replay": ({"path"}, {"format", "time_scale"}),
    "closed_loop": ({"users"}, {"think_time_s", "ramp_s"}),
    "all_at_once": (set(), set()),
}


class Arrivals(Strict):
    """Arrival process of *sessions* (a session of one turn is a request). Later turns follow their predecessors.

    Example:
        arrivals: {process: gamma, rate_per_s: 8, shape: 0.5}
    """

    process: Literal["poisson", "constant", "gamma", "weibull", "day_curve", "replay", "closed_loop", "all_at_once"] = (
        "poisson"
    )
    """Which process; the keys below say which one they belong to."""
    rate_per_s: float | None = Field(None, gt=0, le=1e9)
    """Mean number of sessions that start a second."""
    shape: float | None = Field(None, gt=0, le=1e6)
    """Shape of gamma (vLLM's `--burstiness`) or Weibull gaps: 1 is Poisson, below 1 burstier, above 1 more regular."""
    curve: list[float] | None = Field(None, min_length=2, max_length=10_000)
    """Relative rates over one period in equal slots (24 numbers: hours of a day); the mean rate is `rate_per_s`."""
    period_s: float | None = Field(None, gt=0, le=1e9)
    """Length of the curve in seconds; default 86,400."""
    path: str | None = None
    """Trace whose arrival times are used, in order (`replay`)."""
    format: str | None = None
    """Its format; default: by evidence (`replay`)."""
    time_scale: float | None = Field(None, gt=0, le=1e6)
    """Multiplies the replayed times: 10 is ten times slower."""
    users: int | None = Field(None, ge=1, le=10_000_000)
    """Closed loop: so many users, each starting its next session when its last one has ended, plus think time."""
    think_time_s: Distribution | None = None
    """Closed loop: pause between a user's sessions, seconds; default 0."""
    ramp_s: float | None = Field(None, ge=0, le=1e9)
    """Closed loop: users start evenly over this time; default 0."""

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        needed, allowed = _NEEDS[self.process]
        given = {k for k in type(self).model_fields if k != "process" and getattr(self, k) is not None}
        if missing := needed - given:
            raise ValueError(f"process {self.process} needs {', '.join(sorted(missing))}")
        if extra := given - needed - allowed:
            raise ValueError(f"process {self.process} does not use {', '.join(sorted(extra))}")
        if self.curve is not None and (any(c < 0 for c in self.curve) or sum(self.curve) <= 0):
            raise ValueError("curve must not be negative and not all 0")
        return self

    @property
    def pause(self) -> Distribution:
        """Closed loop's think time."""
        return self.think_time_s or constant(0)
