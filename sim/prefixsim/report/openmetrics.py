"""A run as OpenMetrics with time stamps, as if each of its replicas had been scraped every few seconds.

`promtool tsdb create-blocks-from openmetrics` loads it into a Prometheus. Gauges come from the timeline, counters and
histograms from the requests: they are exact at every scrape, except where `Family` and the text of `# HELP` say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError
from prefixsim.report import facts
from prefixsim.report.collect import steps_made
from prefixsim.report.exposition import spell_bound, spell_labels, spell_value
from prefixsim.report.folder import RunFolder
from prefixsim.report.metrics import Family, Finished, Histogram, family_of
from prefixsim.report.prometheus import HELP, chosen, finished, labels_of, own_counters
from prefixsim.report.series import busy
from prefixsim.report.tables import F64, find_table, read_chunks

MAX_SAMPLES = 10_000_000
"""Lines of one export: about 3 GB."""
JOB = "prefixsim"
"""Label `job`; with `instance` ("engine/replica") it is what a Prometheus adds to what it scrapes, and boards choose by."""
_STEPS = ("replica", "start_s", "end_s", "running", "waiting", "kv_used_tokens", "preemptions", "evicted_tokens")


@dataclass(frozen=True, slots=True)
class Series:
    """A metric with its labels over all scrapes: `values` float64 (scrapes,), or of a histogram counts at or below each of
    `bounds` and of all, (scrapes, bounds + 1), and sums."""

    kind: str
    labels: Mapping[str, str]
    values: F64
    bounds: tuple[float, ...] = ()
    sums: F64 | None = None
    says: str = ""


@dataclass(frozen=True, slots=True)
class _Replica:
    """What the tables have of a replica: `steps` float64 (rows, len(_STEPS)) in time order, and its finished requests.
    counters: those of the engine, all replicas together, by their names without prefix and `_total`."""

    steps: F64
    requests: Finished
    capacity_tokens: float | None
    whole: bool
    counters: Mapping[str, float]


def time_series(
    run: RunFolder, names: Sequence[str] = (), *, every_s: float = 15.0, start_unix_s: float = 0.0
) -> Iterator[str]:
    """OpenMetrics lines: the run as if scraped every `every_s` seconds, the run's time 0 at `start_unix_s`.

    Raises InputError when the run has no timeline or would need more than MAX_SAMPLES lines.
    """
    engines = {name: e for name, e in chosen(run, names).items() if family_of(e)}
    replicas = _replicas(run, engines)
    end = max((_end(r) for r in replicas.values()), default=0.0)
    families = {name: family for name, engine in engines.items() if (family := family_of(engine))}
    lines = sum(_lines_a_scrape(families[name]) for name, _ in replicas)
    if not every_s > 0 or (end / every_s + 2) * lines > MAX_SAMPLES:
        least = f"; take {end * lines / MAX_SAMPLES + 1:.0f} or more, or one engine (--engine)" if lines else ""
        raise InputError(f"--every {every_s:g}: {end:,.0f} s would need more than {MAX_SAMPLES:,} lines{least}")
    scrapes: F64 = np.arange(0, int(end / every_s) + 2, dtype=np.float64) * every_s
    metrics: dict[str, list[Series]] = {}
    for (name, number), replica in replicas.items():
        labels = labels_of(run, name, engines[name]) | {"instance": f"{facts.clean(name, 100)}/{number}", "job": JOB}
        for metric, series in _series(families[name], replica, labels, scrapes):
            metrics.setdefault(f"{families[name].prefix}:{metric}", []).append(series)
    stamps = [f" {start_unix_s + t:.3f}" for t in scrapes.tolist()]
    for metric, all_series in metrics.items():
        yield f"# HELP {metric} {HELP}{'; ' + all_series[0].says if all_series[0].says else ''}."
        yield f"# TYPE {metric} {all_series[0].kind}"
        for series in all_series:
            yield from _lines(metric, series, stamps)
    yield "# EOF"


def _lines(metric: str, series: Series, stamps: Sequence[str]) -> Iterator[str]:
    spelt = spell_labels(series.labels)
    if series.sums is None:
        sample = f"{metric}_total{spelt} " if series.kind == "counter" else f"{metric}{spelt} "
        for value, stamp in zip(series.values.tolist(), stamps, strict=True):
            yield sample + spell_value(value) + stamp
        return
    bounds = [*(spell_bound(b) for b in series.bounds), "+Inf"]
    names = [f"{metric}_bucket{spell_labels({**series.labels, 'le': b})} " for b in bounds]
    for counts, total, stamp in zip(series.values.tolist(), series.sums.tolist(), stamps, strict=True):
        for name, count in zip(names, counts, strict=True):  # all of a scrape's lines together, as OpenMetrics wants
            yield name + spell_value(count) + stamp
        yield f"{metric}_count{spelt} {spell_value(counts[-1])}{stamp}"
        yield f"{metric}_sum{spelt} {spell_value(total)}{stamp}"


# ---- tables ------------------------------------------------------------------------------------------------------


def _replicas(run: RunFolder, engines: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], _Replica]:
    path = find_table(run.path, "timeline")
    if path is None:
        raise InputError(f"{run.path}: has no timeline table, so there is nothing over time to export")
    steps: dict[tuple[str, int], list[F64]] = {}
    for chunk in read_chunks(path, _STEPS, ("engine",)):
        table = np.column_stack([chunk.numbers[c] for c in _STEPS])
        good = np.isfinite(table).all(axis=1)
        for name, mine in chunk.by("engine", engines):
            for number, rows in _by_replica(table[:, 0], mine & good):
                steps.setdefault((name, number), []).append(table[rows])
    requests: dict[tuple[str, int], list[Finished]] = {}
    for name, replica, some in finished(run, engines):
        for number, rows in _by_replica(replica, np.ones(len(replica), dtype=np.bool_)):
            requests.setdefault((name, number), []).append(Finished(*(c[rows] for c in _columns(some))))
    made, order = steps_made(run), list(engines)
    kept = {name: sum(len(t) for key, parts in steps.items() if key[0] == name for t in parts) for name in engines}
    out = {}
    for name, number in sorted(steps, key=lambda key: (order.index(key[0]), key[1])):
        table = np.concatenate(steps[name, number])
        parts = requests.get((name, number), [Finished(*(np.empty(0) for _ in fields(Finished)))])
        out[name, number] = _Replica(
            table[np.argsort(table[:, 1], kind="stable")],
            Finished(*(np.concatenate(c) for c in zip(*(_columns(p) for p in parts), strict=True))),
            _capacity(engines[name], number),
            (steps_of := made.get(name)) is not None and kept[name] >= steps_of,
            own_counters(engines[name]),
        )
    return out


def _by_replica(replica: F64, rows: npt.NDArray[np.bool_]) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    for number in np.unique(replica[rows & (replica >= 0)]).tolist():
        yield int(number), rows & (replica == number)


def _columns(requests: Finished) -> list[F64]:
    return [getattr(requests, f.name) for f in fields(Finished)]


def _capacity(engine: Mapping[str, Any], number: int) -> float | None:
    """KV pool of one replica in tokens, where the summary says it."""
    replicas = engine.get("replicas")
    for replica in replicas if isinstance(replicas, list) else ():
        if facts.number(replica, "replica") == number:
            return facts.number(replica, "capacity_tokens")
    return None


def _end(replica: _Replica) -> float:
    return max(float(replica.steps[:, 2].max(initial=0)), float(np.nanmax(replica.requests.finish_s, initial=0)))


def _lines_a_scrape(family: Family) -> int:
    """At most."""
    simple = len(family.gauges) + len(family.counts) + len(family.counters) + 4
    return simple + sum(len(h.bounds) + 3 for h in family.histograms)


# ---- series ------------------------------------------------------------------------------------------------------


def _series(family: Family, replica: _Replica, labels: Mapping[str, str], scrapes: F64) -> Iterator[tuple[str, Series]]:
    steps, requests = {name: replica.steps[:, i] for i, name in enumerate(_STEPS)}, replica.requests
    start, end = steps["start_s"], steps["end_s"]

    def gauge(column: str) -> F64:
        return _at(scrapes, *busy(start, end, steps[column], replica.whole))

    for g in family.gauges:
        values = gauge(g.column) if g.column else np.ones(len(scrapes))
        yield g.name, Series("gauge", {**labels, **(g.labels or {})}, values)
    if replica.capacity_tokens:
        yield family.usage, Series("gauge", labels, gauge("kv_used_tokens") / replica.capacity_tokens)
    for metric, column in family.counts.items():
        yield metric, Series("counter", labels, _at(scrapes, start, steps[column]))
    for counter in family.counters:
        adds = counter.adds(requests)
        if np.isfinite(adds).any():
            total = replica.counters.get(counter.name)
            nothing = total == 0 or (total is None and counter.rare)
            values = _grown(scrapes, getattr(requests, counter.at), np.zeros(len(adds)) if nothing else adds)
            yield counter.name, Series("counter", {**labels, **(counter.labels or {})}, values)
    tokens = _generated(scrapes, requests)
    if tokens is not None and family.generated:
        says = "a request's tokens evenly from its first to its last"
        yield family.generated, Series("counter", labels, tokens, says=says)
    if tokens is not None and family.throughput:
        rate = np.diff(tokens, prepend=0.0) / (scrapes[1] - scrapes[0])
        yield family.throughput, Series("gauge", labels, rate, says="tokens a second since the scrape before")
    if family.hit_rate:
        says = "of the requests last admitted together"
        yield family.hit_rate, Series("gauge", labels, _hit_rate(scrapes, requests), says=says)
    for histogram in family.histograms:
        counted = _histogram(histogram, requests, labels, scrapes)
        if counted.values[-1, -1] > 0:
            yield histogram.name, counted


def _at(scrapes: F64, time: F64, value: F64) -> F64:
    """A step function's value at each scrape; 0 before its first time."""
    index = np.searchsorted(time, scrapes, side="right") - 1
    return np.where(index >= 0, value[index], 0.0)


