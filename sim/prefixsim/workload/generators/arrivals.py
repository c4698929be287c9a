"""Start times of sessions, for every arrival process."""

from __future__ import annotations

from dataclasses import dataclass
from math import gamma

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.workload import Trace
from prefixsim.workload.generators.registry import GenerateContext
from prefixsim.workload.streams import sample, stream
from prefixsim.workload.table import I64

MIN_WEIBULL_SHAPE = 0.01
"""Below it the mean gap is beyond what a float can hold."""


@dataclass(frozen=True, slots=True)
class Starts:
    """start_ns int64 (n,): when each session starts; or, in a closed loop, previous int64 (n,): the session its user had
    before (-1: none, then start_ns counts) and pause_ns int64 (n,): think time after that session's end."""

    start_ns: I64
    previous: I64 | None = None
    pause_ns: I64 | None = None


def session_starts(a: Arrivals, n: int, context: GenerateContext, name: str = "arrivals") -> Starts:
    """Starts of n sessions. Deterministic for the seed; more sessions do not change the first ones."""
    rng = stream(context.seed, name)
    if a.process == "all_at_once":
        return Starts(np.zeros(n, np.int64))
    if a.process == "closed_loop":
        users = a.users or 1
        index = np.arange(n, dtype=np.int64)
        start = np.where(index < users, index * ((a.ramp_s or 0.0) / users) * 1e9, 0.0)
        pause = np.rint(np.minimum(sample(a.pause, n, stream(context.seed, f"{name}/pause")), 9e9) * 1e9)
        return Starts(
            np.rint(start).astype(np.int64), np.where(index < users, -1, index - users), pause.astype(np.int64)
        )
    if a.process == "replay":
        return Starts(_replay(a, n, context))
    rate = max(a.rate_per_s or 1.0, 1e-30)  # below it not even one gap could be held
    if a.process == "constant":
        seconds = np.arange(n) / rate
    elif a.process == "gamma":
        shape = max(a.shape or 1.0, 1e-30)
        seconds = np.cumsum(rng.gamma(shape, 1.0 / (rate * shape), n))
    elif a.process == "weibull":
        shape = a.shape or 1.0
        if shape < MIN_WEIBULL_SHAPE:
            raise ScenarioError(f"arrivals.shape: weibull gaps need at least {MIN_WEIBULL_SHAPE}, found {shape:g}")
        seconds = np.cumsum(rng.weibull(shape, n)) / (rate * gamma(1.0 + 1.0 / shape))
    else:
        seconds = np.cumsum(rng.exponential(1.0, n)) / rate
        if a.process == "day_curve":
            seconds = _bend(seconds, a)
    if n and not seconds[-1] < 9e9:
        raise ScenarioError(f"{n:,} sessions at this rate last {seconds[-1]:.3g} s: more than can be held")
    return Starts(np.rint(seconds * 1e9).astype(np.int64))


def _bend(seconds: np.ndarray, a: Arrivals) -> np.ndarray:
    """Operational time (in which the rate is constant) to clock time under a repeating curve of relative rates."""
    assert a.curve is not None
    period = a.period_s or 86_400.0
    weights = np.asarray(a.curve, float) / np.mean(a.curve)
    done = np.concatenate([[0.0], np.cumsum(weights)]) / len(weights)  # share of a period's arrivals
    clock = np.linspace(0.0, 1.0, len(weights) + 1)
    whole, part = np.divmod(seconds / period, 1.0)
    slot = np.clip(np.searchsorted(done, part, side="right") - 1, 0, len(weights) - 1)
    slot = np.where(weights[slot] > 0, slot, np.flatnonzero(weights)[-1])  # slots of rate 0 are jumped over
    inside = (part - done[slot]) / (done[slot + 1] - done[slot])
    return np.asarray((whole + clock[slot] + inside / len(weights)) * period)


def _replay(a: Arrivals, n: int, context: GenerateContext) -> I64:
    from prefixsim.workload.load import load_trace

    options = Trace(path=a.path or "", format=a.format, time_scale=a.time_scale or 1.0)
    w = load_trace(options, base_dir=context.base_dir, seed=context.seed)
    times = np.sort(w.arrival_ns[w.after < 0])
    if times.shape[0] >= n:
        return times[:n]
    period = int(times[-1]) + max(1, int((times[-1] - times[0]) // max(1, times.shape[0] - 1)))
    rounds = -(-n // times.shape[0])
    if period * rounds > 9e18:
        raise ScenarioError("the replayed arrivals, repeated, last longer than can be held")
    return np.concatenate([times + k * period for k in range(rounds)])[:n]
