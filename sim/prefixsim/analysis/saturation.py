"""Is the queue growing? A rule that is stated with its answer.

Waiting = released and not yet admitted. The time looked at goes from the first to the last *independent* arrival, one that
waits for no other request's answer: later turns hold themselves back when the engine is slow, so after the last independent
arrival any queue drains. Cut into four quarters, the queue grows if all of these hold:
1. at the last independent arrival at least `MIN_WAITING` requests wait;
2. the mean number waiting in the last quarter is at least 1.5 times that of the second, and the third is not below the
   second (a queue that grows at a constant rate has 2.3 times as many in the last as in the second);
3. admitting those left over then takes more than 2 % of the time of arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefixsim.records import REQ_ADMITTED_NS, REQ_RELEASED_NS
from prefixsim.units import NS_PER_S
from prefixsim.workload.table import I64

MIN_WAITING = 10
GROWTH = 1.5
DRAIN_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Queue:
    """waiting: requests waiting at the last independent arrival. growth_per_s: of the number waiting, second to last
    quarter. drain_s: from then to the last admission of those. mean_waiting: by quarter of the time of arrivals."""

    saturated: bool
    note: str
    waiting: int
    growth_per_s: float
    drain_s: float
    mean_waiting: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "waiting_at_last_arrival": self.waiting,
            "growth_per_s": self.growth_per_s,
            "drain_s": self.drain_s,
            "mean_waiting_by_quarter": list(self.mean_waiting),
        }


def queue_growth(rows: I64, after: npt.NDArray[np.integer] | None = None) -> Queue:
    """Judges one run by its request table, int64 (n, 16). after (n,): the request each one awaits, -1 none (default: all)."""
    inside = (rows[:, REQ_ADMITTED_NS] >= 0) & (rows[:, REQ_RELEASED_NS] >= 0)
    released, admitted = rows[inside, REQ_RELEASED_NS], rows[inside, REQ_ADMITTED_NS]
    if len(released) < MIN_WAITING:
        return Queue(False, "", 0, 0.0, 0.0, (0.0,) * 4)
    alone = released if after is None else released[after[inside] < 0]
    if len(alone) < MIN_WAITING:
        return Queue(False, "", 0, 0.0, 0.0, (0.0,) * 4)
    start, stop = int(alone.min()), int(alone.max())
    window_s = (stop - start) / NS_PER_S
    drain_s = max(int(admitted[released <= stop].max()) - stop, 0) / NS_PER_S
    waiting = int(((released <= stop) & (admitted > stop)).sum())
    edges = start + np.arange(5, dtype=np.float64) / 4 * (stop - start)
    means = tuple(_mean_waiting(released, admitted, edges[i], edges[i + 1]) for i in range(4))
    growth = (means[3] - means[1]) / (window_s / 2) if window_s > 0 else 0.0
    if window_s == 0:
        return Queue(False, "", waiting, 0.0, drain_s, means)
    saturated = (
        waiting >= MIN_WAITING
        and means[3] >= GROWTH * means[1]
        and means[2] >= means[1]
        and drain_s > DRAIN_SHARE * window_s
    )
    note = ""
    if saturated:
        note = (
            f"the queue grows by {growth:.3g} requests a second: on average {means[1]:.0f}, {means[2]:.0f}, {means[3]:.0f} "
            f"wait in the second, third and last quarter of the arrivals, {waiting} at the last arrival, and admitting "
            f"those takes another {drain_s:.0f} s ({100 * drain_s / window_s:.0f} % of the {window_s:.0f} s of arrivals). "
            "Latencies and throughput then depend on how long the trace is"
        )
    return Queue(saturated, note, waiting, growth, drain_s, means)


def _mean_waiting(released: I64, admitted: I64, start: float, stop: float) -> float:
    if stop <= start:
        return 0.0
    overlap = np.minimum(admitted, stop) - np.maximum(released, start)
    return float(np.maximum(overlap, 0.0).sum() / (stop - start))
