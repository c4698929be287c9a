"""`prefixsim run` from the command line: results, determinism, the run folder, bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from prefixsim.records import LEDGER_PARTS
from robustness.driving import prefixsim

TEXT = """\
name: small
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 8}
  requests: 300
  turns: {geometric: {mean: 3}}
  turn_tokens: 40
  think_time_s: 1.5
  output_tokens: {lognormal: {median: 30, p95: 90}}
  templates:
    - name: support
      segments:
        - {shared: system, tokens: 700}
        - {unique: user, tokens: {lognormal: {median: 60, p95: 300}}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: hash, kind: vllm@0.33, block_size: 16, num_gpu_blocks_override: 800}
  - {name: tree, kind: sglang@0.5.23, page_size: 1, max_total_tokens: 12000}
seed: 1
"""
FILES = {
    "scenario.resolved.yaml", "summary.json", "requests.csv", "timeline.csv", "gaps.csv", "report.html", "curves.json",
    "divergence.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def finished(scenario, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "first"
    done = prefixsim("run", scenario, "--out", folder)
    assert done.code == 0, done.err
    return folder, done


def table(path):
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def test_the_folder_and_the_table(finished):
    folder, done = finished
    assert {p.name for p in folder.iterdir()} == FILES
    assert "hit rate" in done.out
    assert "ceiling" in done.out
    assert str(folder) in done.out
    assert "reading" in done.err
    assert "reading" not in done.out


def test_summary_has_the_promised_keys_and_they_agree_with_each_other(finished):
    folder, _ = finished
    s = json.loads((folder / "summary.json").read_text())
    assert {"run_id", "ceiling", "engines", "timing_s", "provenance"} <= set(s)
    assert {"token", "16"} <= set(s["ceiling"])
    assert {"read", "intern", "compile", "run"} <= set(s["timing_s"])
    assert set(s["engines"]) == {"hash", "tree"}
    for e in s["engines"].values():
        for key in ("ttft_s", "itl_s", "e2e_s"):
            assert set(e[key]) == {"p50", "p90", "p99", "mean"}
            assert 0 <= e[key]["p50"] <= e[key]["p90"] <= e[key]["p99"]
        assert e["requests"] == 300
        assert e["rejected"] == 0
        assert e["hit_rate"] == e["cached_tokens"] / e["prompt_tokens"]
        assert e["saturated"] is False
        assert 0 < e["kv_usage_peak"] <= 1
        assert set(e["ledger"]) == set(LEDGER_PARTS)
        assert sum(e["ledger"].values()) == e["prompt_tokens"] == s["prompt_tokens"]
        assert e["ledger"]["hit_device"] + e["ledger"]["hit_host"] == e["cached_tokens"]
        assert sum(r["prompt_tokens"] for r in e["replicas"]) == e["prompt_tokens"]
        assert sum(g["cached_tokens"] for g in e["groups"].values()) == e["cached_tokens"]
    for key, share in s["ceiling"].items():
        assert share == s["ceiling_tokens"][key] / s["prompt_tokens"], key


def test_the_tables_give_the_summary(finished):
    folder, _ = finished
    s = json.loads((folder / "summary.json").read_text())
    rows, gaps, steps = (table(folder / f"{name}.csv") for name in ("requests", "gaps", "timeline"))
    for name, e in s["engines"].items():
        mine = [r for r in rows if r["engine"] == name]
        assert len(mine) == 300
        assert sum(int(r["cached_tokens"]) for r in mine) == e["cached_tokens"]
        for part in LEDGER_PARTS:
            assert sum(int(r[part]) for r in mine) == e["ledger"][part]
        ttft = [float(r["first_token_s"]) - float(r["released_s"]) for r in mine]
        e2e = [float(r["finish_s"]) - float(r["released_s"]) for r in mine]
        for key, values in (("ttft_s", ttft), ("e2e_s", e2e)):
            for p in (50, 90, 99):
                assert e[key][f"p{p}"] == pytest.approx(np.percentile(values, p), abs=1e-9)
            assert e[key]["mean"] == pytest.approx(np.mean(values), abs=1e-9)
        pairs = [(float(g["gap_s"]), int(g["count"])) for g in gaps if g["engine"] == name]
        pooled = np.repeat([g for g, _ in pairs], [c for _, c in pairs])
        assert len(pooled) == sum(int(r["output_tokens"]) - 1 for r in mine)
        assert e["itl_s"]["p99"] == pytest.approx(np.percentile(pooled, 99), abs=1e-9)
        assert e["itl_s"]["mean"] == pytest.approx(pooled.mean(), abs=1e-9)
        spent = max(float(r["finish_s"]) for r in mine) - min(float(r["released_s"]) for r in mine)
        assert e["output_tokens_per_s"] == pytest.approx(e["output_tokens"] / spent)
        kv = max(int(t["kv_used_tokens"]) for t in steps if t["engine"] == name)
        assert e["kv_usage_peak"] == kv / e["replicas"][0]["capacity_tokens"]


def without(summary):
    return {k: v for k, v in summary.items() if k not in ("timing_s", "provenance")}


def test_a_second_run_is_byte_identical_and_json_is_the_summary(scenario, finished, tmp_path):
    folder, _ = finished
    done = prefixsim("run", scenario, "--out", tmp_path / "second", "--json", "--quiet")
    assert done.err == ""
    for name in FILES - {"summary.json", "report.html"}:
        assert (folder / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    printed, first = json.loads(done.out), json.loads((folder / "summary.json").read_text())
    assert printed == json.loads((tmp_path / "second" / "summary.json").read_text())
    assert json.dumps(without(printed)) == json.dumps(without(first))


def test_step_granularity_and_the_resolved_scenario_give_the_same_run(finished, tmp_path):
    folder, _ = finished
    again = tmp_path / "again"
    resolved = folder / "scenario.resolved.yaml"
    done = prefixsim("run", resolved, "--out", again, "--set", "granularity=step", "--set", "output.report=false")
    assert done.code == 0, done.err
    a, b = (json.loads((f / "summary.json").read_text()) for f in (folder, again))
    assert without(a) == without(b)
    assert (folder / "requests.csv").read_bytes() == (again / "requests.csv").read_bytes()
    for name in ("hash", "tree"):
        assert a["provenance"]["simpy_events"][name] < b["provenance"]["simpy_events"][name]


def test_one_engine_alone_gives_the_same_numbers(scenario, finished, tmp_path):
    folder, _ = finished
    done = prefixsim("run", scenario, "--engine", "tree", "--out", tmp_path / "one", "--json", "--quiet")
    one, both = json.loads(done.out), json.loads((folder / "summary.json").read_text())
    assert list(one["engines"]) == ["tree"]
    assert one["engines"]["tree"] == both["engines"]["tree"]
    assert one["run_id"] != both["run_id"]


def test_set_out_default_and_variants(scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = scenario.read_text() + "also:\n  - {name: fast, set: {workload.arrivals.rate_per_s: 80}}\n"
    (tmp_path / "v.yaml").write_text(text)
    done = prefixsim("run", "v.yaml", "--engine", "hash", "--set", "output.report=false", "--json")
    s = json.loads(done.out)
    assert list(s["also"]) == ["small-fast"]
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert names == sorted([f"small-{s['run_id'][:12]}", f"small-fast-{s['also']['small-fast']['run_id'][:12]}"])
    assert s["also"]["small-fast"]["engines"]["hash"]["ttft_s"]["p99"] > s["engines"]["hash"]["ttft_s"]["p99"]


def test_many_requests_are_written_as_numpy(scenario, tmp_path):
    done = prefixsim("run", scenario, "--engine", "hash", "--out", tmp_path / "r", "--set", "output.requests=npz")
    assert done.code == 0, done.err
    assert not (tmp_path / "r" / "requests.csv").exists()
    with np.load(tmp_path / "r" / "requests.npz") as f:
        s = json.loads((tmp_path / "r" / "summary.json").read_text())["engines"]["hash"]
        assert int(f["cached_tokens"].sum()) == s["cached_tokens"]
        assert np.percentile(f["first_token_s"] - f["released_s"], 99) == pytest.approx(s["ttft_s"]["p99"])


def test_a_growing_queue_is_called_saturated_with_its_growth(scenario, tmp_path):
    slow = ("--set", "workload.arrivals.rate_per_s=500", "--set", "workload.requests=4000", "--set", "workload.turns=1")
    small = ("--set", "engines.hash.max_num_seqs=2", "--engine", "hash", "--set", "output.report=false")
    done = prefixsim("run", scenario, "--out", tmp_path / "r", *slow, *small, "--json", "--quiet")
    e = json.loads(done.out)["engines"]["hash"]
    assert e["saturated"] is True
    # More than 500 requests a second come, and the engine finishes so many: what is left is the growth.
    served = e["requests_per_s"]
    assert e["queue"]["growth_per_s"] == pytest.approx(500 - served, rel=0.15)
    assert "grows by" in e["saturation_note"]


# ---- bad input: one message, exit 2, no traceback -----------------------------------------------------------------

MOONCAKE = '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
TRACE = """\
name: t
workload: {trace: {path: t.jsonl, format: %s}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: hash, kind: vllm, num_gpu_blocks_override: 500}
  - {name: tree, kind: sglang, max_total_tokens: 8000}
