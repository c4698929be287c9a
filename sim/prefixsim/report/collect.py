"""From a run's tables to what figures need: step functions over time, exact histograms, sums by group.

Tables are read once, in chunks. What is kept does not grow with the number of requests; a timeline longer than
TIMELINE_ROWS is thinned on reading with minimum and maximum of every column kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.records import STATUS_FINISHED, STATUS_NAMES, STATUS_REJECTED, UNSET
from prefixsim.report.facts import clean, engines_of, number
from prefixsim.report.folder import RunFolder
from prefixsim.report.series import LogHistogram, busy, nice_edges, rate_in_bins, total_of_steps
from prefixsim.report.tables import F64, Chunk, find_table, read_chunks

TIMELINE_ROWS = 400_000
GROUPS, TURNS, REPLICA_HISTOGRAMS = 2_000, 32, 64
OTHER = "(all others)"
METRICS = ("ttft", "itl", "e2e")
FINISHED = {str(STATUS_FINISHED), STATUS_NAMES[STATUS_FINISHED]}
REJECTED = {str(STATUS_REJECTED), STATUS_NAMES[STATUS_REJECTED]}


@dataclass(slots=True)
class Sums:
    """Requests, prompt tokens and cached tokens of something."""

    requests: float = 0
    prompt: float = 0
    cached: float = 0

    def add(self, requests: float, prompt: float, cached: float) -> None:
        self.requests += requests
        self.prompt += prompt
        self.cached += cached

    @property
    def rate(self) -> float | None:
        return self.cached / self.prompt if self.prompt else None


@dataclass(slots=True)
class Timeline:
    """Over all replicas of an engine. running, waiting, kv: step functions (times s, values). edges: bins of time (s);
    in each hit_rate (NaN: no lookup), hit_rate_so_far, evicted tokens and preemptions a second. kv_by_replica: for each
    replica its highest KV tokens in each bin (NaN: no step). kept: rows used, of `steps` the engine made (None: not known).
    """

    running: tuple[F64, F64]
    waiting: tuple[F64, F64]
    kv: tuple[F64, F64]
    edges: F64
    hit_rate: F64
    hit_rate_so_far: F64
    evicted_per_s: F64
    preemptions_per_s: F64
    kv_by_replica: dict[int, F64]
    kept: int = 0
    steps: int | None = None

    @property
    def thinned(self) -> bool:
        """Whether the engine made more steps than the table has rows."""
        return self.steps is not None and self.kept < self.steps


@dataclass(slots=True)
class EngineData:
    """Everything the figures need of one engine."""

    latency: dict[str, LogHistogram] = field(default_factory=lambda: {m: LogHistogram() for m in METRICS})
    groups: dict[str, Sums] = field(default_factory=dict)
    turns: dict[int, Sums] = field(default_factory=dict)
    lengths: dict[int, Sums] = field(default_factory=dict)
    replicas: dict[int, Sums] = field(default_factory=dict)
    replica_ttft: dict[int, LogHistogram] = field(default_factory=dict)
    timeline: Timeline | None = None
    has_turns: bool = False


def collect(run: RunFolder) -> tuple[dict[str, EngineData], list[str]]:
    """Engine name -> data, for the engines of the summary; and sentences on what is absent."""
    engines = {str(name): EngineData() for name in run.summary["engines"]}
    absent: list[str] = []
    for name, read, what in (
        ("requests", _read_requests, "latency distributions and hit rates by turn and length are not known"),
        ("timeline", _read_timeline, "nothing over time can be drawn"),
        ("gaps", _read_gaps, "the distribution of ITL is not known"),
    ):
        path = find_table(run.path, name)
        if path is None:
            absent.append(f"The run folder has no {name} table: {what}.")
        else:
            read(path, engines, run)
    if find_table(run.path, "requests") is None:
        _groups_of_summary(run, engines)
    return engines, absent


def _groups_of_summary(run: RunFolder, engines: dict[str, EngineData]) -> None:
    """Sums by group where the run kept no requests table."""
    for name, engine in engines_of(run.summary).items():
        groups = engine.get("groups")
        for label, group in list(groups.items())[:GROUPS] if isinstance(groups, dict) else ():
            requests, prompt, cached = (number(group, k) for k in ("requests", "prompt_tokens", "cached_tokens"))
            if requests is not None and prompt is not None and cached is not None:
                engines[name].groups.setdefault(clean(label, 120), Sums()).add(requests, prompt, cached)


def steps_made(run: RunFolder) -> dict[str, int | None]:
    """Engine -> steps of all its replicas, as the summary has them."""
    out: dict[str, int | None] = {}
    for name, engine in engines_of(run.summary).items():
        steps = number(engine, "steps")
        out[name] = None if steps is None else int(steps)
    return out


# ---- requests ----------------------------------------------------------------------------------------------------

REQUEST_NUMBERS = ("released_s", "first_token_s", "finish_s", "cached_tokens", "lookup_tokens", "replica", "turn")
REQUEST_TEXTS = ("engine", "group", "status")


def _read_requests(path: Path, engines: dict[str, EngineData], run: RunFolder) -> None:
    optional = ("turn", "group", "replica", "released_s", "first_token_s", "finish_s")
    for chunk in read_chunks(path, REQUEST_NUMBERS, REQUEST_TEXTS, optional):
        for name, mine in chunk.by("engine", engines):
            _add_requests(engines[name], chunk, mine)


def _add_requests(data: EngineData, chunk: Chunk, mine: np.ndarray[Any, Any]) -> None:
    def column(name: str) -> F64:
        return chunk.numbers[name][mine] if name in chunk.numbers else np.full(int(mine.sum()), np.nan)

    finished = chunk.where("status", FINISHED)[mine]
    released, first, finish = column("released_s"), column("first_token_s"), column("finish_s")
    ok = finished & (released >= 0)
    replica = column("replica")
    data.latency["ttft"].add((first - released)[ok & (first >= 0)])
    data.latency["e2e"].add((finish - released)[ok & (finish >= 0)])
    prompt, cached = column("lookup_tokens"), column("cached_tokens")
    admitted = (prompt > 0) & ~chunk.where("status", REJECTED)[mine]
    if "group" in chunk.texts:
        names, codes = chunk.coded("group")
        labels = np.array([clean(name, 120) for name in names])[codes[mine]]
        _sum_by(data.groups, labels, admitted, prompt, cached, GROUPS)
    turn = column("turn")
    known = admitted & (turn >= 0)
    data.has_turns |= bool((turn[known] > 0).any())
    _sum_by(
        data.turns, np.minimum(np.nan_to_num(turn, nan=UNSET), TURNS).astype(np.int64), known, prompt, cached, TURNS + 1
    )
    power = np.floor(np.log2(np.maximum(prompt, 1))).astype(np.int64)
    _sum_by(data.lengths, power, admitted, prompt, cached, 64)
    served = admitted & (replica >= 0)
    number = np.nan_to_num(replica, nan=UNSET).astype(np.int64)
    _sum_by(data.replicas, number, served, prompt, cached, 100_000)
    for r in np.unique(number[served]).tolist():
        if r in data.replica_ttft or len(data.replica_ttft) < REPLICA_HISTOGRAMS:
            this = ok & (first >= 0) & (number == r)
            data.replica_ttft.setdefault(r, LogHistogram()).add((first - released)[this])


def _sum_by(sums: dict[Any, Sums], labels: Any, where: Any, prompt: F64, cached: F64, limit: int) -> None:
    names, index = np.unique(labels[where], return_inverse=True)
    counts = np.bincount(index, minlength=len(names))
    prompts = np.bincount(index, prompt[where], len(names))
    hits = np.bincount(index, cached[where], len(names))
    for name, n, p, c in zip(names.tolist(), counts.tolist(), prompts.tolist(), hits.tolist(), strict=True):
        key = name if name in sums or len(sums) < limit or not isinstance(name, str) else OTHER
        sums.setdefault(key, Sums()).add(n, p, c)


# ---- gaps --------------------------------------------------------------------------------------------------------


def _read_gaps(path: Path, engines: dict[str, EngineData], run: RunFolder) -> None:
    for chunk in read_chunks(path, ("gap_s", "count"), ("engine",)):
        for name, mine in chunk.by("engine", engines):
            engines[name].latency["itl"].add(chunk.numbers["gap_s"][mine], chunk.numbers["count"][mine])


# ---- timeline ----------------------------------------------------------------------------------------------------

STEP_NUMBERS = (
    "replica",
    "start_s",
    "end_s",
    "running",
    "waiting",
    "kv_used_tokens",
    "evicted_tokens",
    "preemptions",
    "lookup_tokens",
    "cached_tokens",
)
_REPLICA, _START, _END, _RUNNING, _WAITING, _KV, _EVICTED, _PREEMPTIONS, _LOOKUP, _CACHED = range(len(STEP_NUMBERS))


def _read_timeline(path: Path, engines: dict[str, EngineData], run: RunFolder) -> None:
    rows = max(path.stat().st_size // 60, 1)  # 12 numbers are seldom shorter
    stride = max(1, -(-rows // TIMELINE_ROWS)) if path.suffix == ".csv" else 1
    made = steps_made(run)
    parts: dict[str, list[F64]] = {name: [] for name in engines}
    for name, table in _steps(path, engines):
        parts[name].append(_thinned(table, stride))
    for name, tables in parts.items():
        if tables:
            engines[name].timeline = _timeline(np.concatenate(tables), made.get(name))


def _steps(path: Path, engines: dict[str, EngineData]) -> Iterator[tuple[str, F64]]:
    for chunk in read_chunks(path, STEP_NUMBERS, ("engine",)):
        table = np.column_stack([chunk.numbers[name] for name in STEP_NUMBERS])
        whole = np.isfinite(table).all(axis=1)
        for name, mine in chunk.by("engine", engines):
            good = mine & whole
            if good.any():
                yield name, table[good]


def _thinned(table: F64, stride: int) -> F64:
    """Of every `stride` consecutive rows of a replica two remain: all minima at the first start, all maxima at the last."""
    if stride <= 2:
        return table
    table = table[np.lexsort((table[:, _START], table[:, _REPLICA]))]
    change = np.flatnonzero(np.diff(table[:, _REPLICA], prepend=np.nan) != 0)
    starts = np.concatenate([np.arange(a, b, stride) for a, b in zip(change, [*change[1:], len(table)], strict=True)])
    stops = np.append(starts[1:], len(table)) - 1
    low, high = np.minimum.reduceat(table, starts), np.maximum.reduceat(table, starts)
    high[:, _START] = table[stops, _START]
    low[:, _END] = low[:, _START]
    return np.concatenate([low, high])


def _timeline(table: F64, steps: int | None) -> Timeline:
    table = table[np.lexsort((table[:, _START], table[:, _REPLICA]))]
    replicas, first = np.unique(table[:, _REPLICA], return_index=True)
    pieces = [table[a:b] for a, b in zip(first, [*first[1:], len(table)], strict=True)]
    start, stop = float(table[:, _START].min()), float(table[:, _END].max())
    changes = [np.diff(piece[:, (_EVICTED, _PREEMPTIONS, _LOOKUP, _CACHED)], axis=0, prepend=0.0) for piece in pieces]
    change, when = np.concatenate(changes), np.concatenate([piece[:, _START] for piece in pieces])
    lookups = int((change[:, 2] > 0).sum())
    edges = nice_edges(start, stop, int(np.clip(lookups // 20, 10, 100)))
    evicted, preempted, prompt, cached = (rate_in_bins(when, change[:, i], edges) for i in range(4))
    with np.errstate(invalid="ignore", divide="ignore"):
        hit_rate = np.where(prompt > 0, cached / prompt, np.nan)
        so_far = np.where(np.cumsum(prompt) > 0, np.cumsum(cached) / np.cumsum(prompt), np.nan)
    whole = steps is None or len(table) >= steps  # between kept steps others may lie: then a gap is no pause
    return Timeline(
        running=total_of_steps([busy(piece[:, _START], piece[:, _END], piece[:, _RUNNING], whole) for piece in pieces]),
        waiting=total_of_steps([(piece[:, _START], piece[:, _WAITING]) for piece in pieces]),
        kv=total_of_steps([busy(piece[:, _START], piece[:, _END], piece[:, _KV], whole) for piece in pieces]),
        edges=edges,
        hit_rate=hit_rate,
        hit_rate_so_far=so_far,
        evicted_per_s=evicted / np.diff(edges),
        preemptions_per_s=preempted / np.diff(edges),
        kv_by_replica={
            int(r): _highest(piece, edges)
            for r, piece in zip(replicas[:REPLICA_HISTOGRAMS], pieces[:REPLICA_HISTOGRAMS], strict=True)
        },
        kept=len(table),
        steps=steps,
    )


def _highest(piece: F64, edges: F64) -> F64:
    out = np.full(len(edges) - 1, np.nan)
    index = np.clip(np.searchsorted(edges, piece[:, _START], side="right") - 1, 0, len(out) - 1)
    np.fmax.at(out, index, piece[:, _KV])
    return out
