"""The run over time as a Prometheus would have scraped it: format, totals, and what each scrape sees."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import write_run

from prefixsim.errors import InputError
from prefixsim.report import openmetrics
from prefixsim.report.exposition import parse, spell_bound
from prefixsim.report.folder import RunFolder, open_run
from prefixsim.report.metrics import FAMILIES, Finished
from prefixsim.report.prometheus import alike_engines, snapshot

START, EVERY = 1_700_000_000, 2.0
LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\} \S+ \d+\.\d{3}')
Points = list[tuple[float, float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return open_run(write_run(tmp_path_factory.mktemp("openmetrics") / "run", n=80, replicas=2))


@pytest.fixture(scope="module")
def lines(run: RunFolder) -> list[str]:
    return list(openmetrics.time_series(run, every_s=EVERY, start_unix_s=START))


@pytest.fixture(scope="module")
def series(lines: list[str]) -> dict[str, dict[tuple[tuple[str, str], ...], Points]]:
    """Sample name -> labels -> (seconds of the run, value)."""
    out: dict[str, dict[tuple[tuple[str, str], ...], Points]] = defaultdict(lambda: defaultdict(list))
    for sample, line in zip(parse(lines, "m"), (x for x in lines if not x.startswith("#")), strict=True):
        out[sample.name][tuple(sorted(sample.labels.items()))].append((float(line.split()[-1]) - START, sample.value))
    return out


def rows_of(run: RunFolder, engine: str, replica: int | None = None) -> list[dict[str, Any]]:
    rows = csv.DictReader((run.path / "requests.csv").read_text().splitlines())
    return [r for r in rows if r["engine"] == engine and replica in (None, int(r["replica"]))]


def of(series: Any, name: str, **labels: str) -> Points:
    """The one series of a name that has these labels."""
    [points] = [p for have, p in series[name].items() if set(labels.items()) <= set(have)]
    return points


def test_is_openmetrics(lines: list[str], series: Any) -> None:
    assert lines[-1] == "# EOF"
    assert all(LINE.fullmatch(line) for line in lines if not line.startswith("#"))
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    counters = {line.split()[2] for line in lines if line.startswith("# TYPE") and line.endswith(" counter")}
    assert not any(f.endswith("_total") for f in counters)
    for name, by_labels in series.items():
        for labels, points in by_labels.items():
            stamps = [t for t, _ in points]
            assert stamps == [EVERY * i for i in range(len(stamps))], name
            if name.endswith(("_total", "_bucket", "_count", "_sum")):
                assert [v for _, v in points] == sorted(v for _, v in points), (name, labels)


def test_every_metric_of_the_catalogue_is_there_and_no_other(lines: list[str]) -> None:
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    expected = set()
    for prefix, f in FAMILIES.items():
        names = [g.name for g in f.gauges] + [c.name for c in f.counters] + [h.name for h in f.histograms] + [*f.counts]
        names += [n for n in (f.usage, f.generated, f.hit_rate, f.throughput) if n]
        expected |= {f"{prefix}:{name}" for name in names}
    assert families == expected


def test_each_replica_is_an_instance_and_ends_at_its_totals(run: RunFolder, series: Any) -> None:
    totals = {
        "vllm": ("vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total", "vllm:request_success_total", {}),
        "sglang": (
            "sglang:cached_tokens_total",
            "sglang:prompt_tokens_total",
            "sglang:num_requests_total",
            {"cache_source": "device"},
        ),
    }
    for name, (hits, prompts, done, extra) in totals.items():
        for replica in (0, 1):
            rows, where = rows_of(run, name, replica), {"instance": f"{name}/{replica}", "job": "prefixsim"}
            assert of(series, hits, **where, **extra)[-1][1] == sum(int(r["cached_tokens"]) for r in rows)
            assert of(series, prompts, **where)[-1][1] == sum(int(r["lookup_tokens"]) for r in rows)
            assert of(series, done, **where)[-1][1] == len(rows) == 40
            output = sum(int(r["output_tokens"]) for r in rows)
            assert of(series, f"{name}:generation_tokens_total", **where)[-1][1] == output
            for h in FAMILIES[name].histograms:
                weight = output - len(rows) if h.weight else len(rows)
                assert of(series, f"{name}:{h.name}_count", **where)[-1][1] == weight
                assert of(series, f"{name}:{h.name}_bucket", le="+Inf", **where)[-1][1] == weight


def test_a_scrape_sees_what_had_happened_by_then(run: RunFolder, series: Any) -> None:
    rows = rows_of(run, "vllm", 1)
    where = {"instance": "vllm/1"}
    for t, value in of(series, "vllm:e2e_request_latency_seconds_bucket", le="5.0", **where):
        by_then = [r for r in rows if float(r["finish_s"]) <= t]
        assert value == sum(float(r["finish_s"]) - float(r["released_s"]) <= 5 for r in by_then)
    for t, value in of(series, "vllm:time_to_first_token_seconds_sum", **where):
        ttft = [float(r["first_token_s"]) - float(r["released_s"]) for r in rows if float(r["first_token_s"]) <= t]
        assert value == pytest.approx(sum(ttft))
    for t, value in of(series, "vllm:prefix_cache_queries_total", **where):
        assert value == sum(int(r["lookup_tokens"]) for r in rows if float(r["admitted_s"]) <= t)
    for t, value in of(series, "vllm:generation_tokens_total", **where):
        low = sum(int(r["output_tokens"]) for r in rows if float(r["finish_s"]) <= t)
        evenly = low
        for r in rows:
            first, last = float(r["first_token_s"]), float(r["finish_s"])
            if first <= t < last:
                evenly += 1 + (int(r["output_tokens"]) - 1) * (t - first) / (last - first)
        assert low <= value
        assert value == pytest.approx(evenly, abs=1.001)


def test_gauges_are_the_timelines_and_end_at_nothing(run: RunFolder, series: Any) -> None:
    steps = [r for r in csv.DictReader((run.path / "timeline.csv").read_text().splitlines()) if r["engine"] == "vllm"]
    for replica in (0, 1):
        mine = [r for r in steps if int(r["replica"]) == replica]
        ends = max(float(r["end_s"]) for r in mine)
        for metric, column, scale in (
            ("vllm:num_requests_running", "running", 1),
            ("vllm:kv_cache_usage_perc", "kv_used_tokens", 66000),
        ):
            points = of(series, metric, instance=f"vllm/{replica}")
            for t, value in points:
                before = [r for r in mine if float(r["start_s"]) <= t]
                assert value == (pytest.approx(float(before[-1][column]) / scale) if t < ends else 0)
            assert points[-1][1] == 0
    hit_rate = of(series, "sglang:cache_hit_rate", instance="sglang/0")
    for t, value in hit_rate:
        before = [r for r in rows_of(run, "sglang", 0) if float(r["admitted_s"]) <= t]
        last = max(before, key=lambda r: float(r["admitted_s"]), default=None)
        assert value == (pytest.approx(int(last["cached_tokens"]) / int(last["lookup_tokens"])) if last else 0)


def test_the_snapshot_has_the_same_histograms_but_exact_gaps(run: RunFolder, series: Any) -> None:
    now = {(s.name, s.labels["simulated_engine"], s.labels.get("le")): s.value for s in parse(snapshot(run), "m")}
    for name, family in FAMILIES.items():
        for h in family.histograms:
            for bound in ("+Inf", spell_bound(h.bounds[len(h.bounds) // 2])):
                both = [of(series, f"{name}:{h.name}_bucket", instance=f"{name}/{r}", le=bound)[-1][1] for r in (0, 1)]
                if not h.weight:
                    assert now[f"{name}:{h.name}_bucket", name, bound] == sum(both)
    gaps = [r for r in csv.DictReader((run.path / "gaps.csv").read_text().splitlines()) if r["engine"] == "vllm"]
    assert now["vllm:inter_token_latency_seconds_count", "vllm", None] == sum(int(r["count"]) for r in gaps)


def test_a_request_of_one_token_generates_it_when_it_is_there() -> None:
    one = Finished(*(np.array([float(v)]) for v in (0, 1, 3, 3, 100, 0, 0, 1, 0)))
    assert openmetrics._generated(np.arange(6.0), one).tolist() == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]
    at_once = Finished(*(np.array([float(v)]) for v in (0, 1, 3, 3, 100, 0, 0, 7, 0)))
    assert openmetrics._generated(np.arange(6.0), at_once).tolist() == [0, 0, 0, 7, 7, 7]  # type: ignore[union-attr]
    unknown = Finished(*(np.array([float(v)]) for v in (0, 1, 3, 3, 100, 0, 0, "nan", 0)))
    assert openmetrics._generated(np.arange(6.0), unknown) is None


def test_too_many_lines_are_refused_with_what_would_fit(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "MAX_SAMPLES", 10_000)
    with pytest.raises(InputError, match=r"--every 0\.1: .* more than 10,000 lines; take (\d+) or more") as caught:
        list(openmetrics.time_series(run, every_s=0.1))
    least = int(re.findall(r"take (\d+)", str(caught.value))[0])
    assert len(list(openmetrics.time_series(run, every_s=least))) < 10_000


def test_bounds_are_spelt_as_the_engines_spell_them() -> None:
    assert [spell_bound(b) for b in (0.3, 1, 120, 100_000, 1e6, 1.1e6)] == [
        "0.3",
        "1.0",
        "120.0",
        "100000.0",
        "1e+06",
        "1.1e+06",
    ]


def test_promtool_takes_it(lines: list[str], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    (tmp_path / "run.om").write_text("\n".join(lines) + "\n")
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "run.om"), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    assert list((tmp_path / "data").glob("*/chunks"))


def test_engines_of_one_family_are_named(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", n=20))
    assert alike_engines(run) == ""
    for engine in run.summary["engines"].values():
        engine["kind"] = "vllm@0.33"
    assert alike_engines(run) == "sglang, vllm have the same metrics"
    assert alike_engines(run, ["vllm"]) == ""


def test_what_an_engine_did_not_count_stays_zero_and_host_hits_are_counted_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=40)
    summary = json.loads((folder / "summary.json").read_text())
    vllm, sglang = summary["engines"]["vllm"], summary["engines"]["sglang"]
    vllm["counters"]["vllm:prefix_cache_queries"] = 0  # caching is off
    sglang["cached_host_tokens"] = 1000
    sglang["counters"] |= {'sglang:cached_tokens_total{cache_source="host"}': 1000}
    (folder / "summary.json").write_text(json.dumps(summary))

    def lines_of(text: Iterable[str], name: str) -> list[str]:
        return [line for line in text if line.startswith(f"{name}{{")]

    over_time = list(openmetrics.time_series(open_run(folder), every_s=1e6))
    for name in ("prefix_cache_queries", "external_prefix_cache_queries", "external_prefix_cache_hits"):
        assert {line.split()[-2] for line in lines_of(over_time, f"vllm:{name}_total")} == {"0"}
    assert float(lines_of(over_time, "vllm:prompt_tokens_total")[-1].split()[-2]) == vllm["prompt_tokens"]
    now = list(parse(snapshot(open_run(folder)), "m"))
    cached = {s.labels["cache_source"]: s.value for s in now if s.name == "sglang:cached_tokens_total"}
    assert cached == {"device": sglang["cached_tokens"] - 1000, "host": 1000}
    spelt = [(s.name, tuple(sorted(s.labels.items()))) for s in now]
    assert len(spelt) == len(set(spelt))

    vllm["counters"] |= {"vllm:external_prefix_cache_queries": 7, "vllm:external_prefix_cache_hits": 0}
    (folder / "summary.json").write_text(json.dumps(summary))
    with_tier = list(openmetrics.time_series(open_run(folder), every_s=1e6))
    queries = lines_of(with_tier, "vllm:external_prefix_cache_queries_total")[-1]
    assert float(queries.split()[-2]) == vllm["prompt_tokens"] - vllm["cached_tokens"]
