"""Workload to workload: choose and order rows, scale and spread arrivals, cap delays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.workload.ragged import gather, offsets
from prefixsim.workload.streams import stream
from prefixsim.workload.table import I64, Decision, Source, Workload

ROW_COLUMNS = (
    "arrival_ns", "delay_ns", "step", "prompt_tokens", "output_tokens", "max_tokens", "stop", "session", "turn", "group",
    "tenant", "salt", "lora", "extra_key", "priority", "skip_reading_prefix_cache", "prompt_atoms",
)  # fmt: skip


def add_to_source(source: Source, *decisions: Decision, notes: tuple[str, ...] = (), **counts: int) -> Source:
    """A source with more decisions, notes and counts."""
    return replace(
        source,
        decisions=(*source.decisions, *decisions),
        notes=(*source.notes, *notes),
        counts={**source.counts, **counts},
    )


def take(w: Workload, rows: I64) -> Workload:
    """The given rows (int64, distinct) in the given order. `after` is renumbered; a link to a row left out becomes -1
    and keeps its nominal arrival."""
    if rows.shape[0] == w.n and bool((rows == np.arange(w.n)).all()):
        return w
    number = np.full(w.n + 1, -1, dtype=np.int64)
    number[rows] = np.arange(rows.shape[0])
    count = np.diff(w.atom_offset)[rows]
    start = w.atom_offset[:-1][rows]
    changed: dict[str, Any] = {name: np.ascontiguousarray(getattr(w, name)[rows]) for name in ROW_COLUMNS}
    return replace(
        w,
        **changed,
        after=number[w.after[rows]].astype(np.int32),
        atom_offset=offsets(count),
        atom_id=gather(w.atom_id, start, count),
        atom_tokens=None if w.atom_tokens is None else gather(w.atom_tokens, start, count),
        ids=None if w.ids is None else tuple(w.ids[i] for i in rows.tolist()),
        reported_cached_tokens=None if w.reported_cached_tokens is None else w.reported_cached_tokens[rows],
    )


def sort_by_arrival(w: Workload) -> Workload:
    """Stable order of (nominal) arrival; says how many rows moved. A request never comes before the one it awaits."""
    if w.n == 0 or bool((w.arrival_ns[1:] >= w.arrival_ns[:-1]).all()):
        return w
    order = np.argsort(w.arrival_ns, kind="stable").astype(np.int64)
    moved = int((w.arrival_ns[1:] < w.arrival_ns[:-1]).sum())
    out = take(w, order)
    note = f"{moved:,} rows were out of order; requests are replayed in order of arrival"
    return replace(out, source=add_to_source(w.source, notes=(note,), rows_out_of_order=moved))


def order_quietly(w: Workload) -> Workload:
    """As `sort_by_arrival`, for readers and generators whose rows were never in an order of time."""
    return replace(sort_by_arrival(w), source=w.source)


def scale_arrivals(w: Workload, scale: float) -> Workload:
    """Multiplies arrival times by `scale`, from time 0 of the trace. Raises OverflowError past int64 nanoseconds."""
    if scale == 1.0:
        return w
    scaled = w.arrival_ns.astype(np.float64) * scale
    if scaled.shape[0] and not np.abs(scaled).max() < 9.2e18:
        raise OverflowError("time_scale makes the trace longer than 290 years")
    decision = Decision("time_scale", f"{scale:g}", f"arrivals multiplied by {scale:g} ({scale:g} times slower)", True)
    return replace(w, arrival_ns=np.rint(scaled).astype(np.int64), source=add_to_source(w.source, decision))


def spread_arrivals(w: Workload, seed: int) -> Workload:
    """Spreads requests of one arrival stamp uniformly up to the next stamp (the last: over the median gap), file order kept.

    Requests that await others keep their delay. Which stamps are quantised is said in the decision.
    """
    free = np.flatnonzero(w.after < 0)
    stamps, place, sizes = np.unique(w.arrival_ns[free], return_inverse=True, return_counts=True)
    if stamps.shape[0] < 2:
        return w
    gaps = np.diff(stamps)
    width = np.append(gaps, int(np.median(gaps)))[place]
    offset = stream(seed, "spread_arrivals").random(free.shape[0])
    order = np.lexsort((offset, place))  # sorted draws within a stamp, dealt in file order
    dealt = np.empty(free.shape[0])
    dealt[np.argsort(place, kind="stable")] = offset[order]
    arrival = w.arrival_ns.copy()
    arrival[free] += np.floor(dealt * width).astype(np.int64)
    evidence = (
        f"{stamps.shape[0]:,} distinct stamps for {free.shape[0]:,} requests, median gap {np.median(gaps) / 1e9:g} s, "
        f"up to {int(sizes.max())} on one stamp; spread uniformly up to the next stamp, seed {seed}"
    )
    source = add_to_source(w.source, Decision("spread_arrivals", "uniform", evidence, True))
    return replace(w, arrival_ns=arrival, source=source)


def head(w: Workload, n: int) -> Workload:
    """The first n requests."""
    if w.n <= n:
        return w
    out = take(w, np.arange(n, dtype=np.int64))
    decision = Decision("max_requests", str(n), f"the first {n:,} of {w.n:,} requests", True)
    return replace(out, source=add_to_source(w.source, decision))


def cap_delays(w: Workload, seconds: float) -> Workload:
    """Caps think times."""
    cap = round(seconds * 1e9)
    long = int((w.delay_ns > cap).sum())
    if not long:
        return w
    decision = Decision("max_delay_s", f"{seconds:g}", f"{long:,} think times were longer and are cut", True)
    return replace(w, delay_ns=np.minimum(w.delay_ns, cap), source=add_to_source(w.source, decision))


def forget_outputs(w: Workload) -> Workload:
    """Outputs' content becomes unknown: nothing reuses it."""
    if not bool((np.diff(w.atom_offset) > w.prompt_atoms).any()):
        return w
    start = w.atom_offset[:-1]
    decision = Decision("reuse_outputs", "false", "content of outputs is treated as unknown", True)
    return replace(
        w,
        atom_id=gather(w.atom_id, start, w.prompt_atoms),
        atom_tokens=None if w.atom_tokens is None else gather(w.atom_tokens, start, w.prompt_atoms),
        atom_offset=offsets(w.prompt_atoms),
        source=add_to_source(w.source, decision),
    )


