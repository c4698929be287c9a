"""Small numeric tools of the report: step functions thinned with their extremes kept, histograms with exact counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefixsim.report.tables import F64

DECADES = (-7, 7)
BINS_PER_DECADE = 200
IDLE_S = 0.05
"""A pause between two steps longer than this is drawn as an idle engine (host work between steps is shorter)."""


def thin(time: F64, value: F64, points: int) -> tuple[F64, F64]:
    """At most ~`points` of a series sorted by time: first, last, and of each slice of time its minimum and maximum, at
    their own times. A series that is short enough comes back as it is."""
    n = len(time)
    if n <= points or n == 0:
        return time, value
    slices = max(points // 2 - 1, 1)
    edges = np.searchsorted(time, np.linspace(time[0], time[-1], slices + 1)[1:-1])
    starts = np.unique(np.concatenate([[0], edges]))
    starts = starts[starts < n]
    keep = [0, n - 1]
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    for i, (start, stop) in enumerate(zip(starts, [*starts[1:], n], strict=True)):
        piece = value[start:stop]
        keep += [start + int(np.argmax(piece == low[i])), start + int(np.argmax(piece == high[i]))]
    order = np.unique(keep)
    return time[order], value[order]


def envelope(time: F64, value: F64, slices: int) -> tuple[F64, F64, F64, F64]:
    """A step function in slices of equal time: (slice starts, lowest, mean over time, highest). The value in force when
    a slice begins counts in it; the last step ends the function."""
    edges = np.linspace(time[0], time[-1], slices + 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    mean = np.diff(np.interp(edges, time, area)) / np.diff(edges)
    first = np.searchsorted(time, edges[:-1], side="right") - 1  # in force at the start of the slice
    last = np.searchsorted(time, edges[1:], side="left")
    last[-1] = len(time)
    low, high = np.empty(slices), np.empty(slices)
    for i, (a, b) in enumerate(zip(np.maximum(first, 0), np.maximum(last, first + 1), strict=True)):
        piece = value[a:b]
        low[i], high[i] = piece.min(), piece.max()
    return edges[:-1], low, np.clip(mean, low, high), high


def busy(start: F64, end: F64, value: F64, whole: bool) -> tuple[F64, F64]:
    """A replica's column of its steps, by time, as a step function that is 0 after the last step and, in a whole timeline,
    in pauses; between the kept steps of others a gap need not be a pause."""
    pause = np.append((start[1:] - end[:-1] > IDLE_S) & whole, True)
    time = np.concatenate([start, end[pause]])
    order = np.argsort(time, kind="stable")
    return time[order], np.concatenate([value, np.zeros(int(pause.sum()))])[order]


def total_of_steps(parts: list[tuple[F64, F64]]) -> tuple[F64, F64]:
    """Sum of step functions, each given as (times sorted, value from that time on); before its first time each is 0."""
    parts = [(t, v) for t, v in parts if len(t)]
    if not parts:
        return np.empty(0), np.empty(0)
    if len(parts) == 1:
        return parts[0]
    time = np.concatenate([t for t, _ in parts])
    change = np.concatenate([np.diff(v, prepend=0.0) for _, v in parts])
    order = np.argsort(time, kind="stable")
    time, total = time[order], np.cumsum(change[order])
    last = np.append(np.diff(time) > 0, True)  # of equal times only the last is the value from then on
    return time[last], total[last]


def rate_in_bins(time: F64, change: F64, edges: F64) -> F64:
    """Sum of `change` in each bin of time; the last bin is closed on the right."""
    return np.histogram(time, bins=edges, weights=change)[0]


def nice_edges(start: float, stop: float, bins: int) -> F64:
    """Bin edges over [start, stop]; one bin of width 1 where the range is empty."""
    if not stop > start:
        stop = start + 1.0
    return np.linspace(start, stop, max(bins, 1) + 1)


@dataclass(slots=True)
class LogHistogram:
    """Exact counts of values in bins 1.2 % wide (200 a decade, 10^-7 to 10^7); memory does not grow with the data.

    zero: how many were below 10^-7 (0 included). total: sum of weights.
    """

    counts: F64 = field(default_factory=lambda: np.zeros((DECADES[1] - DECADES[0]) * BINS_PER_DECADE))
    zero: float = 0.0

    def add(self, values: F64, weights: F64 | None = None) -> None:
        """Adds values (NaN and negative ones are not data and are left out)."""
        good = values >= 0
        values = values[good]
        weights = np.ones(len(values)) if weights is None else weights[good]
        small = values < 10.0 ** DECADES[0]
        self.zero += float(weights[small].sum())
        logs = np.log10(values[~small])
        index = np.clip(((logs - DECADES[0]) * BINS_PER_DECADE).astype(np.int64), 0, len(self.counts) - 1)
        self.counts += np.bincount(index, weights[~small], len(self.counts))

    @property
    def total(self) -> float:
        return float(self.counts.sum()) + self.zero

    def extent(self) -> tuple[float, float]:
        """Edges of the first and the last filled bin; (1, 1) without data above zero."""
        filled = np.flatnonzero(self.counts)
        if len(filled) == 0:
            return 1.0, 1.0
        low, high = filled[0] / BINS_PER_DECADE + DECADES[0], (filled[-1] + 1) / BINS_PER_DECADE + DECADES[0]
        return float(10.0**low), float(10.0**high)

    def cdf(self, points: int = 500) -> tuple[F64, F64]:
        """(bin edges, share of values at or below), from the lower edge of the first filled bin; thinned evenly."""
        total = self.total
        filled = np.flatnonzero(self.counts)
        if total == 0:
            return np.empty(0), np.empty(0)
        share = (np.cumsum(self.counts)[filled] + self.zero) / total
        edge = 10.0 ** ((filled + 1) / BINS_PER_DECADE + DECADES[0])
        if len(filled) > points:
            keep = np.unique(np.linspace(0, len(filled) - 1, points).astype(int))
            edge, share = edge[keep], share[keep]
        low = 10.0 ** (filled[0] / BINS_PER_DECADE + DECADES[0]) if len(filled) else 10.0 ** DECADES[0]
        return np.append(low, edge), np.append(self.zero / total, share)

    def density(self, merge: int = 10) -> tuple[F64, F64]:
        """(bin lower edges, share of values in the bin) with bins `merge` times as wide, from the first to the last filled
        bin and one empty bin more on each side."""
        wide = self.counts.reshape(-1, merge).sum(axis=1)
        filled = np.flatnonzero(wide)
        if len(filled) == 0:
            return np.empty(0), np.empty(0)
        low, high = max(filled[0] - 1, 0), min(filled[-1] + 1, len(wide) - 1)
        index = np.arange(low, high + 1)
        return 10.0 ** (index * merge / BINS_PER_DECADE + DECADES[0]), wide[index] / self.total

    def quantile(self, share: float) -> float | None:
        """Value at which `share` of the data lies at or below, to the bin's 1.2 %; None without data."""
        if self.total == 0:
            return None
        cumulative = np.cumsum(self.counts) + self.zero
        if cumulative[0] - self.counts[0] >= share * self.total and self.zero:
            return 0.0
        index = int(np.searchsorted(cumulative, share * self.total - 1e-9))
        return float(10.0 ** ((min(index, len(self.counts) - 1) + 0.5) / BINS_PER_DECADE + DECADES[0]))
