"""A run as Prometheus text, under the engines' own metric names, so that boards made for the engines show a simulation.

`snapshot` is a scrape at the end of the run. `time_series` is OpenMetrics with time stamps, as if the run had been scraped
every few seconds; `promtool tsdb create-blocks-from openmetrics` loads it. Every metric carries the label
`simulated_engine`, the engine's name in the scenario.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefixsim.report import facts
from prefixsim.report.collect import FINISHED
from prefixsim.report.exposition import BUCKETS_S, is_gauge, spell_labels, spell_value, split_name
from prefixsim.report.figures import capacity_tokens
from prefixsim.report.folder import RunFolder
from prefixsim.report.series import total_of_steps
from prefixsim.report.tables import F64, find_table, read_chunks

MAX_SCRAPES = 20_000


@dataclass(frozen=True, slots=True)
class Names:
    """An engine family's names for what a timeline has. Counters are without their `_total`."""

    prefix: str
    running: str
    waiting: str
    usage: str
    prompt: str
    queries: str | None
    hits: str
    preemptions: str
    finished: str


FAMILIES = {
    "vllm": Names(
        "vllm",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "request_success",
    ),
    "sglang": Names(
        "sglang",
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "prompt_tokens",
        None,
        "cached_tokens",
        "num_retracted_requests",
        "num_requests",
    ),
}
HISTOGRAMS = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
}


class Histogram:
    """Counts at or below each of `bounds` (ascending), count and sum of all values."""

    def __init__(self, bounds: Sequence[float] = BUCKETS_S) -> None:
        self.bounds = np.array(bounds, dtype=np.float64)
        self.counts = np.zeros(len(self.bounds))
        self.total = self.sum = 0.0

    def add(self, values: F64, weights: F64 | None = None) -> None:
        """Adds values; NaN and negative ones are no data."""
        good = values >= 0
        values = values[good]
        weights = np.ones(len(values)) if weights is None else weights[good]
        index = np.searchsorted(self.bounds, values, side="left")
        self.counts += np.cumsum(np.bincount(index, weights, len(self.bounds) + 1))[:-1]
        self.total += float(weights.sum())
        self.sum += float((values * weights).sum())

    def copy(self) -> Histogram:
        """One that does not change when this one does."""
        other = Histogram(self.bounds.tolist())
        other.counts, other.total, other.sum = self.counts.copy(), self.total, self.sum
        return other


def family_of(engine: Mapping[str, Any]) -> Names | None:
    """Names of the engine's family, by its kind ("vllm@0.33")."""
    return FAMILIES.get(str(engine.get("kind") or "").partition("@")[0])


