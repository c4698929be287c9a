"""Processes that are cut short or short of something: nothing half-written is taken for whole, every end is a message."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from prefixsim.report import html
from robustness.driving import apart, command, for_people, prefixsim
from robustness.scenarios import SMALL

STUDY = "name: st\nbase: s.yaml\naxes: [{key: seed, values: [1, 2, 3, 4]}]\n"
KINDS_OF_TIME = ("timing_s", "provenance")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    (tmp_path / "st.yaml").write_text(STUDY)
    return path


def steady(folder: Path) -> str:
    """summary.json without what differs from run to run."""
    data = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return json.dumps({k: v for k, v in data.items() if k not in KINDS_OF_TIME}, sort_keys=True)


def sound(done: subprocess.CompletedProcess[bytes], code: int) -> None:
    """The process ended with the code, without a traceback or what Python says while it ends."""
    err = done.stderr.decode("utf-8", "replace")
    assert done.returncode == code, (done.returncode, err[-600:])
    for word in ("Traceback", "internal error", "Exception ignored"):
        assert word not in err, err[-600:]


@pytest.mark.parametrize(
    "words",
    [
        "schema",
        "validate s.yaml",
        "hw list",
        "trace convert t.jsonl -o -",
        "trace describe t.jsonl",
        "replay t.jsonl --engine vllm --num-gpu-blocks 10 --json",
    ],
)
def test_a_closed_pipe_is_no_failed_check(scenario, words):
    lines = (f'{{"id": "{i}", "tokens": [1, 2, {i}]}}\n' for i in range(5000))
    (scenario.parent / "t.jsonl").write_text("".join(lines))
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command(*words.split()), cwd=scenario.parent, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(write)
    sound(done, 2)


def test_a_full_disk_behind_stdout_is_said(scenario):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command("schema"), stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    sound(done, 2)
    assert b"No space left" in done.stderr


def test_closed_streams_are_no_fault(scenario):
    shell = shlex.join(map(str, command("validate", scenario)))
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{shell} {closed}", shell=True, capture_output=True, check=False, timeout=60)
        sound(done, 0)


def test_terminals_that_lack_characters_and_names_that_are_not_utf8(scenario, tmp_path):
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    sound(apart("step-time", "--gpu", "h100-sxm-80g", "--model", "llama-3.1-8b", "--decode", "1x1", env=plain), 0)
    odd = os.fsencode(tmp_path) + b"/s\xff\xe9.yaml"
    shutil.copy(scenario, odd)
    for env in (plain, {}):
        sound(apart("validate", odd, env=env), 0)
    missing = apart("validate", odd + b"x")
    sound(missing, 2)
    assert rb"s\udcff\udce9.yamlx" in missing.stderr


def test_without_a_home_or_a_writable_cache(scenario, tmp_path):
    for env in (
        {"HOME": "/dev/null"},
        {"HOME": ""},
        {"PREFIXSIM_CACHE_DIR": str(scenario)},
        {"XDG_CACHE_HOME": "/proc"},
    ):
        sound(apart("validate", scenario, env={"PREFIXSIM_CACHE_DIR": "", "XDG_CACHE_HOME": "", **env}), 0)


def test_a_working_folder_that_is_gone_is_no_fault_or_is_named(scenario, tmp_path):
    gone = tmp_path / "gone"
    for words in (
        ["validate", scenario],
        ["run", scenario],
        ["trace", "fit", "t.jsonl", "--out", "x.yaml"],
        ["calibrate", "--host", "--budget", "1"],
    ):
        shell = f"mkdir {gone} && cd {gone} && rmdir {gone} && {shlex.join(map(str, command(*words)))}"
        done = subprocess.run(shell, shell=True, capture_output=True, check=False, timeout=120)
        sound(done, 0 if words[0] == "validate" and done.returncode == 0 else 2)
        assert done.returncode == 0 or b"No such file or directory" in done.stderr
        assert b"output:" not in done.stderr


def test_odd_terminals_and_time_zones(scenario):
    for env in (
        {"TERM": "dumb", "COLUMNS": "20"},
        {"COLUMNS": "0"},
        {"COLUMNS": "x", "LINES": "-1"},
        {"TZ": "Nowhere/Nothing+99:61"},
        {"LANG": "xx_YY.KOI8-Z", "LC_ALL": "xx_YY.KOI8-Z"},
    ):
        sound(apart("step-time", "--gpu", "h100-sxm-80g", "--model", "llama-3.1-8b", "--decode", "1x1", env=env), 0)


def test_output_that_cannot_be_written_is_refused_before_any_work(scenario, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "mine", Path("/proc/run")):
        text = for_people(prefixsim("run", scenario, "--out", out, "-q"))
        assert "simulating" not in text
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_a_file_that_cannot_grow_leaves_the_older_run_untouched(scenario, tmp_path):
    """As on a full disk: no file may be larger than 20 kB, the report is."""
    out = tmp_path / "out"
    assert prefixsim("run", scenario, "--out", out, "-q", seconds=300).code == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    done = apart("run", scenario, "--out", out, "-q", file_bytes=20_000, seconds=300, env={"PREFIXSIM_CACHE_DIR": ""})
    sound(done, 2)
    assert b"could not be written" in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert {p.name for p in tmp_path.iterdir()} == {"out", "s.yaml", "st.yaml"}


def test_results_are_the_same_in_every_process_and_stepping(scenario, tmp_path):
    for name, more in (("here", []), ("again", []), ("steps", ["--set", "granularity=step"])):
        assert prefixsim("run", scenario, "--out", tmp_path / name, "-q", *more, seconds=300).code == 0
    sound(apart("run", scenario, "--out", tmp_path / "apart", "-q", seconds=300, env={"PYTHONHASHSEED": "7"}), 0)
    assert steady(tmp_path / "here") == steady(tmp_path / "again") == steady(tmp_path / "apart")
    assert (tmp_path / "here" / "requests.csv").read_bytes() == (tmp_path / "apart" / "requests.csv").read_bytes()
    assert (tmp_path / "here" / "requests.csv").read_bytes() == (tmp_path / "steps" / "requests.csv").read_bytes()


@pytest.mark.slow
def test_two_runs_into_one_folder(scenario, tmp_path):
    both = [subprocess.Popen(command("run", scenario, "--out", tmp_path / "out", "-q")) for _ in range(2)]
    assert [p.wait(300) for p in both] == [0, 0]
    assert steady(tmp_path / "out")
    assert prefixsim("report", tmp_path / "out", "-q").code == 0
    assert {p.name for p in tmp_path.iterdir()} == {"out", "s.yaml", "st.yaml"}


@pytest.mark.slow
def test_two_sweeps_into_one_folder(scenario, tmp_path):
    words = ["sweep", tmp_path / "st.yaml", "--out", tmp_path / "both", "--executor", "serial", "--json", "-q"]
    both = [subprocess.Popen(command(*words), stdout=subprocess.PIPE) for _ in range(2)]
    said = [p.communicate(timeout=600)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert said[0] == said[1] != b""
    again = prefixsim(*words, seconds=600)
    assert again.out.encode() == said[0]
    assert len(list((tmp_path / "both" / "points").iterdir())) == 4
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.slow
def test_a_run_is_reported_while_it_is_replaced(scenario, tmp_path):
    """A reader finds the old run or the new one, or is told that there is none at that moment."""
    words = ["run", scenario, "--out", tmp_path / "out", "-q"]
    assert prefixsim(*words, seconds=300).code == 0
    shell = shlex.join(map(str, command(*words)))
    writer = subprocess.Popen(f"for i in 1 2 3 4 5; do {shell} > /dev/null || exit 1; done", shell=True)
    seen = set()
    while writer.poll() is None:
        for reader in (["report", tmp_path / "out", "-q"], ["export", tmp_path / "out", "-f", "csv"]):
            done = prefixsim(*reader)
            seen.add(done.code)
            if done.code:
                for_people(done)
    assert writer.returncode == 0
    assert 0 in seen
    assert steady(tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"out", "s.yaml", "st.yaml"}


def test_a_report_never_shows_parts_of_two_runs(scenario, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert prefixsim("run", scenario, "--out", out, "-q", seconds=300).code == 0
    whole = html.render

    def render(run):
        page = whole(run)
        shutil.copytree(out, tmp_path / "new")
        shutil.rmtree(out)
        (tmp_path / "new").rename(out)
        return page

    monkeypatch.setattr(html, "render", render)
    before = (out / "report.html").stat().st_mtime_ns
    assert "replaced by another run" in for_people(prefixsim("report", out, "-q"))
    monkeypatch.undo()
    assert (out / "report.html").stat().st_mtime_ns == before
    assert prefixsim("report", out, "-q").code == 0


def children(pid: int) -> list[int]:
    """Processes below one, from /proc."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stopped(words: list[object], how: int, after_s: float, folder: Path) -> tuple[int, str, list[int]]:
    """Starts a command, sends the signal to its whole group (SIGINT, as Ctrl-C does) or to itself, and waits. Returns exit
    code, stderr, and processes that are left."""
    process = subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
    )
    time.sleep(after_s)
    below = children(process.pid)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    err = process.communicate(timeout=120)[1].decode("utf-8", "replace")
    for _ in range(100):
        if not any(map(alive, below)):
            break
        time.sleep(0.1)
    return process.returncode, err, [p for p in below if alive(p)]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sweep_cut_short_at_any_moment_goes_on(scenario, tmp_path, how):
    whole = prefixsim(
        "sweep", tmp_path / "st.yaml", "--out", tmp_path / "whole", "--executor", "serial", "--json", seconds=600
    )
    assert whole.code == 0
    rng = random.Random(int(how))
    words = ["sweep", "st.yaml", "--out", "cut", "--workers", "2", "-q"]
    for _ in range(6):
        code, err, left = stopped(words, how, rng.uniform(1.5, 12), tmp_path)
        assert "Traceback" not in err, err[-800:]
        assert left == []
        assert code in ((-9, 0) if how == signal.SIGKILL else (2, 0, -how)), (
            err
        )  # -how: before the program, or at its end
        for point in (tmp_path / "cut" / "points").glob("*.json"):
            json.loads(point.read_text())
    last = prefixsim("sweep", tmp_path / "st.yaml", "--out", tmp_path / "cut", "--json", seconds=600)
    assert last.code == 0
    assert last.out == whole.out


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_cut_short_leaves_a_whole_folder_or_none(scenario, tmp_path, how):
    rng = random.Random(int(how))
    for _ in range(6):
        code, err, left = stopped(["run", "s.yaml", "--out", "out", "-q"], how, rng.uniform(0.8, 8), tmp_path)
        assert "Traceback" not in err, err[-800:]
        assert left == []
        assert code in ((-9, 0) if how == signal.SIGKILL else (2, 0, -how)), (
            err
        )  # -how: before the program, or at its end
        if (tmp_path / "out").exists():
            assert steady(tmp_path / "out")
    assert prefixsim("run", tmp_path / "s.yaml", "--out", tmp_path / "out", "-q", seconds=300).code == 0
