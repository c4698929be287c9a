"""`prefixsim curve` and `prefixsim explain` from the command line: forms, faults, and numbers that must agree."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from prefixsim.cli import cmd_curve, cmd_explain
from prefixsim.errors import PrefixsimError

SCENARIO = """\
name: small
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 4}
  requests: 80
  templates:
    - name: support
      segments:
        - {unique: timestamp, tokens: 12, every: request}
        - {shared: system, tokens: 200}
        - {unique: question, tokens: 40}
    - {name: other, segments: [{shared: other, tokens: 100}, {unique: q, tokens: 30}]}
  turns: 1
  output_tokens: 5
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: vllm, kind: vllm, block_size: 64, num_gpu_blocks_override: 40}
  - {name: sglang, kind: sglang, page_size: 1, max_total_tokens: 2000}
replicas: 2
seed: 1
"""


@pytest.fixture
def command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    cmd_curve.register(app)
    cmd_explain.register(app)
    rows = [{"id": str(i), "arrival": i, "tokens": [1] * 40 + [i], "output_tokens": [5, 6]} for i in range(6)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "s.yaml").write_text(SCENARIO)

    def run(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            assert isinstance(result.exception, PrefixsimError), result.exception
            return result.exception.exit_code, str(result.exception)
        return result.exit_code, result.stdout

    return run


def test_curve_json_is_the_documented_form(command):
    code, out = command("curve", "t.jsonl", "--granularity", "1,16", "--capacities", "0,2,1000", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["prompt_tokens"] == 6 * 41
    assert [(c["granularity"], c["policy"], c["ceiling_tokens"]) for c in data["curves"]] == [
        (1, "lru", 5 * 40),
        (1, "optimal", 5 * 40),
        (16, "lru", 5 * 32),
        (16, "optimal", 5 * 32),
    ]
    assert data["curves"][2]["points"] == [[0, 0], [2, 160], [1000, 160]]


def test_the_whole_curve_and_the_points_agree(command):
    whole = json.loads(command("curve", "t.jsonl", "--granularity", "1", "--policies", "lru", "--json")[1])["curves"][0]
    assert whole["points_are"].startswith("every capacity")
    assert [p[0] for p in whole["points"]] == list(range(len(whole["points"])))
    asked = ",".join(str(p[0]) for p in whole["points"])
    points = json.loads(
        command("curve", "t.jsonl", "--granularity", "1", "--policies", "lru", "--capacities", asked, "--json")[1]
    )
    assert points["curves"][0]["points"] == whole["points"]
    assert whole["points"][-1][1] == whole["ceiling_tokens"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--granularity", "x"), "--granularity: found 'x'"),
        (("--granularity", "0"), "whole number from 1 up"),
        (("--capacities", "1.5"), "--capacities: found '1.5'"),
        (("--policies", "lri"), "did you mean 'lru'?"),
        (("--sample", "2"), "--sample: 2.0"),
        (("--simulate", "100"), "a bare trace has no engines"),
        (("--gpu", "h100-sxm-80g"), "--gpu needs --model"),
        (("--model", "lama-3.1-8b"), "did you mean 'llama-3.1-8b'?"),
        (("--set", "blok_size=16"), "did you mean 'block_size'?"),
    ],
)
def test_faults_name_the_option(command, arguments, said):
    code, out = command("curve", "t.jsonl", *arguments)
    assert code == 2
    assert said in out


def test_missing_files_and_lengths_only(command, tmp_path):
    assert "no such file" in command("explain", "none.jsonl")[1]
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    for name in ("explain", "curve"):
        code, out = command(name, "azure.csv")
        assert code == 2
        assert "lengths only" in out


def test_text_forms(command):
    code, out = command("curve", "t.jsonl", "--model", "llama-3.1-8b")
    assert code == 0
    assert "ceiling 65.04 % (160 of 246 prompt tokens)" in out
    assert "GiB" in out
    code, out = command("explain", "t.jsonl")
    assert code == 0
    assert "after 40 equal tokens: 6 requests go 6 ways" in out
    code, out = command("explain", "t.jsonl", "--granularity", "1,784", "--json")
    assert json.loads(out)["ceilings"]["with_outputs"]["784"]["hit_tokens"] == 0
    assert "estimated from" in command("curve", "t.jsonl", "--sample", "0.5", "--capacities", "10")[1]


def test_explain_a_scenario(command):
    code, out = command("explain", "s.yaml", "-q", "--json")
    assert code == 0, out
    data = json.loads(out)
    for name, engine in data["engines"].items():
        ledger = engine["ledger"]
        assert sum(ledger.values()) == engine["prompt_tokens"], name
        assert ledger["hit_device"] + ledger["hit_host"] == engine["cached_tokens"]
        for rows in engine["ledger_by"].values():
            for part, total in ledger.items():
                assert sum(row[part] for row in rows) == total
        assert set(engine["ledger_by"]) >= {"group", "session", "turn", "replica"}
        same = engine["same_order"]
        assert same["lru_tokens"] <= same["optimal_tokens"] <= same["infinite_tokens"]
    total = data["ceilings"]["with_outputs"]["token"]["hit_tokens"]
    for rows in data["by"].values():
        assert sum(row["token"] for row in rows) == total
        assert sum(row["prompt_tokens"] for row in rows) == data["prompt_tokens"]
    assert data["divergence"][0]["kind"] == "unique per request"
    assert data["divergence"][0]["groups"][0]["name"] == "support"
    move = next(a for a in data["advice"] if a["kind"] == "move")
    assert all(g["cached_tokens_after"] > g["cached_tokens_before"] for g in move["engines"].values())
    code, text = command("explain", "s.yaml", "-q")
    assert code == 0
    for words in ("Ledger", "Divergence points", "Advice, each tried", "move the differing piece"):
        assert words in text


def test_zero_is_certain_and_said(command):
    code, out = command("explain", "s.yaml", "-q", "--no-engines", "--set", "engines.vllm.block_size=784")
    assert code == 0
    assert "! vllm: 0 hits are certain" in out


def test_simulated_points_are_drawn(command):
    code, out = command("curve", "s.yaml", "-q", "--simulate", "1280", "--json", "--capacities", "10")
    assert code == 0, out
    points = json.loads(out)["simulated"]
    assert [p["engine"] for p in points] == ["vllm", "sglang"]
    assert all(p["capacity_tokens"] == 2 * 1280 for p in points)