def labels_of(run: RunFolder, name: str, engine: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an engine's metrics."""
    model = facts.get(run.summary, "hardware", "model")
    labels = {"model_name": facts.clean(model if isinstance(model, str) else "unknown", 100)}
    if str(engine.get("kind") or "").startswith("vllm"):
        labels["engine"] = "0"
    return labels | {"simulated_engine": facts.clean(name, 100)}


def chosen(run: RunFolder, names: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """The engines asked for (all without names). Raises InputError with the nearest name for one that is not there."""
    from prefixsim.errors import InputError, nearest

    engines = facts.engines_of(run.summary)
    for name in names:
        if name not in engines:
            raise InputError(f"the run has no engine '{facts.clean(name, 60)}'{nearest(name, engines)}")
    return {name: engines[name] for name in names} if names else engines


# ---- snapshot ----------------------------------------------------------------------------------------------------


def snapshot(run: RunFolder, names: Sequence[str] = ()) -> Iterator[str]:
    """Lines of a scrape at the end of the run: the engines' counters and the latency histograms."""
    engines = chosen(run, names)
    families: dict[str, tuple[str, list[str]]] = {}

    def put(family: str, kind: str, line: str) -> None:
        families.setdefault(family, (kind, []))[1].append(line)

    for name, engine in engines.items():
        base = labels_of(run, name, engine)
        counters = engine.get("counters")
        for spelt in sorted(counters) if isinstance(counters, Mapping) else ():
            parsed, value = split_name(str(spelt)), facts.number(counters, spelt)
            if parsed is None or value is None:
                continue
            metric, extra = parsed
            kind = "gauge" if is_gauge(metric) else "counter"
            metric = metric if kind == "gauge" or metric.endswith("_total") else f"{metric}_total"
            put(metric, kind, f"{metric}{spell_labels({**base, **extra})} {spell_value(value)}")
    for (name, metric), histogram in histograms(run, list(engines)).items():
        family = family_of(engines[name])
        if family is not None and histogram.total:
            full = f"{family.prefix}:{HISTOGRAMS[metric]}"
            for line in _histogram_lines(full, labels_of(run, name, engines[name]), histogram):
                put(full, "histogram", line)
    for family_name, (kind, lines) in families.items():
        yield f"# HELP {family_name} Simulated by prefixsim."
        yield f"# TYPE {family_name} {kind}"
        yield from lines


def _histogram_lines(metric: str, labels: Mapping[str, str], h: Histogram, stamp: str = "") -> Iterator[str]:
    for bound, count in zip(h.bounds.tolist(), h.counts.tolist(), strict=True):
        yield f"{metric}_bucket{spell_labels({**labels, 'le': str(bound)})} {spell_value(count)}{stamp}"
    yield f"{metric}_bucket{spell_labels({**labels, 'le': '+Inf'})} {spell_value(h.total)}{stamp}"
    yield f"{metric}_count{spell_labels(labels)} {spell_value(h.total)}{stamp}"
    yield f"{metric}_sum{spell_labels(labels)} {spell_value(h.sum)}{stamp}"


def histograms(
    run: RunFolder, names: Sequence[str], bounds: Mapping[str, Sequence[float]] | None = None
) -> dict[tuple[str, str], Histogram]:
    """(engine, ttft | itl | e2e) -> histogram in seconds, from the run's tables. bounds: other bounds for some metrics."""
    out = {(n, m): Histogram((bounds or {}).get(m, BUCKETS_S)) for n in names for m in HISTOGRAMS}
    for name, ttft, _, e2e, _ in _latencies(run, names):
        out[name, "ttft"].add(ttft)
        out[name, "e2e"].add(e2e)
    gaps = find_table(run.path, "gaps")
    for chunk in read_chunks(gaps, ("gap_s", "count"), ("engine",)) if gaps else ():
        for name, mine in chunk.by("engine", names):
            out[name, "itl"].add(chunk.numbers["gap_s"][mine], chunk.numbers["count"][mine])
    return out


def _latencies(run: RunFolder, names: Collection[str]) -> Iterator[tuple[str, F64, F64, F64, F64]]:
    """(engine, TTFT, when it was known, E2E, when it was known) of finished requests, chunk by chunk."""
    path = find_table(run.path, "requests")
    for chunk in read_chunks(path, ("released_s", "first_token_s", "finish_s"), ("engine", "status")) if path else ():
        done = chunk.where("status", FINISHED)
        for name, rows in chunk.by("engine", names):
            mine = done & rows
            released, first, finish = (chunk.numbers[c][mine] for c in ("released_s", "first_token_s", "finish_s"))
            yield name, first - released, first, finish - released, finish


# ---- time series -------------------------------------------------------------------------------------------------

_COLUMNS = (
    "replica",
    "start_s",
    "running",
    "waiting",
    "kv_used_tokens",
    "preemptions",
    "lookup_tokens",
    "cached_tokens",
    "finished",
)


def time_series(
    run: RunFolder, names: Sequence[str] = (), *, every_s: float = 15.0, start_unix_s: float = 0.0
) -> Iterator[str]:
    """OpenMetrics lines: the run as if scraped every `every_s` seconds, the run's time 0 at `start_unix_s`.

    Raises InputError when the run has no timeline or would need more than 20,000 scrapes.
    """
    from prefixsim.errors import InputError

    path = find_table(run.path, "timeline")
    if path is None:
        raise InputError(f"{run.path}: has no timeline table, so there is nothing over time to export")
    engines = chosen(run, names)
    steps: dict[str, list[F64]] = {name: [] for name in engines}
    for chunk in read_chunks(path, _COLUMNS, ("engine",)):
        table = np.column_stack([chunk.numbers[c] for c in _COLUMNS])
        whole = np.isfinite(table).all(axis=1)
        for name, mine in chunk.by("engine", engines):
            steps[name].append(table[mine & whole])
    tables = {name: np.concatenate(parts) for name, parts in steps.items() if parts}
    end = max((float(t[:, 1].max()) for t in tables.values() if len(t)), default=0.0)
    if not every_s > 0 or end / every_s > MAX_SCRAPES:
        raise InputError(
            f"--every {every_s:g}: {end:,.0f} s would need more than {MAX_SCRAPES:,} scrapes; take {end / MAX_SCRAPES + 1:.0f} or more"
        )
    scrapes: F64 = np.arange(0, int(end / every_s) + 2, dtype=np.float64) * every_s
    families: dict[str, tuple[str, list[str]]] = {}
    for name, table in tables.items():
        family = family_of(engines[name])
        if family is None or not len(table):
            continue
        labels = labels_of(run, name, engines[name])
        for metric, kind, values in _columns(family, table, scrapes, capacity_tokens(engines[name])):
            sample = f"{metric}_total" if kind == "counter" else metric
            lines = families.setdefault(metric, (kind, []))[1]
            spelt = spell_labels(labels)
            lines += [
                f"{sample}{spelt} {spell_value(v)} {start_unix_s + t:.3f}" for t, v in zip(scrapes, values, strict=True)
            ]
    for name, metric, histograms in _histograms_over_time(run, engines, scrapes):
        lines = families.setdefault(metric, ("histogram", []))[1]
        labels = labels_of(run, name, engines[name])
        for t, h in zip(scrapes, histograms, strict=True):  # all of a scrape's lines together, as OpenMetrics wants
            lines += _histogram_lines(metric, labels, h, f" {start_unix_s + t:.3f}")
    for metric, (kind, lines) in families.items():
        yield f"# HELP {metric} Simulated by prefixsim."
        yield f"# TYPE {metric} {kind}"
        yield from lines
    yield "# EOF"


def _columns(family: Names, table: F64, scrapes: F64, capacity: float | None) -> Iterator[tuple[str, str, list[float]]]:
    """(metric, kind, value at each scrape) of an engine's timeline, replicas added up."""
    wanted = [
        (family.running, "gauge", 2, 1.0),
        (family.waiting, "gauge", 3, 1.0),
        (family.preemptions, "counter", 5, 1.0),
        (family.prompt, "counter", 6, 1.0),
        (family.hits, "counter", 7, 1.0),
        (family.finished, "counter", 8, 1.0),
    ]
    if capacity:
        wanted.append((family.usage, "gauge", 4, 1 / capacity))
    if family.queries:
        wanted.append((family.queries, "counter", 6, 1.0))
    order = np.lexsort((table[:, 1], table[:, 0]))
    table = table[order]
    first = np.unique(table[:, 0], return_index=True)[1]
    pieces = [table[a:b] for a, b in zip(first, [*first[1:], len(table)], strict=True)]
    for metric, kind, column, scale in wanted:
        time, value = total_of_steps([(p[:, 1], p[:, column]) for p in pieces])
        index = np.searchsorted(time, scrapes, side="right") - 1
        yield f"{family.prefix}:{metric}", kind, (np.where(index >= 0, value[index], 0.0) * scale).tolist()


def _histograms_over_time(
    run: RunFolder, engines: Mapping[str, Mapping[str, Any]], scrapes: F64
) -> Iterator[tuple[str, str, list[Histogram]]]:
    known: dict[tuple[str, str], list[tuple[F64, F64]]] = {}
    for name, ttft, first, e2e, finish in _latencies(run, list(engines)):
        known.setdefault((name, "ttft"), []).append((first, ttft))
        known.setdefault((name, "e2e"), []).append((finish, e2e))
    for (name, metric), parts in known.items():
        family = family_of(engines[name])
        when, value = np.concatenate([w for w, _ in parts]), np.concatenate([v for _, v in parts])
        good = np.isfinite(when) & (value >= 0)
        if family is None or not good.any():
            continue
        slot = np.clip(np.searchsorted(scrapes, when[good], side="left"), 0, len(scrapes) - 1)
        running = Histogram()
        out = []
        order = np.argsort(slot, kind="stable")
        ends = np.searchsorted(slot[order], np.arange(len(scrapes)), side="right")
        values, start = value[good][order], 0
        for end in ends.tolist():
            running.add(values[start:end])
            start = end
            out.append(running.copy())
        yield name, f"{family.prefix}:{HISTOGRAMS[metric]}", out