def concatenate(parts: list[Workload], kind: str) -> Workload:
    """Workloads one after another, contents and sessions kept apart; namespaces of equal name are the same namespace."""
    atoms, rows = 0, 0
    ids: list[npt.NDArray[np.int32]] = []
    after: list[npt.NDArray[np.int32]] = []
    for w in parts:
        if atoms + (int(w.atom_id.max()) if w.atom_id.shape[0] else 0) >= (1 << 31) - 1:
            raise OverflowError("more than 2^31 distinct contents in all parts")
        ids.append(w.atom_id + np.int32(atoms))
        atoms += int(w.atom_id.max()) + 1 if w.atom_id.shape[0] else 0
        after.append(np.where(w.after >= 0, w.after + rows, -1).astype(np.int32))
        rows += w.n
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(w, name) for w in parts])
        for name in ROW_COLUMNS
        if name not in ("session", "group", "tenant", "salt", "lora", "extra_key")
    }
    for name in ("session", "group", "tenant"):
        codes, base = [], 0
        for w in parts:
            own = getattr(w, name)
            codes.append(np.where(own >= 0, own + base, -1).astype(np.int32))
            base += max(len(getattr(w, f"{name}_names")), int(own.max()) + 1 if w.n else 0)
        columns[name] = np.concatenate(codes)
        columns[f"{name}_names"] = tuple(
            n
            for w in parts
            for n in _padded(getattr(w, f"{name}_names"), int(getattr(w, name).max()) + 1 if w.n else 0, name)
        )
    for name in ("salt", "lora", "extra_key"):
        table: dict[str, int] = {"": 0}
        codes = []
        for w in parts:
            names = getattr(w, f"{name}_names")
            codes.append(np.array([table.setdefault(n, len(table)) for n in names], dtype=np.int32)[getattr(w, name)])
        columns[name], columns[f"{name}_names"] = np.concatenate(codes), tuple(table)
    lengths = None
    if any(w.atom_tokens is not None for w in parts):
        lengths = np.concatenate(
            [np.ones(w.atom_id.shape[0], np.int32) if w.atom_tokens is None else w.atom_tokens for w in parts]
        )
    known = [w.reported_cached_tokens for w in parts]
    cached = None
    if any(k is not None for k in known):
        cached = np.concatenate(
            [np.full(w.n, -1, np.int64) if k is None else k for w, k in zip(parts, known, strict=True)]
        )
    source = Source(
        kind=kind,
        content_known=all(w.source.content_known for w in parts),
        synthetic=any(w.source.synthetic for w in parts),
        block_tokens=max(w.source.block_tokens for w in parts),
        decisions=tuple(d for w in parts for d in w.source.decisions),
        counts={f"{k}:{name}": v for k, w in enumerate(parts) for name, v in w.source.counts.items()},
        notes=tuple(dict.fromkeys(n for w in parts for n in w.source.notes)),
    )
    named = all(w.ids is not None for w in parts)
    return Workload(
        after=np.concatenate(after),
        atom_offset=offsets(np.concatenate([np.diff(w.atom_offset) for w in parts])),
        atom_id=np.concatenate(ids),
        atom_tokens=lengths,
        max_tokens_assumed=any(w.max_tokens_assumed for w in parts),
        source=source,
        ids=tuple(f"{k}:{i}" for k, w in enumerate(parts) for i in w.ids or ()) if named else None,
        reported_cached_tokens=cached,
        **columns,
    )


def _padded(names: tuple[str, ...], least: int, what: str) -> tuple[str, ...]:
    """Names for all codes, made up where a table has none."""
    return names if len(names) >= least else names + tuple(f"{what}-{k}" for k in range(len(names), least))
