"""A disk that is full while a command writes: exit 2, one line that names the file, nothing left, nothing replaced.

Here no file may grow beyond a few bytes, which fails where a full disk does: inside a write, with the file open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefixsim.errors import OutputError
from prefixsim.paths import data_dir, whole_file, write_whole
from robustness.driving import for_people, prefixsim
from robustness.scenarios import SMALL

STUDY = "name: st\nbase: s.yaml\naxes: [{key: seed, values: [1]}]\n"


@contextlib.contextmanager
def full_disk(most: int = 100) -> Iterator[None]:
    """No file may grow further. Python itself would leave cut short bytecode of what it imports meanwhile."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = before


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario, a study, a trace and a finished run."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "s.yaml").write_text(SMALL)
    (folder / "st.yaml").write_text(STUDY)
    (folder / "t.jsonl").write_text("".join(f'{{"id": "{i}", "tokens": [1, 2, {i}]}}\n' for i in range(200)))
    assert prefixsim("run", folder / "s.yaml", "--out", folder / "run", "-q", seconds=300).code == 0
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


WRITERS = {
    "run": ["run", "s.yaml", "-q", "--out", "new"],
    "run again": ["run", "s.yaml", "-q", "--out", "run"],
    "save-cache": ["run", "s.yaml", "-q", "--engine", "v", "--out", "run", "--save-cache", "warm.jsonl"],
    "sweep": ["sweep", "st.yaml", "-q", "--executor", "serial", "--out", "sw"],
    "csv": ["export", "run", "-f", "csv", "--out", "x.csv"],
    "gz": ["export", "run", "-f", "chrome-trace", "--out", "x.json.gz"],
    "parquet": ["export", "run", "-f", "parquet", "--out", "x.parquet"],
    "report": ["report", "run", "-q"],
    "report out": ["report", "run", "-q", "--out", "x.html"],
    "convert": ["trace", "convert", "t.jsonl", "-o", "x.jsonl"],
    "fit": ["trace", "fit", "t.jsonl", "-o", "x.yaml"],
    "describe": ["trace", "describe", "t.jsonl", "--html", "x.html"],
    "junit": ["check", "s.yaml", "-q", "--junit", "x.xml"],
    "baseline": ["check", "s.yaml", "-q", "--baseline", "x.json", "--update-baseline"],
}
MARKDOWN = ["check", "s.yaml", "-q", "--markdown", "x.md"]


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_half_written_is_left(place, monkeypatch, name):
    monkeypatch.chdir(place)
    words = WRITERS[name]
    before = content(place)
    with full_disk():
        done = prefixsim(*words, seconds=300)
    assert done.code == 2, done.err
    for_people(done) if not done.out else None
    (line,) = [s for s in done.err.splitlines() if s.startswith("error: ")]
    assert "File too large" in line
    assert [w for w in words if w != "-q" and not w.startswith("--")][-1] in line or "run" in line
    assert content(place) == before
    if words[0] == "check":
        assert "1 passed" in done.out or "ok" in done.out, done.out


def test_what_was_checked_is_printed_before_it_is_written(place, monkeypatch):
    monkeypatch.chdir(place)
    with full_disk(10):
        done = prefixsim(*MARKDOWN, seconds=300)
    assert done.code == 2
    assert done.err.startswith("error: x.md: could not be written")
    assert "small" in done.out
    (place / "x.md").unlink()


def test_a_study_that_cannot_be_kept_is_refused_before_any_work(place, monkeypatch):
    monkeypatch.chdir(place)
    for words in (
        ["sweep", "st.yaml", "--executor", "serial"],
        ["plan", data_dir("scenarios") / "studies" / "plan_quick.yaml"],
    ):
        for out in (Path("s.yaml"), Path("/proc/study")):
            done = prefixsim(*words, "--out", out, seconds=20)
            assert done.code == 2
            assert done.err.startswith(f"error: {out}")


def test_a_sweep_that_could_not_keep_a_point_runs_it_again(place, monkeypatch):
    monkeypatch.chdir(place)
    with full_disk():
        assert prefixsim(*WRITERS["sweep"], seconds=300).code == 2
    assert "points" not in {p.name for p in (place / "sw").glob("*.json")}
    assert prefixsim(*WRITERS["sweep"], seconds=300).code == 0
    assert (place / "sw" / "points.csv").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def test_a_device_is_written_to_and_not_replaced(place, monkeypatch, tmp_path):
    """As root, `--out /dev/null` must not make a file of it."""
    monkeypatch.chdir(place)
    for device in ("/dev/null", "/dev/full"):
        number = os.stat(device).st_rdev
        done = prefixsim("export", "run", "-f", "csv", "--out", device)
        assert os.stat(device).st_rdev == number
        assert done.code == (0 if device == "/dev/null" else 2)
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "target.csv")
    assert prefixsim("export", "run", "-f", "csv", "--out", link).code == 0
    assert link.is_symlink()
    assert (tmp_path / "target.csv").read_bytes()


def test_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x"
    write_whole(path, "old")
    for fault in (KeyboardInterrupt, MemoryError, ValueError):
        with pytest.raises(fault), whole_file(path) as part:  # noqa: PT012 (the fault comes after half a file)
            part.write_text("half")
            raise fault
    for folder in (tmp_path, tmp_path / "no" / "x", path / "below"):
        with pytest.raises(OutputError, match="could not be written"):
            write_whole(folder, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(tmp_path / "a" / "b" / "x", "new", folders=True)
    assert (tmp_path / "a" / "b" / "x").read_text() == "new"


def test_what_typer_takes_for_the_end_of_input_is_no_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode that a full disk cut short raises EOFError on import; exit code 1 would mean that a check failed."""

    def cut_short(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("prefixsim.scenario.schema.schema_text", cut_short)
    done = prefixsim("schema")
    assert done.code == 2
    assert "marshal data too short" in done.err