output: {report: false}
"""


def refused(*args, code=2):
    done = prefixsim("run", *args)
    assert done.code == code, done.err + done.out
    assert "Traceback" not in done.err + done.out
    assert "defect" not in done.err
    assert done.out == ""
    return done.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["t.jsonl"]),
        ("\n\n", ["t.jsonl"]),
        (MOONCAKE + MOONCAKE[:40], ["t.jsonl:2"]),
        (MOONCAKE + MOONCAKE.replace("700", "-700"), ["t.jsonl:2", "input_length"]),
        (MOONCAKE + MOONCAKE.replace("700", "NaN"), ["t.jsonl:2"]),
        (MOONCAKE + MOONCAKE.replace("700", "1e400"), ["t.jsonl:2"]),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", "[0, 1, 2, 3]"), ["hash_ids"]),
        (MOONCAKE + MOONCAKE.replace('"timestamp": 0', '"timestamp": "x"'), ["t.jsonl:2", "timestamp"]),
        (MOONCAKE + "[]\n", ["t.jsonl:2"]),
        (MOONCAKE.replace("700", str(10**18)), ["t.jsonl"]),
    ],
)
def test_bad_traces(tmp_path, content, words):
    (tmp_path / "s.yaml").write_text(TRACE % "mooncake")
    (tmp_path / "t.jsonl").write_text(content)
    err = refused(tmp_path / "s.yaml", "--out", tmp_path / "out")
    for word in words:
        assert word in err
    assert not (tmp_path / "out").exists()


def test_missing_files(tmp_path, scenario):
    (tmp_path / "s.yaml").write_text(TRACE % "mooncake")
    assert "t.jsonl: no such file" in refused(tmp_path / "s.yaml", "--out", tmp_path / "out")
    assert "nowhere.jsonl" in refused(tmp_path / "s.yaml", "--trace", tmp_path / "nowhere.jsonl")
    assert "no such file, nor a shipped scenario" in refused(tmp_path / "x.yaml")
    assert "did you mean 'hash'" in refused(scenario, "--engine", "hush")
    assert "KEY=VALUE" in refused(scenario, "--set", "seed")
    assert "did you mean 'llama-3.1-8b'" in refused(scenario, "--set", "hardware.model=llama-3.1-8")


def test_a_prompt_longer_than_the_pool_is_an_error_or_rejected_as_asked(tmp_path):
    (tmp_path / "s.yaml").write_text(TRACE % "mooncake")
    long = '{"timestamp": 9, "input_length": 9000, "output_length": 5, "hash_ids": ' + f"{list(range(10, 28))}}}\n"
    (tmp_path / "t.jsonl").write_text(MOONCAKE * 3 + long)
    for engine in ("hash", "tree"):
        err = refused(tmp_path / "s.yaml", "--out", tmp_path / "out", "--engine", engine)
        assert "9,000 tokens" in err
        assert "request 3" in err
        assert "oversized" in err
    done = prefixsim("run", tmp_path / "s.yaml", "--out", tmp_path / "o", "--set", "oversized=reject", "--json")
    for e in json.loads(done.out)["engines"].values():
        assert (e["requests"], e["finished"], e["rejected"], e["prompt_tokens"]) == (4, 3, 1, 2100)


def test_an_output_cut_at_the_end_of_the_pool_counts_what_was_generated(tmp_path):
    (tmp_path / "s.yaml").write_text(TRACE % "mooncake")
    row = {"timestamp": 0, "input_length": 7900, "output_length": 500, "hash_ids": list(range(16))}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    s = json.loads(prefixsim("run", tmp_path / "s.yaml", "--out", tmp_path / "o", "--json", "--quiet").out)
    for e, pool in ((s["engines"]["hash"], 499 * 16), (s["engines"]["tree"], 8000)):
        assert e["finished"] == 1
        assert 0 < e["output_tokens"] <= pool - 7900 + 1
    assert s["engines"]["hash"]["output_tokens"] == s["engines"]["hash"]["counters"]["vllm:generation_tokens"]


def test_a_model_that_does_not_fit(scenario, tmp_path):
    err = refused(scenario, "--set", "hardware.gpu=rtx-4090", "--set", "hardware.memory.weights_gib=30", "--out", tmp_path / "o",
                  "--set", "engines.hash.num_gpu_blocks_override=", "--engine", "hash")  # fmt: skip
    assert "GiB" in err


def test_an_output_folder_that_cannot_be_written(scenario, finished, tmp_path):
    (tmp_path / "file").write_text("")
    assert "not a folder" in refused(scenario, "--out", tmp_path / "file")
    assert "file" in refused(scenario, "--out", tmp_path / "file" / "below")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "not replaced" in refused(scenario, "--out", tmp_path / "mine")
    assert "/proc" in refused(scenario, "--out", "/proc/nowhere/run")


def test_a_full_disk_leaves_the_old_run_untouched(scenario, tmp_path, monkeypatch):
    from prefixsim.output import run_folder

    keys = ("--engine", "hash", "--set", "output.report=false")
    assert prefixsim("run", scenario, "--out", tmp_path / "r", *keys).code == 0
    before = (tmp_path / "r" / "summary.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device", "requests.csv")

    monkeypatch.setattr(run_folder, "write_csv", full)
    assert "No space left" in refused(scenario, "--out", tmp_path / "r", *keys)
    assert (tmp_path / "r" / "summary.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_stdout_that_is_full_or_closed(scenario, tmp_path):
    keys = [
        "run",
        str(scenario),
        "--engine",
        "hash",
        "--set",
        "output.report=false",
        "--quiet",
        "--out",
        str(tmp_path / "r"),
    ]
    command = [sys.executable, "-c", "from prefixsim.cli import main; main()", *keys]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_one_line_and_leaves_nothing_half_written(scenario, tmp_path):
    keys = [
        "run",
        str(scenario),
        "--set",
        "workload.requests=3000000",
        "--set",
        "workload.turns=1",
        "--out",
        str(tmp_path / "r"),
    ]
    command = [sys.executable, "-c", "from prefixsim.cli import main; main()", *keys]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    while line and "reading" not in line:
        line = process.stderr.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "interrupted" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_fleet_too_large_and_requests_too_many_are_refused(scenario):
    assert "4096" in refused(scenario, "--set", "replicas=10000")
    assert "requests" in refused(scenario, "--set", "workload.requests=1e12")


def test_help_validate_and_schema_load_neither_numba_nor_simpy(scenario):
    code = (
        "import sys; from prefixsim.cli import main\n"
        "try: main()\nexcept SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'numba', 'simpy', 'plotly', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    for args in (["--help"], ["validate", str(scenario)], ["schema"], ["run", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.shared
def test_the_mooncake_ceilings(shared, tmp_path):
    trace = shared / "traces" / "mooncake" / "conversation_trace.jsonl"
    keys = (
        "--set",
        "also=[]",
        "--engine",
        "vllm",
        "--set",
        "output.report=false",
        "--out",
        tmp_path / "m",
        "--json",
        "--quiet",
    )
    done = prefixsim("run", "mooncake", "--trace", trace, *keys)
    s = json.loads(done.out)
    assert s["prompt_tokens"] == 144_793_823
    assert s["ceiling_tokens"]["512"] == 54_063_104
    assert round(100 * s["ceiling"]["512"], 2) == 37.34
    assert round(100 * s["ceiling"]["token"], 2) == 37.36
    assert s["engines"]["vllm"]["saturated"] is False
    assert s["engines"]["vllm"]["requests"] == 12_031


@pytest.mark.slow
@pytest.mark.shared
def test_the_mooncake_trace_at_its_own_pace_is_overload(shared, tmp_path):
    trace = shared / "traces" / "mooncake" / "conversation_trace.jsonl"
    done = prefixsim("run", "mooncake", "--trace", trace, "--out", tmp_path / "m", "--json", "--quiet")
    s = json.loads(done.out)
    over = s["also"]["mooncake-overload"]
    for name in ("vllm", "sglang"):
        assert s["engines"][name]["saturated"] is False
        assert over["engines"][name]["saturated"] is True
        assert over["engines"][name]["queue"]["growth_per_s"] > 1
    assert os.listdir(tmp_path / "m" / "mooncake-overload")


def test_replicas_of_different_hardware_and_a_router(scenario, tmp_path):
    groups = "[{count: 1}, {count: 2, hardware: {gpu: a100-sxm-80g, model: llama-3.1-8b}}]"
    done = prefixsim("run", scenario, "--out", tmp_path / "r", "--set", f"replicas={groups}", "--set", "router=cache_aware",
                     "--set", "output.report=false", "--json", "--quiet")  # fmt: skip
    s = json.loads(done.out)
    assert [(k["gpu"], k["replicas"]) for k in s["hardware"]["kinds"]] == [("h100-sxm-80g", 1), ("a100-sxm-80g", 2)]
    assert (s["replicas"], s["router"]) == (3, "cache_aware")
    for e in s["engines"].values():
        assert sum(r["requests"] for r in e["replicas"]) == 300
        assert sum(r["cached_tokens"] for r in e["replicas"]) == e["cached_tokens"]
        assert any("cache_aware" in note for note in e["notes"])
        assert sum(e["ledger"].values()) == e["prompt_tokens"]


def test_a_clock_that_counts_steps_needs_no_hardware(tmp_path):
    rows = [{"id": f"r{i}", "step": 3 * i, "tokens": [1, 2, 3, 4, 5, i], "output_tokens": [7, 8]} for i in range(6)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    text = TRACE.replace("hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}", "clock: steps") % "native"
    (tmp_path / "s.yaml").write_text(text.replace("kind: vllm,", "kind: vllm, block_size: 2,"))
    done = prefixsim("run", tmp_path / "s.yaml", "--out", tmp_path / "o", "--json", "--quiet")
    s = json.loads(done.out)
    assert s["hardware"] is None
    assert {n: e["cached_tokens"] for n, e in s["engines"].items()} == {"hash": 5 * 4, "tree": 5 * 5}
    assert [float(r["released_s"]) for r in table(tmp_path / "o" / "requests.csv")[:6]] == [3e-9 * i for i in range(6)]
