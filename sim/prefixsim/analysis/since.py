"""What an engine did from an instant on: its record at the end, less its record at that instant."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from prefixsim.records import (
    I64,
    NEVER,
    REQ_ADMITTED_NS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_REJECTED,
    TL_CACHED_TOKENS,
    TL_END_NS,
    TL_EVICTED_TOKENS,
    TL_FINISHED,
    TL_KV_USED_TOKENS,
    TL_LOOKUP_TOKENS,
    TL_PREEMPTIONS,
    TL_START_NS,
    EngineRecord,
)

_TIMES = (REQ_RELEASED_NS, REQ_ADMITTED_NS, REQ_FIRST_TOKEN_NS, REQ_FINISH_NS, REQ_READY_NS)
_CUMULATIVE = (TL_EVICTED_TOKENS, TL_PREEMPTIONS, TL_LOOKUP_TOKENS, TL_CACHED_TOKENS, TL_FINISHED)
LEVEL_WORDS = frozenset(
    [
        "peak",
        "capacity",
        "available",
        "evictable",
        "protected",
        "last",
        "usage",
        "perc",
        "rate",
        "ratio",
        "running",
        "used",
    ]
)
"""Words in the names of totals and counters that are readings, not sums: they are kept as they are at the end."""
LEVELS = frozenset({"nodes", "tree_bytes", "sglang:max_total_num_tokens", "sglang:page_size", "sglang:num_pages"})


@dataclass(frozen=True, slots=True)
class Mark:
    """A replica's record at an instant (ns, the engine's clock): every step scheduled before it, none after."""

    at_ns: int
    record: EngineRecord


def is_level(name: str) -> bool:
    """Whether a total or counter is a reading (of a level, a peak, a rate) rather than a sum since the start."""
    return name in LEVELS or not LEVEL_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def later(rows: I64, start_ns: int) -> I64:
    """Request rows with times counted from `start_ns`."""
    out = rows.copy()
    for column in _TIMES:
        times = out[:, column]
        times[(times >= 0) & (times != NEVER)] -= start_ns
    return out


def since(final: EngineRecord, mark: Mark, start_ns: int, rows: I64) -> EngineRecord:
    """The record from the mark on, times counted from `start_ns`. rows int64 (n, 16): the requests that count.

    Sums are differences; levels are those at the end; the peak of KV in use is the timeline's.
    """
    before = mark.record
    late = final.timeline[:, TL_START_NS] >= mark.at_ns
    timeline, earlier = final.timeline[late].copy(), final.timeline[~late]
    for column in _CUMULATIVE:
        timeline[:, column] -= int(earlier[-1, column]) if len(earlier) else 0
    timeline[:, TL_START_NS] -= start_ns
    timeline[:, TL_END_NS] -= start_ns
    totals = {k: v if is_level(k) else v - before.totals.get(k, 0) for k, v in final.totals.items()}
    counters = {k: v if is_level(k) else v - before.counters.get(k, 0.0) for k, v in final.counters.items()}
    if "peak_kv_tokens" in totals:
        totals["peak_kv_tokens"] = int(timeline[:, TL_KV_USED_TOKENS].max(initial=0))
    if "rejected" in totals:  # some engines count them when they are submitted, which may be long before they arrive
        mine = rows[:, REQ_REPLICA] == final.replica
        totals["rejected"] = int((mine & (rows[:, REQ_STATUS] == STATUS_REJECTED)).sum())
    for name, value in totals.items():
        if name.startswith("last_") and name.endswith("_ns") and value >= start_ns:
            totals[name] = value - start_ns
    return replace(
        final,
        timeline=timeline,
        gaps=_difference(final.gaps, before.gaps),
        totals=totals,
        counters=counters,
        first_commit_ns=None,
    )


def _difference(final: I64, before: I64) -> I64:
    """Pairs (gap, how often) of the first less those of the second. Raises AssertionError where that is negative."""
    values = np.unique(np.concatenate([final[:, 0], before[:, 0]]))
    count = np.zeros(values.shape[0], dtype=np.int64)
    np.add.at(count, np.searchsorted(values, final[:, 0]), final[:, 1])
    np.subtract.at(count, np.searchsorted(values, before[:, 0]), before[:, 1])
    if (count < 0).any():
        raise AssertionError("an engine has lost token gaps since it was looked at")
    return np.stack([values[count > 0], count[count > 0]], axis=1)
