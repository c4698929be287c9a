"""A calibration that is cut short leaves no profile; the next one goes on from the sections that were finished."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from prefixsim.errors import PrefixsimError
from prefixsim.hardware.calibrate.kept import Kept
from prefixsim.hardware.calibrate.measure import _measure

WHERE = {"device": "this", "torch": "1", "prefixsim": "1"}
MEASURE = """
import sys, time, types
torch = types.ModuleType("torch")
torch.__version__ = "none"
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
torch.set_num_threads = lambda n: None
torch.get_num_threads = lambda: 1
sys.modules["torch"] = torch
from prefixsim.hardware.calibrate import torch_ops

def gemms(timer):
    for i in range(30):
        time.sleep(0.02)
        m, n, k = 1 << i % 6, 256 << i // 6 % 3, 256 << i // 18
        us = 5 + 2e-5 * m * n * k
        yield {"section": "gemm", "m": m, "n": n, "k": k, "gemm_dtype": "bfloat16", "latency_us": us}

def slow(timer):
    time.sleep(1.5)
    yield {"section": "launch", "latency_us": 1.0}

torch_ops.SECTIONS = {"gemm": (0.5, gemms), "launch": (0.5, slow)}
sys.argv = ["prefixsim", "calibrate", "--device", "cpu", "--out", "hw", "--json", *sys.argv[1:]]
from prefixsim.cli.app import run_app
run_app()
"""


def calibration(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MEASURE, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def until_its_second_section(process: subprocess.Popen[bytes], folder: Path) -> None:
    for _ in range(1000):
        found = list(folder.rglob("*.unfinished.json"))
        if process.poll() is not None or (found and "gemm" in found[0].read_text()):
            break
        time.sleep(0.03)


def sections(after: int, fault: BaseException | None = None):
    """Two sections of two rows; the second one raises after so many."""

    def first(_):
        yield {"section": "a", "us": 0.1}
        yield {"section": "a", "us": 1 / 3}

    def second(_):
        for i in range(2):
            if i == after and fault is not None:
                raise fault
            yield {"section": "b", "us": float(i)}

    return {"a": (0.5, first), "b": (0.5, second)}


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("device lost"), MemoryError()])
@pytest.mark.parametrize("after", [0, 1])
def test_finished_sections_are_kept_and_not_measured_again(tmp_path, fault, after):
    said: list[str] = []
    kept = Kept(tmp_path / "x.yaml", WHERE)
    assert kept.find() is None
    with pytest.raises(KeyboardInterrupt if isinstance(fault, KeyboardInterrupt) else PrefixsimError) as caught:
        _measure(None, sections(after, fault), 100, kept, said.append)
    text = "\n".join([*said, str(caught.value)])
    assert "section b:" in text
    assert "--sections a " in text
    again = Kept(tmp_path / "x.yaml", WHERE)
    assert "a measured" in (again.find() or "")
    _measure(None, {"a": (0.5, None), "b": sections(2)["b"]}, 100, again, said.append)
    assert again.sections == {
        "a": [{"section": "a", "us": 0.1}, {"section": "a", "us": 1 / 3}],
        "b": [{"section": "b", "us": 0.0}, {"section": "b", "us": 1.0}],
    }


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"sections": []}', '{"sections": {"a": [1]}, "where": {}}', "[" * 100_000,
        json.dumps({"where": {**WHERE, "torch": "2"}, "sections": {"a": [{"section": "a"}]}}),
    ],
)  # fmt: skip
def test_what_is_not_of_this_measurement_is_refused_with_a_word(tmp_path, text):
    (tmp_path / "x.unfinished.json").write_text(text)
    kept = Kept(tmp_path / "x.yaml", WHERE)
    assert "not used" in (kept.find() or "")
    assert kept.sections == {}


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "hw").write_text("a file")
    process = calibration(tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"could not be written" in err
    assert b"rows" not in err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_calibration_goes_on(tmp_path, how):
    """Cut short while its second section is measured."""
    process = calibration(tmp_path)
    until_its_second_section(process, tmp_path)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if how == signal.SIGKILL else 2)
    assert b"Traceback" not in err
    assert out == b""
    assert [p.name for p in (tmp_path / "hw" / "gpus").iterdir()] == ["cpu.unfinished.json"]
    out, err = calibration(tmp_path).communicate(timeout=60)
    assert b"gemm measured" in err
    assert b"gemm: " not in err
    row = json.loads(out)
    assert (row["sections_done"], row["rows"]) == (["gemm", "launch"], 31)
    assert {p.name for p in (tmp_path / "hw" / "gpus").iterdir()} == {"cpu.yaml", "cpu.raw.csv"}
    assert "gemm_bf16 ±" in yaml.safe_load(Path(tmp_path / row["profile"]).read_text())["validity"]


@pytest.mark.slow
def test_a_profile_of_the_finished_sections_alone_keeps_the_others(tmp_path):
    process = calibration(tmp_path)
    until_its_second_section(process, tmp_path)
    process.kill()
    process.communicate(timeout=60)
    out, _ = calibration(tmp_path, "--sections", "gemm").communicate(timeout=60)
    assert json.loads(out)["rows"] == 30
    assert not (tmp_path / "hw" / "gpus" / "cpu.unfinished.json").exists()


def test_a_profile_that_could_not_be_made_is_no_success(tmp_path):
    process = calibration(tmp_path, "--sections", "launch")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert json.loads(out)["profile"] is None
    assert b"too few rows of the section gemm" in err
    assert [p.name for p in (tmp_path / "hw" / "gpus").iterdir()] == ["cpu.raw.csv"]
