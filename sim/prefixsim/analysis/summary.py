"""One engine's run in numbers. Definitions: docs/definitions.md. Percentiles are linearly interpolated."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.analysis.ledger import admitted
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
    REQ_CACHED_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_RECOMPUTED_TOKENS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    TL_END_NS,
    TL_KV_USED_TOKENS,
    TL_START_NS,
    EngineRecord,
    RunRecord,
)
from prefixsim.units import NS_PER_S
from prefixsim.workload.table import I64, Workload

PERCENTILES = (50, 90, 99)
MAX_GROUPS = 1000


def engine_summary(record: RunRecord, workload: Workload) -> dict[str, Any]:
    """The `engines.NAME` part of summary.json, without the ledger."""
    rows, w = record.requests, workload
    inside = admitted(rows)
    done = rows[:, REQ_STATUS] == STATUS_FINISHED
    prompt = int(w.prompt_tokens[inside].sum())
    cached = int(rows[inside, REQ_CACHED_TOKENS].sum())
    span_s = _span_ns(rows, done) / NS_PER_S
    gaps = pooled_gaps(record.replicas)
    output = int(gaps[:, 1].sum() + done.sum())  # what was generated: an output may be cut at the longest context
    return {
        "kind": record.kind,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_host_tokens": int(rows[inside, REQ_CACHED_HOST_TOKENS].sum()),
        "hit_rate": ratio(cached, prompt),
        "requests": w.n,
        "finished": int(done.sum()),
        "rejected": int((rows[:, REQ_STATUS] == STATUS_REJECTED).sum()),
        "saturated": record.saturated,
        "saturation_note": record.saturation_note,
        "queue": record.extra.get("queue", {}),
        "ttft_s": percentiles_s(rows[done, REQ_FIRST_TOKEN_NS] - rows[done, REQ_RELEASED_NS]),
        "itl_s": weighted_percentiles_s(gaps),
        "tpot_s": percentiles_s(_tpot_ns(rows, w, done)),
        "e2e_s": percentiles_s(rows[done, REQ_FINISH_NS] - rows[done, REQ_RELEASED_NS]),
        "queue_s": percentiles_s((rows[:, REQ_ADMITTED_NS] - rows[:, REQ_RELEASED_NS])[inside]),
        "output_tokens": output,
        "output_tokens_per_s": ratio(output, span_s),
        "prompt_tokens_per_s": ratio(prompt, span_s),
        "requests_per_s": ratio(int(done.sum()), span_s),
        "duration_s": span_s,
        "kv_usage_peak": max((_peak(r) for r in record.replicas), default=0.0),
        "kv_usage_mean": _mean([_usage_mean(r) for r in record.replicas]),
        "evicted_tokens": _total(record, "evicted_tokens"),
        "preemptions": _total(record, "preemptions"),
        "recomputed_tokens": int(rows[:, REQ_RECOMPUTED_TOKENS].sum()),
        "steps": _total(record, "steps"),
        "counters": pooled_counters(record.replicas),
        "totals": pooled_totals(record.replicas),
        "replicas": [_replica(r, rows, w, inside, done) for r in record.replicas],
        "groups": _groups(rows, w, inside),
        "notes": sorted(set(record.notes)),
    }


HIT_KEYS = ("cached_tokens", "cached_host_tokens", "hit_rate", "evicted_tokens")
"""Numbers that mean something only where it is known what prompts share."""


def without_hits(part: dict[str, Any]) -> dict[str, Any]:
    """An engine's summary for a lengths-only workload: hits are unknown (None), not 0."""
    out = {k: None if k in HIT_KEYS else v for k, v in part.items()}
    out["replicas"] = [{k: None if k in HIT_KEYS else v for k, v in r.items()} for r in part["replicas"]]
    out["groups"] = {
        name: {k: None if k in HIT_KEYS else v for k, v in group.items()} for name, group in part["groups"].items()
    }
    out["counters"] = {
        k: v for k, v in part["counters"].items() if "hit" not in k and "cached" not in k and "evicted" not in k
    }
    return out


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where there is no whole."""
    return part / whole if whole else None


def percentiles_s(times_ns: npt.NDArray[Any]) -> dict[str, float | None]:
    """p50, p90, p99 and mean of times in ns, as seconds; None where there are none."""
    if len(times_ns) == 0:
        return {**{f"p{p}": None for p in PERCENTILES}, "mean": None}
    values = np.percentile(times_ns, PERCENTILES) / NS_PER_S
    out: dict[str, float | None] = {f"p{p}": float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    out["mean"] = int(times_ns.sum()) / len(times_ns) / NS_PER_S
    return out


def weighted_percentiles_s(gaps: I64) -> dict[str, float | None]:
    """The same of values that occur many times. gaps: int64 (m, 2) sorted by value, (ns, count): as if written out."""
    total = int(gaps[:, 1].sum())
    if total == 0:
        return {**{f"p{p}": None for p in PERCENTILES}, "mean": None}
    ends = np.cumsum(gaps[:, 1])
    out: dict[str, float | None] = {}
    for p in PERCENTILES:
        position = p / 100 * (total - 1)
        low = int(position)
        first, second = (int(gaps[np.searchsorted(ends, k, side="right"), 0]) for k in (low, min(low + 1, total - 1)))
        out[f"p{p}"] = (first + (second - first) * (position - low)) / NS_PER_S
    out["mean"] = _mean_s(gaps, total)
    return out


def _mean_s(gaps: I64, total: int) -> float:
    """Exact sum in two halves: ns times count may exceed int64."""
    high = int(((gaps[:, 0] >> 20) * gaps[:, 1]).sum())
    low = int(((gaps[:, 0] & ((1 << 20) - 1)) * gaps[:, 1]).sum())
    return ((high << 20) + low) / total / NS_PER_S


def pooled_gaps(replicas: tuple[EngineRecord, ...]) -> I64:
    """Inter-token gaps of all replicas: int64 (m, 2), (ns, how many), ascending, each value once."""
    pairs = np.concatenate([r.gaps for r in replicas]) if replicas else np.zeros((0, 2), dtype=np.int64)
    if len(pairs) == 0:
        return pairs
    values, inverse = np.unique(pairs[:, 0], return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, inverse.reshape(-1), pairs[:, 1])
    keep = counts > 0
    return np.stack([values[keep], counts[keep]], axis=1)


GAUGE_WORDS = frozenset({"rate", "perc", "usage", "ratio"})
"""Words in the names of counters that are shares: averaged over replicas, not added up."""


def pooled_counters(replicas: tuple[EngineRecord, ...]) -> dict[str, float]:
    """Counters of all replicas: added up, except shares and gauges (rate, perc, usage), which are averaged."""
    names = sorted({name for r in replicas for name in r.counters})
    out: dict[str, float] = {}
    for name in names:
        values = [r.counters[name] for r in replicas if name in r.counters]
        gauge = not GAUGE_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))
        out[name] = sum(values) / len(values) if gauge else sum(values)
    return out


def pooled_totals(replicas: tuple[EngineRecord, ...]) -> dict[str, int]:
    """The engine's own totals (work on the host, nodes of the tree, evict calls, ...), added up over replicas; clock
    readings (`last_*`) are the latest."""
    out: dict[str, int] = {}
    for r in replicas:
        for name, value in r.totals.items():
            old = out.get(name, 0)
            out[name] = max(old, int(value)) if name.startswith("last_") else old + int(value)
    return dict(sorted(out.items()))


def _tpot_ns(rows: I64, w: Workload, done: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    several = done & (w.output_tokens > 1)
    spent = rows[several, REQ_FINISH_NS] - rows[several, REQ_FIRST_TOKEN_NS]
    return spent / (w.output_tokens[several] - 1)


def _span_ns(rows: I64, done: npt.NDArray[np.bool_]) -> int:
    """Last finish - first arrival."""
    if not done.any():
        return 0
    came = rows[:, REQ_RELEASED_NS]
    return int(rows[done, REQ_FINISH_NS].max() - came[came >= 0].min())


def _total(record: RunRecord, name: str) -> int:
    return sum(int(r.totals.get(name, 0)) for r in record.replicas)


def _peak(r: EngineRecord) -> float:
    peak = r.totals.get("peak_kv_tokens")
    if peak is None:
        peak = int(r.timeline[:, TL_KV_USED_TOKENS].max()) if len(r.timeline) else 0
    return peak / r.capacity_tokens if r.capacity_tokens else 0.0


def _usage_mean(r: EngineRecord) -> float:
    """KV use averaged over the time in steps."""
    if len(r.timeline) == 0 or not r.capacity_tokens:
        return 0.0
    lasted = (r.timeline[:, TL_END_NS] - r.timeline[:, TL_START_NS]).astype(np.float64)
    total = float(lasted.sum())
    return float((r.timeline[:, TL_KV_USED_TOKENS] * lasted).sum() / total / r.capacity_tokens) if total else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _replica(r: EngineRecord, rows: I64, w: Workload, inside: Any, done: Any) -> dict[str, Any]:
    mine = rows[:, REQ_REPLICA] == r.replica
    prompt, cached = int(w.prompt_tokens[inside & mine].sum()), int(rows[inside & mine, REQ_CACHED_TOKENS].sum())
    return {
        "replica": r.replica,
        "granularity": r.granularity,
        "capacity_tokens": r.capacity_tokens,
        "requests": int(mine.sum()),
        "finished": int((mine & done).sum()),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_rate": ratio(cached, prompt),
        "kv_usage_peak": _peak(r),
        "totals": {name: int(value) for name, value in sorted(r.totals.items())},
    }


def _groups(rows: I64, w: Workload, inside: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Tokens by group, for the groups with most prompt tokens."""
    if not len(w.group_names):
        return {}
    count = len(w.group_names)
    labels = np.where(w.group[inside] < 0, count, w.group[inside])
    requests = np.bincount(labels, minlength=count + 1)
    prompt, cached = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    np.add.at(prompt, labels, w.prompt_tokens[inside])
    np.add.at(cached, labels, rows[inside, REQ_CACHED_TOKENS])
    most = np.argsort(-prompt[:count], kind="stable")[:MAX_GROUPS]
    return {
        w.group_names[g]: {
            "requests": int(requests[g]),
            "prompt_tokens": int(prompt[g]),
            "cached_tokens": int(cached[g]),
            "hit_rate": ratio(int(cached[g]), int(prompt[g])),
        }
        for g in most.tolist()
        if requests[g]
    }
