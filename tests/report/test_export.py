"""Exports: every number in them is the run's, and their formats are the ones that others read."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import HOSTILE, write_run

from prefixsim.errors import InputError, MissingExtraError, OutputError
from prefixsim.report.export import export
from prefixsim.report.exposition import is_gauge, is_share, parse, spell_labels, split_name
from prefixsim.report.folder import RunFolder, open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return open_run(write_run(tmp_path_factory.mktemp("export") / "run", n=80, replicas=2))


def text_of(run: RunFolder, fmt: str, tmp_path: Path, **options: Any) -> str:
    export(run, fmt, tmp_path / "out", **options)
    return (tmp_path / "out").read_text()


# ---- tables


@pytest.mark.parametrize("table", ["requests", "timeline", "gaps"])
def test_csv_of_a_csv_run_is_the_same_table(run: RunFolder, tmp_path: Path, table: str) -> None:
    mine = list(csv.reader(text_of(run, "csv", tmp_path, table=table).splitlines()))
    theirs = list(csv.reader((run.path / f"{table}.csv").read_text().splitlines()))
    assert mine[0] == theirs[0]
    assert len(mine) == len(theirs)
    for a, b in zip(mine[1:], theirs[1:], strict=True):
        for x, y in zip(a, b, strict=True):
            assert x == y or float(x) == float(y)


def test_csv_from_npz(run: RunFolder, tmp_path: Path) -> None:
    rows = list(csv.DictReader((run.path / "gaps.csv").read_text().splitlines()))
    (tmp_path / "summary.json").write_bytes((run.path / "summary.json").read_bytes())
    gaps = np.array([float(r["gap_s"]) for r in rows])
    np.savez(
        tmp_path / "gaps.npz", engine=np.array([r["engine"] for r in rows]), gap_s=gaps, count=np.full(len(rows), 3)
    )
    mine = list(csv.DictReader(text_of(open_run(tmp_path), "csv", tmp_path, table="gaps").splitlines()))
    assert [m["count"] for m in mine] == ["3"] * len(rows)
    assert [float(m["gap_s"]) for m in mine] == [float(r["gap_s"]) for r in rows]
    gaps[0] = np.nan
    np.savez(
        tmp_path / "gaps.npz", engine=np.array([r["engine"] for r in rows]), gap_s=gaps, count=np.full(len(rows), 3)
    )
    with pytest.raises(InputError, match=r"gaps.npz:1: gap_s: expected a number from 0 up, found 'nan'"):
        export(open_run(tmp_path), "csv", tmp_path / "out.csv", table="gaps")


def test_one_engine_only(run: RunFolder, tmp_path: Path) -> None:
    rows = list(csv.DictReader(text_of(run, "csv", tmp_path, engines=["sglang"]).splitlines()))
    assert {r["engine"] for r in rows} == {"sglang"}
    assert len(rows) == 80


def test_parquet(run: RunFolder, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    export(run, "parquet", tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    rows = list(csv.DictReader((run.path / "requests.csv").read_text().splitlines()))
    assert table.column("id").to_pylist() == [r["id"] for r in rows]
    assert table.column("cached_tokens").to_pylist() == [int(r["cached_tokens"]) for r in rows]
    assert table.column("first_token_s").to_pylist() == [float(r["first_token_s"]) for r in rows]


def test_parquet_without_pyarrow_names_the_extra(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"prefixsim\[parquet\]"):
        export(run, "parquet", tmp_path / "r.parquet")


# ---- Prometheus

LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? \S+( \d+\.\d{3})?')


def test_snapshot_has_the_counters_and_histograms(run: RunFolder, tmp_path: Path) -> None:
    text = text_of(run, "prometheus", tmp_path)
    samples = list(parse(text.splitlines(), "m"))
    value = {(s.name, s.labels["simulated_engine"], s.labels.get("le")): s.value for s in samples}
    for name, engine in run.summary["engines"].items():
        for counter, expected in engine["counters"].items():
            full = counter if counter.endswith("_total") else f"{counter}_total"
            assert value[full, name, None] == expected
        prefix = engine["kind"].split("@")[0]
        ttft = f"{prefix}:time_to_first_token_seconds"
        assert value[f"{ttft}_count", name, None] == engine["requests"]
        assert value[f"{ttft}_bucket", name, "+Inf"] == value[f"{ttft}_bucket", name, "40.0"] == engine["requests"]
        assert value[f"{ttft}_sum", name, None] == pytest.approx(engine["ttft_s"]["mean"] * engine["requests"])
        buckets = [s.value for s in samples if s.name == f"{ttft}_bucket" and s.labels["simulated_engine"] == name]
        assert buckets == sorted(buckets)
        assert value[f"{prefix}:inter_token_latency_seconds_count", name, None] == 1200
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert all(LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))


def test_too_many_scrapes_are_refused(run: RunFolder, tmp_path: Path) -> None:
    for every in (1e-9, 0.0, -1.0):
        with pytest.raises(InputError, match="--every"):
            export(run, "openmetrics", tmp_path / "m", every_s=every)


def test_label_values_are_escaped_and_read_back() -> None:
    labels = {"a": 'x"y\\z\nw', "b": "ü,}="}
    [sample] = parse([f"m{spell_labels(labels)} 1.5 1700000000"], "f")
    assert sample.labels == labels
    assert (sample.name, sample.value) == ("m", 1.5)


@pytest.mark.parametrize("bad", ["m", "m{", 'm{a="x} 1', "m one", "1m 2", "{} 3", "m 1 2 3 4"])
def test_lines_that_are_no_samples(bad: str) -> None:
    with pytest.raises(InputError, match="f:2: expected a metric"):
        list(parse(["ok 1", bad], "f"))


def test_what_is_a_gauge() -> None:
    assert is_gauge("vllm:kv_cache_usage_perc")
    assert is_gauge("sglang:cache_hit_rate")
    assert is_gauge("sglang:num_queue_reqs")
    assert is_gauge("sglang:page_size")
    assert split_name("cached_tokens") is None  # a name of the API, not of a metric
    assert not is_gauge("vllm:generation_tokens")  # "ratio" is inside the word only
    assert not is_gauge("sglang:num_retracted_requests_total")
    assert is_share("vllm:kv_cache_usage_perc")
    assert not is_share("vllm:generation_tokens")
    assert split_name("Prefix cache hit rate (log line)") is None
    assert split_name("sglang:x_total{mode=input}") == ("sglang:x_total", {"mode": "input"})


# ---- Chrome trace


def test_chrome_trace_has_lanes_steps_and_whole_requests(run: RunFolder, tmp_path: Path) -> None:
    trace = json.loads(text_of(run, "chrome-trace", tmp_path))
    events = trace["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(named.values()) == [f"{e} / replica {r}" for e in ("sglang", "vllm") for r in (0, 1)]
    steps = Counter(e["pid"] for e in events if e["ph"] == "X")
    timeline = list(csv.DictReader((run.path / "timeline.csv").read_text().splitlines()))
    assert sum(steps.values()) == len(timeline)
    assert set(steps) == set(named)
    open_: dict[Any, list[str]] = {}
    for e in events:  # async events nest: each end closes the latest begin of its id
        assert e.get("ts", 0) >= 0
        if e["ph"] == "b":
            open_.setdefault((e["pid"], e["id2"]["local"]), []).append(e["name"])
        elif e["ph"] == "e":
            assert open_[e["pid"], e["id2"]["local"]].pop() == e["name"]
    assert len(open_) == 160
    assert not any(open_.values())
    # Perfetto: `id` takes an event out of its process; a name for each request gives each a lane of its own
    assert not any("id" in e for e in events)
    assert {e["name"] for e in events if e["ph"] == "b"} == {"request", "queued", "prefill", "decode"}
    first = next(e for e in events if e["ph"] == "b" and e.get("args", {}).get("request") == "r0")
    row = next(csv.DictReader((run.path / "requests.csv").read_text().splitlines()))
    assert first["ts"] == pytest.approx(float(row["released_s"]) * 1e6, abs=0.001)
    assert first["args"]["cached_tokens"] == int(row["cached_tokens"])
    assert HOSTILE in {e["args"]["group"] for e in events if e["ph"] == "b" and "args" in e}


def test_counters_of_the_trace_fall_to_zero_when_a_replica_has_nothing_to_do(run: RunFolder, tmp_path: Path) -> None:
    trace = json.loads(text_of(run, "chrome-trace", tmp_path))["traceEvents"]
    for pid in {e["pid"] for e in trace if e["ph"] == "X"}:
        ends = max(e["ts"] + e["dur"] for e in trace if e["ph"] == "X" and e["pid"] == pid)
        for name in ("running", "waiting", "KV"):
            last = max(
                (e for e in trace if e["ph"] == "C" and e["pid"] == pid and e["name"] == name), key=itemgetter("ts")
            )
            assert last["ts"] == pytest.approx(ends, abs=0.01)
            assert set(last["args"].values()) == {0}
    window = json.loads(text_of(run, "chrome-trace", tmp_path, from_s=2.0, to_s=3.0))["traceEvents"]
    assert all(e["args"]["requests"] for e in window if e["ph"] == "C" and e["name"] == "running")


def test_a_pause_is_drawn_where_the_timeline_has_every_step(tmp_path: Path) -> None:
    def trace_of(steps: int) -> list[dict[str, Any]]:
        summary = {"engines": {"vllm": {"kind": "vllm@0.33", "steps": steps}}}
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        (tmp_path / "timeline.csv").write_text(
            "engine,replica,start_s,end_s,scheduled_tokens,prefill_tokens,running,waiting,kv_used_tokens\n"
            "vllm,0,0.0,0.1,10,10,1,0,16\nvllm,0,0.1,0.2,1,0,1,0,16\nvllm,0,5.0,5.1,10,10,1,0,16\n"
        )
        return json.loads(text_of(open_run(tmp_path), "chrome-trace", tmp_path))["traceEvents"]

    def running(steps: int) -> list[tuple[float, int]]:
        return [(e["ts"], e["args"]["requests"]) for e in trace_of(steps) if e["name"] == "running"]

    assert running(3) == [(0, 1), (100_000, 1), (200_000, 0), (5_000_000, 1), (5_100_000, 0)]
    assert running(4) == [(0, 1), (100_000, 1), (5_000_000, 1), (5_100_000, 0)]


def test_a_window_of_the_trace(run: RunFolder, tmp_path: Path) -> None:
    events = json.loads(text_of(run, "chrome-trace", tmp_path, from_s=2.0, to_s=3.0))["traceEvents"]
    steps = [e for e in events if e["ph"] == "X"]
    assert steps
    assert all(e["ts"] <= 3e6 and e["ts"] + e["dur"] >= 2e6 for e in steps)


def test_gz_is_compressed_and_deterministic(run: RunFolder, tmp_path: Path) -> None:
    export(run, "chrome-trace", tmp_path / "a.json.gz")
    export(run, "chrome-trace", tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert "traceEvents" in json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))


# ---- errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fmt": "promtheus"}, "did you mean 'prometheus'"),
        ({"fmt": "csv", "table": "request"}, "did you mean 'requests'"),
        ({"fmt": "csv", "engines": ["vlm"]}, "did you mean 'vllm'"),
        ({"fmt": "parquet", "out": None}, "needs --out"),
    ],
)
def test_wrong_options_name_the_nearest(run: RunFolder, tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        export(run, options.pop("fmt"), options.pop("out", tmp_path / "x"), **options)


def test_a_failed_export_leaves_nothing(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes((run.path / "summary.json").read_bytes())
    (tmp_path / "requests.csv").write_text("engine,id\nvllm,1\nvllm\n")
    with pytest.raises(InputError, match=r"requests\.csv:3: expected 2 cells, found 1"):
        export(open_run(tmp_path), "csv", tmp_path / "out.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["requests.csv", "summary.json"]
    with pytest.raises(OutputError, match="could not be written"):
        export(run, "csv", tmp_path / "no" / "folder.csv")
    with pytest.raises(InputError, match="no timeline table"):
        export(open_run(tmp_path), "openmetrics", tmp_path / "m")
