"""compare-metrics: a scrape and a request log beside the simulation; and the three commands of the report."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from run_folders import write_run
from typer.testing import CliRunner

from prefixsim.cli import cmd_compare_metrics, cmd_export, cmd_report
from prefixsim.errors import CheckFailed, InputError
from prefixsim.report.compare_metrics import compare, sniff
from prefixsim.report.export import export
from prefixsim.report.folder import RunFolder, open_run
from prefixsim.report.terminal import print_comparison


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return open_run(write_run(tmp_path_factory.mktemp("compare") / "run", n=60))


def scrape(path: Path, queries: float, hits: float, prefix: str = "") -> Path:
    path.write_text(
        "# HELP vllm:prefix_cache_queries_total x\n# TYPE vllm:prefix_cache_queries_total counter\n"
        f'vllm:{prefix}prefix_cache_queries_total{{engine="0",model_name="m"}} {queries * 0.25}\n'
        f'vllm:{prefix}prefix_cache_queries_total{{engine="1",model_name="m"}} {queries * 0.75}\n'
        f'vllm:{prefix}prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}\n'
        "python_gc_objects_collected_total 5\n"
    )
    return path


def test_own_scrape_is_equal_everywhere(run: RunFolder, tmp_path: Path) -> None:
    export(run, "prometheus", tmp_path / "m.txt", engines=["vllm"])
    found = compare(run, tmp_path / "m.txt")
    assert found.engine == "vllm"
    assert found.off_points == pytest.approx(0, abs=1e-9)
    assert len(found.rows) >= 10
    for what, real, simulated, _ in found.rows:
        assert simulated == pytest.approx(real), what


@pytest.mark.parametrize("prefix", ["", "gpu_"])
def test_how_far_off_is_said(run: RunFolder, tmp_path: Path, prefix: str) -> None:
    summary = run.summary["engines"]["vllm"]
    path = scrape(tmp_path / "m", 1000, 500, prefix)
    found = compare(run, path)
    assert found.off_points == pytest.approx(100 * (summary["hit_rate"] - 0.5))
    assert "points above the real one" in found.says[0]
    assert "against 50.00 %" in found.says[0]
    out = io.StringIO()
    print_comparison(found, file=out)
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_before_is_taken_off(run: RunFolder, tmp_path: Path) -> None:
    before, after = scrape(tmp_path / "b", 1000, 900), scrape(tmp_path / "a", 3000, 1100)
    found = compare(run, after, before=before)
    assert found.rows[0][:2] == ("hit rate", 0.1)


def test_other_traffic_is_noticed(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "m"
    tokens = run.summary["engines"]["vllm"]["prompt_tokens"]
    path.write_text(f"vllm:prompt_tokens_total {tokens * 3}\n")
    assert "3.00 times the run's prompt tokens" in " ".join(compare(run, path).says)
    path.write_text(f"vllm:prompt_tokens_total {tokens * 1.01}\n")
    assert "times" not in " ".join(compare(run, path).says)


def log_rows(run: RunFolder, engine: str) -> list[dict[str, str]]:
    with (run.path / "requests.csv").open() as f:
        return [r for r in csv.DictReader(f) if r["engine"] == engine]


def test_request_log_by_id(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = []
    for i, row in enumerate(log_rows(run, "vllm")):
        cached = int(row["cached_tokens"]) - (100 if i == 7 else 0)
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        lines.append(json.dumps({"id": row["id"], "usage": {"prompt_tokens": int(row["lookup_tokens"]), **details}}))
    path.write_text("\n".join(reversed(lines)) + "\n")
    found = compare(run, path, engine="vllm")
    tokens = run.summary["engines"]["vllm"]["prompt_tokens"]
    assert found.off_points == pytest.approx(100 * 100 / tokens)
    assert "matched by id, 59 (98.3 %)" in " ".join(found.says)
    assert [w["id"] for w in found.worst] == ["r7"]
    assert found.worst[0]["simulated"] - found.worst[0]["real"] == 100


def test_request_log_by_position(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = log_rows(run, "sglang")
    path.write_text(
        "prompt_tokens,cached_tokens\n" + "".join(f"{r['lookup_tokens']},{r['cached_tokens']}\n" for r in rows)
    )
    found = compare(run, path, engine="sglang")
    assert found.off_points == pytest.approx(0, abs=1e-9)
    assert "matched by position, 60 (100.0 %)" in " ".join(found.says)


def test_details_that_are_left_out_count_as_zero_but_not_all_of_them(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    silent = json.dumps({"usage": {"prompt_tokens": 10, "prompt_tokens_details": None}})
    path.write_text(silent + "\n" + json.dumps({"usage": {"prompt_tokens": 10, "cached_tokens": 5}}) + "\n")
    assert compare(run, path, engine="vllm").rows[0][:2] == ("hit rate", 0.25)
    path.write_text(silent + "\n")
    with pytest.raises(InputError, match="--enable-cache-report"):
        compare(run, path, engine="vllm")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("{\n", "is not JSON"),
        ('{"cached_tokens": 1}\n[1]\n', ":2: expected a mapping"),
        ('{"id": 1}\n', "has no cached_tokens"),
        ('{"cached_tokens": -1}\n', "does not fit"),
        ('{"cached_tokens": 9, "prompt_tokens": 3}\n', "does not fit"),
        ("# HELP x\nx{ 1\n", ":2: expected a metric"),
        ("# HELP x\nhttp_requests_total 1\n", "several engines"),
        ("# HELP x\ntrtllm:kv 1\n", "engines of other kinds"),
        ("a,b\n1,2\n", "has no cached_tokens"),
        ("[" * 100_000, "expected a metric"),
        ('{"a":' * 50_000, "is not JSON"),
    ],
)
def test_damaged_sources(run: RunFolder, tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(InputError, match=re.escape(says)):
        compare(run, path, engine="vllm" if content.startswith(("{", "a,b", "[")) else None)


def test_sniff_and_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        sniff(tmp_path / "nowhere")
    with pytest.raises(InputError, match="not a regular file"):
        sniff(tmp_path)
    (tmp_path / "a").write_text('\n\nvllm:x{a="b,c"} 1\n')
    assert sniff(tmp_path / "a") == "scrape"


# ---- commands


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    for command in (cmd_report, cmd_export, cmd_compare_metrics):
        command.register(app)
    return app


def test_report_command(run: RunFolder, app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run.path), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    assert "of prompt tokens from cache" in result.stdout
    assert (tmp_path / "r.html").exists()
    result = CliRunner().invoke(app, ["report", str(run.path / "summary.json"), "--no-html", "--json"])
    assert json.loads(result.stdout)["report"] is None
    assert "from cache" in json.loads(result.stdout)["answer"][0]


def test_export_command(run: RunFolder, app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(run.path), "--format", "csv", "--table", "gaps"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "engine,gap_s,count"
    out = tmp_path / "t.json.gz"
    result = CliRunner().invoke(app, ["export", str(run.path), "-f", "chrome-trace", "--out", str(out), "--json"])
    assert json.loads(result.stdout) == {"format": "chrome-trace", "out": str(out), "bytes": out.stat().st_size}
    result = CliRunner().invoke(app, ["export", str(run.path), "-f", "openmetrics", "--every", "nan"])
    assert isinstance(result.exception, InputError)


def test_compare_command_and_its_gate(run: RunFolder, app: typer.Typer, tmp_path: Path) -> None:
    path = str(scrape(tmp_path / "m", 1000, 500))
    result = CliRunner().invoke(app, ["compare-metrics", str(run.path), path, "--json"])
    found = json.loads(result.stdout)
    assert found["metrics"]["hit rate"]["real"] == 0.5
    result = CliRunner().invoke(app, ["compare-metrics", str(run.path), path, "--within", "1"])
    assert isinstance(result.exception, CheckFailed)
    assert "points above" in result.stdout
    result = CliRunner().invoke(app, ["compare-metrics", str(run.path), path, "--within", "99"])
    assert result.exit_code == 0


def test_a_truncated_run_is_exit_2_without_a_traceback(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes((run.path / "summary.json").read_bytes()[:500])
    for arguments in (
        ["report", str(tmp_path)],
        ["export", str(tmp_path), "-f", "csv"],
        ["compare-metrics", str(tmp_path), "x"],
    ):
        code = "from prefixsim.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert "summary.json" in done.stderr
        assert "cut short" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


@pytest.mark.slow
def test_explain_adds_curves_and_divergence_points_to_a_real_run(app: typer.Typer, tmp_path: Path) -> None:
    from prefixsim.pipeline.run import run_scenario
    from prefixsim.scenario.load import variants

    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        """name: stamped
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 20}
  requests: 200
  templates:
    - {name: support, segments: [{shared: head, tokens: 40}, {unique: stamp, tokens: 8}, {shared: system, tokens: 400}]}
  output_tokens: 4
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b, tensor_parallel_size: 1}
engines: [{name: vllm, kind: vllm@0.33, block_size: 16}]
"""
    )
    done = run_scenario(next(iter(variants(str(scenario), {}))), out=tmp_path / "run", write=True)
    assert done.folder is not None
    result = CliRunner().invoke(app, ["report", str(done.folder), "--explain", "-q"])
    assert result.exit_code == 0, result.exception
    run = open_run(done.folder)
    assert run.curves is not None
    lru = next(c for c in run.curves["curves"] if c["policy"] == "lru")
    assert lru["points"][-1][1] == lru["ceiling_tokens"] == run.summary["ceiling_tokens"]["16"]
    assert run.divergence is not None
    first = max(run.divergence, key=lambda p: p["lost_tokens"])
    assert (first["depth_tokens"], first["kind"]) == (40, "unique per request")
    page = (done.folder / "report.html").read_text()
    assert "capacity-curves" in page
    assert f"{first['lost_tokens']:,}" in page
    (done.folder / "scenario.resolved.yaml").write_text(run.scenario.replace("requests: 200", "requests: 201"))  # type: ignore[union-attr]
    result = CliRunner().invoke(app, ["report", str(done.folder), "--explain", "-q"])
    assert isinstance(result.exception, InputError)
    assert "changed since" in str(result.exception)
