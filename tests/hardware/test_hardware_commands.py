"""The hardware commands from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixsim.cli.app import app, register_commands
from prefixsim.errors import InputError

register_commands()
RUN = CliRunner()
H100 = ["--gpu", "h100-sxm-80g", "--model", "llama-3.1-8b"]


def out(*args: str) -> str:
    result = RUN.invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_step_time_adds_up() -> None:
    row = json.loads(out("step-time", *H100, "--prefill", "512@4096", "--decode", "64x1024", "--json"))
    parts = [row[k] for k in ("gemm_us", "prefill_attention_us", "decode_attention_us", "allreduce_us")]
    assert row["layers_us"] == pytest.approx(sum(parts), abs=0.01)
    assert row["total_us"] == pytest.approx(row["layers_us"] + row["lm_head_us"] + row["engine_us"], abs=0.01)


def test_steps_file_gives_one_line_a_batch_in_order(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"prefill": [[2048, 0]]}\n{"decode": [[8, 100], [2, 4000]]}\n')
    first, second = (json.loads(line) for line in out("step-time", *H100, "--steps", str(path), "--json").splitlines())
    assert first["decode_attention_us"] == 0 < first["prefill_attention_us"]
    assert second["prefill_attention_us"] == 0 < second["decode_attention_us"]
    alone = json.loads(out("step-time", *H100, "--prefill", "2048@0", "--json"))
    assert alone["total_us"] == first["total_us"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("{}", "empty batch"),
        ('{"prefil": [[1, 0]]}', "expected"),
        ('{"prefill": [[0, 0]]}', r"found \[0, 0\]"),
        ('{"decode": [[1]]}', "sequences, kv_len"),
        ('{"decode": [[1, 1.5]]}', "sequences, kv_len"),
    ],
)
def test_bad_batch_is_refused_with_its_line(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"prefill": [[1, 0]]}\n' + line + "\n")
    with pytest.raises(InputError, match=said) as caught:
        RUN.invoke(app, ["step-time", *H100, "--steps", str(path)], catch_exceptions=False)
    assert caught.value.problems[0].line == 2


@pytest.mark.parametrize(
    ("option", "value"), [("--prefill", "x"), ("--prefill", "0@5"), ("--decode", "4"), ("--decode", "4x0")]
)
def test_bad_option_is_refused(option: str, value: str) -> None:
    with pytest.raises(InputError, match=option):
        RUN.invoke(app, ["step-time", *H100, option, value], catch_exceptions=False)


def test_kv_capacity_json() -> None:
    row = json.loads(out("kv-capacity", *H100, "--gpu-memory-utilization", "0.95", "--weights-gib", "14.99", "--json"))
    assert {"kv_gib", "blocks", "tokens", "components"} <= set(row)
    assert row["components"]["weights"]["kind"] == "measured"
    assert row["components"]["activation"]["kind"] == "estimated"


def test_kv_capacity_says_what_requests_have() -> None:
    row = json.loads(out("kv-capacity", *H100, "--json"))
    assert row["usable_tokens"] == row["tokens"] - 16
    assert f"requests have {row['usable_tokens']:,} tokens" in out("kv-capacity", *H100)
    row = json.loads(out("kv-capacity", *H100, "--engine", "sglang", "--json"))
    assert row["usable_tokens"] == row["tokens"]


def test_kv_capacity_refuses_the_other_engines_options() -> None:
    with pytest.raises(InputError, match="not an option of vllm"):
        RUN.invoke(app, ["kv-capacity", *H100, "--mem-fraction-static", "0.8"], catch_exceptions=False)
    with pytest.raises(InputError, match="unknown engine"):
        RUN.invoke(app, ["kv-capacity", *H100, "--engine", "vlm"], catch_exceptions=False)


def test_hw_list_and_show() -> None:
    rows = json.loads(out("hw", "list", "--json"))
    assert {"h100-sxm-80g", "mi300x"} <= {r["name"] for r in rows["gpus"]}
    assert "MAPE" in out("hw", "show", "h100-sxm-80g")
    assert json.loads(out("hw", "show", "qwen3-14b", "--json"))["layers"] == 40
    assert "hash_ns_per_token_block16" in out("hw", "show", "reference")


def test_calibrate_without_torch_says_which_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom prefixsim.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "calibrate", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "prefixsim[calibrate]" in done.stderr
    assert not list(tmp_path.iterdir())


def test_calibrate_host_writes_a_profile_that_is_found(tmp_path: Path) -> None:
    row = json.loads(out("calibrate", "--host", "--out", str(tmp_path / "hw_profiles"), "--budget", "3", "--json"))
    assert 1 < row["hash_ns_per_token_block128"] < row["hash_ns_per_token_block16"] < 5000
    assert json.loads(out("hw", "show", row["profile"], "--json"))["kind"] == "hosts"


def test_calibrate_on_this_cpu_predicts_its_held_out_matmuls(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the calibration lane installs it")
    row = json.loads(
        out(
            "calibrate",
            "--device",
            "cpu",
            "--sections",
            "copies,gemm",
            "--out",
            str(tmp_path),
            "--budget",
            "60",
            "--json",
        )
    )
    assert not row["partial"]
    assert Path(row["raw"]).read_text().count("\n") == row["rows"] + 1
    assert row["held_out"]["gemm_bf16"]["n"] >= 6
    assert row["held_out"]["gemm_bf16"]["mape_pct"] < 25
    assert (
        json.loads(out("step-time", "--gpu", row["profile"], "--model", "llama-3.1-8b", "--decode", "1x16", "--json"))[
            "gemm_us"
        ]
        > 0
    )
