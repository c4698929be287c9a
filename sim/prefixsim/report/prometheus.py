"""A run as Prometheus text, under the engines' own metric names: a scrape at the end of the run.

`openmetrics.time_series` is the run over time. Every metric carries the label `simulated_engine`, the engine's name in the
scenario.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prefixsim.errors import InputError, nearest
from prefixsim.report import facts
from prefixsim.report.collect import FINISHED
from prefixsim.report.exposition import is_gauge, spell_bound, spell_labels, spell_value, split_name
from prefixsim.report.folder import RunFolder
from prefixsim.report.metrics import COLUMNS, OPTIONAL, Finished, family_of
from prefixsim.report.tables import F64, find_table, read_chunks

HELP = "Simulated by prefixsim"


class Tally:
    """Counts at or below each of `bounds` (ascending), count and sum of all values."""

    def __init__(self, bounds: Sequence[float]) -> None:
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


def labels_of(run: RunFolder, name: str, engine: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an engine's metrics."""
    model, family = facts.get(run.summary, "hardware", "model"), family_of(engine)
    labels = {"model_name": facts.clean(model if isinstance(model, str) else "unknown", 100)}
    return labels | dict(family.labels if family else {}) | {"simulated_engine": facts.clean(name, 100)}


def chosen(run: RunFolder, names: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """The engines asked for (all without names). Raises InputError with the nearest name for one that is not there."""
    engines = facts.engines_of(run.summary)
    for name in names:
        if name not in engines:
            raise InputError(f"the run has no engine '{facts.clean(name, 60)}'{nearest(name, engines)}")
    return {name: engines[name] for name in names} if names else engines


def alike_engines(run: RunFolder, names: Sequence[str] = ()) -> str:
    """Which engines share a family and so its metrics' names, in words; "" where none do."""
    kinds: dict[str, list[str]] = {}
    for name, engine in chosen(run, names).items():
        if family := family_of(engine):
            kinds.setdefault(family.prefix, []).append(facts.clean(name, 60))
    return "; ".join(f"{', '.join(alike)} have the same metrics" for alike in kinds.values() if len(alike) > 1)


def snapshot(run: RunFolder, names: Sequence[str] = ()) -> Iterator[str]:
    """Lines of a scrape at the end of the run: the engines' own counters, and histograms over all finished requests."""
    engines = chosen(run, names)
    families: dict[str, tuple[str, list[str]]] = {}

    def put(family: str, kind: str, line: str) -> None:
        families.setdefault(family, (kind, []))[1].append(line)

    for name, engine in engines.items():
        base = labels_of(run, name, engine)
        for spelt, value in _counters(engine):
            parsed = split_name(spelt)
            if parsed is None:
                continue
            metric, extra = parsed
            kind = "gauge" if is_gauge(metric) else "counter"
            metric = metric if kind == "gauge" or metric.endswith("_total") else f"{metric}_total"
            put(metric, kind, f"{metric}{spell_labels({**base, **extra})} {spell_value(value)}")
    for (name, metric), tally in tallies(run, list(engines)).items():
        if tally.total:
            for line in histogram_lines(metric, labels_of(run, name, engines[name]), tally):
                put(metric, "histogram", line)
    for metric, (kind, lines) in families.items():
        yield f"# HELP {metric} {HELP}."
        yield f"# TYPE {metric} {kind}"
        yield from lines


def _counters(engine: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(spelt name, value) of the engine's counters. SGLang's cached tokens are split by source, as it labels them."""
    counters = engine.get("counters")
    for spelt in sorted(counters) if isinstance(counters, Mapping) else ():
        value = facts.number(counters, spelt)
        if value is None:
            continue
        if str(spelt).startswith("sglang:cached_tokens_total{"):
            continue  # a part of the total, which is split here
        if spelt == "sglang:cached_tokens_total":
            host = facts.number(engine, "cached_host_tokens") or 0.0
            yield f"{spelt}{{cache_source=device}}", value - host
            if host:
                yield f"{spelt}{{cache_source=host}}", host
        else:
            yield str(spelt), value


def own_counters(engine: Mapping[str, Any]) -> dict[str, float]:
    """The engine's counters without labels, by their names without prefix and `_total`."""
    counters = engine.get("counters")
    names = [str(k) for k in counters if "{" not in str(k)] if isinstance(counters, Mapping) else []
    known = {k.partition(":")[2].removesuffix("_total"): facts.number(counters, k) for k in names if ":" in k}
    return {k: v for k, v in known.items() if v is not None}


def histogram_lines(metric: str, labels: Mapping[str, str], tally: Tally) -> Iterator[str]:
    """The lines of a histogram."""
    for bound, count in zip(tally.bounds.tolist(), tally.counts.tolist(), strict=True):
        yield f"{metric}_bucket{spell_labels({**labels, 'le': spell_bound(bound)})} {spell_value(count)}"
    yield f"{metric}_bucket{spell_labels({**labels, 'le': '+Inf'})} {spell_value(tally.total)}"
    yield f"{metric}_count{spell_labels(labels)} {spell_value(tally.total)}"
    yield f"{metric}_sum{spell_labels(labels)} {spell_value(tally.sum)}"


def tallies(
    run: RunFolder, names: Sequence[str], bounds: Mapping[str, Sequence[float]] | None = None
) -> dict[tuple[str, str], Tally]:
    """(engine, full metric name) -> its histogram, from the run's tables. bounds: other bounds for some metrics, by full name;
    then only those metrics."""
    engines = facts.engines_of(run.summary)
    families = {name: family for name in names if (family := family_of(engines[name]))}
    out = {
        (name, full): Tally((bounds or {}).get(full, h.bounds))
        for name, family in families.items()
        for h in family.histograms
        if (full := f"{family.prefix}:{h.name}") in (bounds or {full})
    }
    gaps = find_table(run.path, "gaps")
    for name, _, requests in finished(run, families):
        for h in families[name].histograms:
            tally = out.get((name, f"{families[name].prefix}:{h.name}"))
            if tally is not None and not (gaps and h.weight):  # the gaps table has each gap
                tally.add(h.value(requests), h.weight(requests) if h.weight else None)
    for chunk in read_chunks(gaps, ("gap_s", "count"), ("engine",)) if gaps else ():
        for name, mine in chunk.by("engine", families):
            tally = out.get((name, f"{families[name].prefix}:inter_token_latency_seconds"))
            if tally is not None:
                tally.add(chunk.numbers["gap_s"][mine], chunk.numbers["count"][mine])
    return out


def finished(run: RunFolder, names: Collection[str]) -> Iterator[tuple[str, F64, Finished]]:
    """(engine, replica of each, finished requests) of the requests table, chunk by chunk."""
    path = find_table(run.path, "requests")
    columns = ("replica", *COLUMNS)
    for chunk in read_chunks(path, columns, ("engine", "status"), OPTIONAL) if path else ():
        done = chunk.where("status", FINISHED)
        unknown = np.full(chunk.rows, np.nan)
        for name, rows in chunk.by("engine", names):
            mine = done & rows
            picked = {c: chunk.numbers.get(c, unknown)[mine] for c in columns}
            yield name, picked.pop("replica"), Finished(**picked)
