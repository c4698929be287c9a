"""A real server's numbers beside the simulated ones: a `/metrics` scrape, or a log with `cached_tokens` a request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem, nearest
from prefixsim.paths import LINE_LIMIT, open_text
from prefixsim.report import facts
from prefixsim.report.exposition import Sample, is_gauge, is_share, parse, split_name
from prefixsim.report.folder import RunFolder
from prefixsim.report.metrics import family_of
from prefixsim.report.prometheus import chosen, tallies
from prefixsim.report.request_log import Logged, read_log
from prefixsim.report.tables import find_table, read_chunks

SCRAPE_LIMIT = 64 << 20
OLD_NAMES = {
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
}
LATENCIES = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
}
HIT_RATES = {  # family -> pairs (numerator, denominator) of counters, the first pair the server has is taken
    "vllm": (
        ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
        ("vllm:prompt_tokens_cached", "vllm:prompt_tokens"),
    ),
    "sglang": (("sglang:cached_tokens", "sglang:prompt_tokens"),),
}
ALIKE = 0.05
"""Prompt tokens may differ by this share before the totals are called another traffic's."""
WORST = 10


@dataclass(slots=True)
class Comparison:
    """rows: what, real, simulated (each None where absent) and whether it is a share. says: sentences. off_points: how far
    the simulated hit rate is above the real one in percentage points (None: one of them is not known)."""

    engine: str
    source: str
    kind: str
    rows: list[tuple[str, float | None, float | None, bool]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    off_points: float | None = None
    worst: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        rows = {
            what: {
                "real": real,
                "simulated": simulated,
                "difference": None if real is None or simulated is None else simulated - real,
            }
            for what, real, simulated, _ in self.rows
        }
        return {
            "engine": self.engine,
            "source": self.source,
            "kind": self.kind,
            "metrics": rows,
            "hit_rate_off_points": self.off_points,
            "says": self.says,
            "worst_requests": self.worst,
        }


def compare(run: RunFolder, source: Path, *, engine: str | None = None, before: Path | None = None) -> Comparison:
    """Compares one engine of the run with a scrape or a request log.

    engine: its name; may be left out where only one engine fits. before: an earlier scrape, taken off the later one.
    Raises InputError where the file is neither, or nothing in it can be compared.
    """
    kind = sniff(source)
    if kind == "scrape":
        return _compare_scrape(run, source, engine, before)
    if before is not None:
        raise InputError("--before is for scrapes; a request log holds its requests only")
    return _compare_log(run, source, engine, kind)


def sniff(path: Path) -> str:
    """ "scrape", "jsonl" or "csv", by the first line that is not empty."""
    if not path.is_file():
        raise InputError(Problem("no such file" if not path.exists() else "not a regular file", file=str(path)))
    with open_text(path) as f:
        for _ in range(1000):
            line = f.readline(LINE_LIMIT)
            if not line:
                break
            text = line.strip()
            if text.startswith("{"):
                return "jsonl"
            if text.startswith("#"):
                return "scrape"
            if text:
                first = text.split("{")[0].split(",")
                return "csv" if len(first) > 1 else "scrape"
    raise InputError(Problem("is empty: expected a /metrics scrape or a request log", file=str(path)))


# ---- scrape ------------------------------------------------------------------------------------------------------


def read_scrape(path: Path) -> dict[str, list[Sample]]:
    """Metric name (old names as the new ones, without `_total`) -> its samples."""
    if not path.is_file():
        raise InputError(Problem("no such file" if not path.exists() else "not a regular file", file=str(path)))
    if path.stat().st_size > SCRAPE_LIMIT:
        raise InputError(Problem(f"is larger than {SCRAPE_LIMIT >> 20} MiB: not a scrape", file=str(path)))
    out: dict[str, list[Sample]] = {}
    with open_text(path) as f:
        for sample in parse(f, str(path)):
            name = sample.name.removesuffix("_total")
            out.setdefault(OLD_NAMES.get(name, name), []).append(sample)
    return out


def _value(scrape: Mapping[str, list[Sample]], name: str, labels: Mapping[str, str]) -> float | None:
    """Sum over the servers' label sets that have `labels` (mean of a share)."""
    found = [
        s.value
        for s in scrape.get(name.removesuffix("_total"), [])
        if all(s.labels.get(k) == v for k, v in labels.items()) and math.isfinite(s.value)
    ]
    if not found:
        return None
    return sum(found) / len(found) if is_share(name) else sum(found)


def _compare_scrape(run: RunFolder, source: Path, engine: str | None, before: Path | None) -> Comparison:
    later = read_scrape(source)
    earlier = read_scrape(before) if before is not None else {}
    name = _pick(run, engine, {n.split(":")[0] for n in later if ":" in n})
    record = chosen(run)[name]
    family = family_of(record)
    out = Comparison(name, str(source), "scrape")
    if family is None:
        raise InputError(
            f"engine '{name}' is of kind '{facts.clean(record.get('kind'), 40)}', whose metrics are not known"
        )

    def real(metric: str, labels: Mapping[str, str] | None = None) -> float | None:
        value = _value(later, metric, labels or {})
        if value is None or is_share(metric):
            return value
        return value - (_value(earlier, metric, labels or {}) or 0)

    out_of = {k: v for k, v in (record.get("counters") or {}).items() if isinstance(record.get("counters"), Mapping)}
    for top, bottom in HIT_RATES[family.prefix]:
        hits, queries = real(top), real(bottom)
        if hits is not None and queries:
            _add_hit_rate(out, hits / queries, _simulated_rate(record, out_of, top, bottom), f"{top} / {bottom}")
            break
    prompt = f"{family.prefix}:prompt_tokens"
    _same_traffic(out, real(prompt), facts.number(record, "prompt_tokens"))
    for spelt in sorted(out_of):
        parsed = split_name(str(spelt))
        if parsed is not None and not is_gauge(parsed[0]):  # the last value of a gauge says nothing about a run
            value = real(parsed[0], parsed[1])
            if value is not None:
                out.rows.append((str(spelt), value, facts.number(out_of, spelt), is_share(parsed[0])))
    _add_latencies(run, out, later, earlier, family.prefix)
    if not out.rows:
        raise InputError(Problem(f"has no metric of {family.prefix} that the run has too", file=str(source)))
    return out


def _simulated_rate(record: Mapping[str, Any], counters: Mapping[str, Any], top: str, bottom: str) -> float | None:
    """The same counters' ratio in the simulation, else its hit rate."""
    hits, queries = facts.number(counters, top), facts.number(counters, bottom)
    return hits / queries if hits is not None and queries else facts.number(record, "hit_rate")


def _add_hit_rate(out: Comparison, real: float, simulated: float | None, how: str) -> None:
    out.rows.append(("hit rate", real, simulated, True))
    if simulated is None:
        out.says.append(f"The server's hit rate is {facts.percent(real, 2)}; the run has none.")
        return
    out.off_points = 100 * (simulated - real)
    where = "above" if out.off_points >= 0 else "below"
    off = f"{abs(out.off_points):.2f} points {where}" if abs(out.off_points) >= 0.005 else "equal to"
    out.says.insert(
        0,
        f"{out.engine}: the simulated hit rate is {off} the real one "
        f"({facts.percent(simulated, 2)} against {facts.percent(real, 2)}, {how}).",
    )


def _same_traffic(out: Comparison, real: float | None, simulated: float | None) -> None:
    if real is None or not simulated:
        return
    if abs(real - simulated) > ALIKE * max(real, simulated):
        factor = f"{real / simulated:.2f} times" if real > 0 else "none of"
        out.says.append(
            f"The server counted {factor} the run's prompt tokens ({facts.integer(real)} against {facts.integer(simulated)}): "
            "compare rates, not totals. If it served other traffic before, give a scrape from then with --before."
        )


def _buckets(scrape: Mapping[str, list[Sample]], metric: str) -> dict[float, float]:
    """Upper bound -> count at or below it, summed over the servers."""
    total: dict[float, float] = {}
    for s in scrape.get(f"{metric}_bucket", []):
        try:
            bound = float(s.labels.get("le", ""))
        except ValueError:
            continue
        total[bound] = total.get(bound, 0) + s.value
    return total


def _add_latencies(
    run: RunFolder, out: Comparison, later: Mapping[str, list[Sample]], earlier: Mapping[str, list[Sample]], prefix: str
) -> None:
    """Percentiles of TTFT, ITL, E2E, the simulated ones through the server's own buckets too, and exact means."""
    real: dict[str, list[tuple[float, float]]] = {}
    names = {short: f"{prefix}:{name}" for short, name in LATENCIES.items()}
    for short, name in names.items():
        first = _buckets(earlier, name)
        rows = sorted((bound, count - first.get(bound, 0)) for bound, count in _buckets(later, name).items())
        if rows and rows[-1][1] > 0:
            real[short] = rows
    if not real:
        return
    bounds = {names[short]: [b for b, _ in rows if math.isfinite(b)] for short, rows in real.items()}
    simulated = tallies(run, [out.engine], bounds)
    for short, rows in real.items():
        mine = simulated[out.engine, names[short]]
        own = [*zip(mine.bounds.tolist(), mine.counts.tolist(), strict=True), (math.inf, mine.total)]
        for q in (50, 99):
            value = _bucket_quantile(own, q / 100) if mine.total else None
            out.rows.append((f"{short} p{q}, s, by buckets", _bucket_quantile(rows, q / 100), value, False))
        count, total = (
            (
                _value(later, f"{names[short]}_{what}", {}),
                _value(earlier, f"{names[short]}_{what}", {}),
            )
            for what in ("count", "sum")
        )
        if count[0] is not None and total[0] is not None and count[0] > (count[1] or 0):
            mean = (total[0] - (total[1] or 0)) / (count[0] - (count[1] or 0))
            out.rows.append((f"{short} mean, s", mean, mine.sum / mine.total if mine.total else None, False))


def _bucket_quantile(rows: Sequence[tuple[float, float]], share: float) -> float | None:
    """Linear within the bucket, as Prometheus' histogram_quantile; the last finite bound beyond it."""
    want, low, below = share * rows[-1][1], 0.0, 0.0
    for bound, count in rows:
        if count >= want:
            if not math.isfinite(bound):
                return low
            return low + (bound - low) * (want - below) / (count - below) if count > below else bound
        low, below = bound, count
    return None


# ---- request log --------------------------------------------------------------------------------------------------


def _compare_log(run: RunFolder, source: Path, engine: str | None, kind: str) -> Comparison:
    name = _pick(run, engine, set())
    record = chosen(run)[name]
    logged = list(read_log(source, kind))
    out = Comparison(name, str(source), "request log")
    if not logged:
        raise InputError(Problem("has no request", file=str(source)))
    if not any(r.said for r in logged):
        hint = "no request says its cached tokens; servers report them on demand (SGLang: --enable-cache-report)"
        raise InputError(Problem(hint, file=str(source)))
    cached = sum(r.cached for r in logged)
    prompts = [r.prompt for r in logged if r.prompt is not None]
    if len(prompts) == len(logged) and sum(prompts) > 0:
        _add_hit_rate(out, cached / sum(prompts), facts.number(record, "hit_rate"), "cached / prompt tokens")
        out.rows.append(("prompt tokens", sum(prompts), facts.number(record, "prompt_tokens"), False))
        _same_traffic(out, sum(prompts), facts.number(record, "prompt_tokens"))
    else:
        out.says.append("The log has no prompt_tokens for every request, so it has no hit rate.")
    out.rows.append(("cached tokens", cached, facts.number(record, "cached_tokens"), False))
    out.rows.append(("requests", len(logged), facts.number(record, "requests"), False))
    _each_request(run, out, logged, name)
    return out


def _each_request(run: RunFolder, out: Comparison, logged: Sequence[Logged], engine: str) -> None:
    path = find_table(run.path, "requests")
    if path is None:
        out.says.append("The run has no requests table, so single requests were not compared.")
        return
    simulated: dict[str, float] = {}
    order: list[float] = []
    for chunk in read_chunks(path, ("cached_tokens",), ("engine", "id")):
        for which, name, value in zip(
            chunk.texts["engine"], chunk.texts["id"], chunk.numbers["cached_tokens"].tolist(), strict=True
        ):
            if which == engine:
                simulated[name] = value
                order.append(value)
    by_id = [(r.id, r.cached, simulated[r.id]) for r in logged if r.id is not None and r.id in simulated]
    if by_id:
        pairs, how = by_id, "by id"
    elif len(order) == len(logged):
        pairs, how = (
            [(r.id or str(i), r.cached, v) for i, (r, v) in enumerate(zip(logged, order, strict=True))],
            "by position",
        )
    else:
        out.says.append("Single requests were not compared: ids do not match and the numbers of requests differ.")
        return
    exact = sum(a == b for _, a, b in pairs)
    mean = sum(abs(a - b) for _, a, b in pairs) / len(pairs)
    out.says.append(
        f"Of {len(pairs):,} requests matched {how}, {exact:,} ({facts.percent(exact / len(pairs))}) have exactly the same cached "
        f"tokens; the mean absolute difference is {mean:,.1f} tokens."
    )
    if len(pairs) < len(logged):
        out.says.append(f"{len(logged) - len(pairs):,} requests of the log are not in the run.")
    far = sorted((p for p in pairs if p[1] != p[2]), key=lambda p: -abs(p[1] - p[2]))[:WORST]
    out.worst = [{"id": i, "real": a, "simulated": b} for i, a, b in far]


def _pick(run: RunFolder, engine: str | None, prefixes: set[str]) -> str:
    """The engine to compare: the one named, else the only one whose family the file speaks of, else the only one."""
    engines = chosen(run)
    if engine is not None:
        chosen(run, [engine])
        return engine
    fit = [n for n, e in engines.items() if not prefixes or getattr(family_of(e), "prefix", None) in prefixes]
    if len(fit) == 1:
        return fit[0]
    if not fit:
        raise InputError(
            f"the file has metrics of {', '.join(sorted(prefixes)[:6])}, the run has engines of other kinds: {', '.join(engines)}"
        )
    raise InputError(f"several engines could be compared: name one with --engine{nearest('', fit)}")
