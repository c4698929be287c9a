"""Ctrl-C, a request to end and a closed terminal, at a moment that is known: in the middle of writing a file."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustness.test_processes import sound

SLOW = """
import sys, time
from prefixsim.workload import write_native
def lines(w):
    yield b'{"half'
    print("here", file=sys.stderr, flush=True)
    time.sleep(60)
write_native.native_lines = lines
sys.argv = ["prefixsim", "trace", "convert", "t.jsonl", "--out", "x.jsonl"]
from prefixsim.cli.app import run_app
run_app()
"""


def writing(folder: Path, before: str = "") -> subprocess.Popen[bytes]:
    """A command with half a file written."""
    (folder / "t.jsonl").write_text('{"id": "1", "tokens": [1, 2]}\n')
    process = subprocess.Popen(
        [sys.executable, "-c", before + SLOW], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"here\n"
    assert len(list(folder.iterdir())) == 2
    return process


def ended(process: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[bytes]:
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, out, err)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_line_and_no_half_file(tmp_path, how):
    process = writing(tmp_path)
    process.send_signal(how)
    done = ended(process)
    sound(done, 2)
    assert done.stderr == b"interrupted; finished results are kept\n"
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_second_request_to_end_is_not_waited_for(tmp_path):
    """Even where the first one is held up."""
    stuck = "import shutil, time, pathlib\npathlib.Path.unlink = lambda *a, **k: time.sleep(60)\n"
    process = writing(tmp_path, stuck)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process).returncode == -signal.SIGTERM


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path):
    process = writing(tmp_path, "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    sound(ended(process), 2)
