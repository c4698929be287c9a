"""What an earlier process has left (parsed traces, points of a study, run folders) is whole, made anew, or refused."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from prefixsim.scenario.workload import Trace
from prefixsim.workload import cache
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Workload
from robustness.driving import deadline, for_people, prefixsim
from robustness.scenarios import SMALL

ROW = '{{"timestamp": {}, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}}\n'


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    path = tmp_path / "t.jsonl"
    path.write_text("".join(ROW.format(i) for i in range(50)))
    return path


def read(path: Path) -> Workload:
    with deadline(10):
        return load_trace(Trace(path=str(path), format="mooncake"))


def entry(trace: Path) -> Path:
    """The one kept entry."""
    (path,) = (trace.parent / "kept" / "workloads").glob("*.workload")
    return path


def same(a: Workload, b: Workload) -> bool:
    """Whether two workloads have the same content."""
    names = ("prompt_tokens", "output_tokens", "arrival_ns", "atom_id", "atom_offset")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Cut short, a bit turned, longer, or a piece replaced."""
    kind, at = rng.randrange(4), rng.randrange(len(raw))
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
    if kind == 2:
        return raw + b"x" * rng.randint(1, 50)
    return raw[:at] + rng.randbytes(rng.randint(0, 40)) + raw[at + rng.randint(1, 40) :]


def damage_entries(trace: Path, seed: int, count: int) -> None:
    right = read(trace)
    path = entry(trace)
    raw, rng = path.read_bytes(), random.Random(seed)
    assert (kept := cache.load(path)) is not None
    assert same(kept, right)
    for _ in range(count):
        path.write_bytes(damaged(raw, rng))
        found = cache.load(path)
        assert found is None or same(found, right)
        assert same(read(trace), right)


def test_damaged_parsed_traces_are_made_anew(trace):
    damage_entries(trace, 1, 100)


@pytest.mark.slow
def test_thousands_of_damaged_parsed_traces(trace):
    damage_entries(trace, 2, 3000)


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "huge"])
def test_an_entry_that_is_no_file_of_ours_is_not_read(trace, kind):
    right = read(trace)
    path = entry(trace)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with path.open("wb") as f:
            f.truncate(1 << 40)
    assert same(read(trace), right)


def test_a_trace_that_is_a_pipe_is_refused_where_entries_are_kept(trace):
    read(trace)
    pipe = trace.parent / "pipe"
    os.mkfifo(pipe)
    text = for_people(prefixsim("trace", "describe", pipe, "--format", "mooncake", seconds=10))
    assert "pipe" in text


def test_points_that_are_not_whole_are_run_again(tmp_path):
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "st.yaml").write_text("name: st\nbase: s.yaml\naxes: [{key: seed, values: [1, 2]}]\n")
    words = ["sweep", tmp_path / "st.yaml", "--out", tmp_path / "out", "--executor", "serial", "--json"]
    first = prefixsim(*words, seconds=300)
    assert first.code == 0
    one, other = sorted((tmp_path / "out" / "points").glob("*.json"))
    for text in (
        b"",
        one.read_bytes()[:-40],
        b"[]",
        b"\xff",
        b"[" * 100_000,
        other.read_bytes(),
        b'{"point_id": "%s"}' % one.stem.encode(),
    ):
        one.write_bytes(text)
        again = prefixsim(*words, seconds=300)
        assert (again.code, again.out) == (0, first.out), (text[:40], again.err)
        assert json.loads(one.read_bytes())["point_id"] == one.stem


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "s.yaml").write_text(SMALL)
    assert prefixsim("run", folder / "s.yaml", "--out", folder / "out", "-q", seconds=300).code == 0
    return folder / "out"


@pytest.mark.parametrize("name", ["summary.json", "requests.csv", "scenario.resolved.yaml"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_run_folders_with_pipes_and_folders_in_them(finished, tmp_path, name, kind):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    for words in (["report", "--no-html"], ["export", "--format", "csv", "--out", tmp_path / "o"]):
        done = prefixsim(words[0], tmp_path / "run", *words[1:], seconds=15)
        assert done.code in (0, 2)
        if done.code == 2:
            for_people(done)
        assert "internal error" not in done.err