def _slots(scrapes: F64, when: F64) -> npt.NDArray[np.int64]:
    """The first scrape that sees what happened at `when`."""
    return np.clip(np.searchsorted(scrapes, when, side="left"), 0, len(scrapes) - 1)


def _grown(scrapes: F64, when: F64, adds: F64) -> F64:
    good = np.isfinite(when) & np.isfinite(adds)
    return np.cumsum(np.bincount(_slots(scrapes, when[good]), adds[good], len(scrapes)))


def _generated(scrapes: F64, r: Finished) -> F64 | None:
    """Output tokens so far at each scrape, a request's spread evenly from its first to its last; None where not known."""
    if not np.isfinite(r.output_tokens).any():
        return None
    first = _grown(scrapes, r.first_token_s, np.minimum(r.output_tokens, 1))
    long = (r.output_tokens > 1) & (r.finish_s > r.first_token_s)
    start, stop, more = r.first_token_s[long], r.finish_s[long], r.output_tokens[long] - 1
    # all are whole at their end; a scrape within some adds their shares: sum of rate * (scrape - start) over those under way
    by_start, by_stop = np.argsort(start, kind="stable"), np.argsort(stop, kind="stable")
    begun = np.searchsorted(start[by_start], scrapes, side="right")
    ended = np.searchsorted(stop[by_stop], scrapes, side="right")
    rate = more / (stop - start)

    def so_far(values: F64, order: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> F64:
        return np.concatenate([[0.0], np.cumsum(values[order])])[count]

    going = so_far(rate, by_start, begun) - so_far(rate, by_stop, ended)
    since = so_far(rate * start, by_start, begun) - so_far(rate * start, by_stop, ended)
    done = so_far(more, by_stop, ended)
    total = first + np.floor(done + np.maximum(going * scrapes - since, 0) + 1e-6)
    at_once = (r.output_tokens > 1) & ~long
    total += _grown(scrapes, r.finish_s[at_once], r.output_tokens[at_once] - 1)
    return np.maximum.accumulate(np.minimum(total, np.nansum(r.output_tokens)))


def _hit_rate(scrapes: F64, r: Finished) -> F64:
    """Share of the prompt tokens found in the cache, of the requests that were last admitted at one instant."""
    when, which = np.unique(r.admitted_s, return_inverse=True)
    if not len(when):
        return np.zeros(len(scrapes))
    hits, tokens = np.bincount(which, r.cached_tokens), np.bincount(which, r.lookup_tokens)
    return _at(scrapes, when, np.divide(hits, tokens, out=np.zeros(len(when)), where=tokens > 0))


def _histogram(histogram: Histogram, r: Finished, labels: Mapping[str, str], scrapes: F64) -> Series:
    when, value = getattr(r, histogram.at), histogram.value(r)
    weight = histogram.weight(r) if histogram.weight else np.ones(len(value))
    good = np.isfinite(when) & (value >= 0) & (weight > 0)
    when, value, weight = when[good], value[good], weight[good]
    width = len(histogram.bounds) + 1
    place = _slots(scrapes, when) * width + np.searchsorted(histogram.bounds, value, side="left")
    counts = np.bincount(place, weight, len(scrapes) * width).reshape(len(scrapes), width)
    sums: F64 = np.cumsum(np.bincount(_slots(scrapes, when), value * weight, len(scrapes)))
    return Series("histogram", labels, counts.cumsum(axis=0).cumsum(axis=1), histogram.bounds, sums, histogram.says)
