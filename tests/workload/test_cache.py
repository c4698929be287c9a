"""Kept parses: the same workload back, and never a wrong one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixsim.scenario.workload import Trace
from prefixsim.workload import cache
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Source, Workload

ROWS = [
    {
        "id": "a",
        "arrival": 0.5,
        "tokens": [1, 2, 3],
        "output_tokens": [4],
        "session": "s",
        "group": "g",
        "cache_salt": "x",
    },
    {
        "id": "b",
        "after": "a",
        "delay": 1.5,
        "tokens": [1, 2, 3, 4, 9],
        "output_length": 7,
        "max_tokens": 9,
        "priority": -2,
    },
    {"id": "c", "arrival": 9, "segments": [["sys", 40], ["u", 2]], "output_length": 3, "cached_tokens": 16},
]


def same(a: Workload, b: Workload) -> bool:
    """Field by field."""
    for f in dataclasses.fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, np.ndarray):
            if y is None or x.dtype != y.dtype or not np.array_equal(x, y):
                return False
        elif x != y:
            return False
    return True


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Workload]:
    """A saved entry and what is in it."""
    w = workload_from_rows(ROWS, Source(kind="native", counts={"rows": 3}, notes=("n",)))
    path = tmp_path / "e.workload"
    assert cache.save(path, w)
    return path, w


def test_round_trip(kept):
    path, w = kept
    back = cache.load(path)
    assert back is not None
    assert same(back, w)


@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from(["flip", "cut", "add"]))
def test_damage_is_seen(tmp_path_factory, at, value, how):
    w = workload_from_rows(ROWS, Source(kind="native"))
    path = tmp_path_factory.mktemp("c") / "e.workload"
    cache.save(path, w)
    raw = bytearray(path.read_bytes())
    at %= len(raw)
    if how == "flip":
        raw[at] ^= value
    elif how == "cut":
        del raw[at:]
    else:
        raw.insert(at, value)
    path.write_bytes(raw)
    assert cache.load(path) is None
    assert not path.exists()


def test_an_entry_with_good_checksums_but_impossible_indices_is_refused(tmp_path):
    w = workload_from_rows(ROWS, Source(kind="native"))
    for changes in (
        {"atom_offset": np.array([0, 5, 3, int(w.atom_offset[-1])])},
        {"after": np.array([-1, 7, -1], np.int32)},
        {"session": np.array([0, 5, -1], np.int32)},
        {"atom_id": -w.atom_id},
        {"prompt_tokens": w.prompt_tokens + 1},
        {"prompt_tokens": w.prompt_tokens.astype(np.int32)},
    ):
        path = tmp_path / "x.workload"
        assert cache.save(path, dataclasses.replace(w, **changes))
        assert cache.load(path) is None, changes


def test_keyed_by_content_options_and_seed_and_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join(map(json.dumps, ROWS)))
    options = Trace(path=str(trace))
    folder = tmp_path / "cache" / "workloads"
    first = load_trace(options)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr("prefixsim.workload.formats.native._read", lambda *a: pytest.fail("read again"))
    assert same(load_trace(options), first)
    slower = load_trace(options.model_copy(update={"time_scale": 2.0}))  # not the reader's business: the same entry
    assert slower.arrival_ns.tolist() == (2 * first.arrival_ns).tolist()
    monkeypatch.undo()
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    next(folder.iterdir()).write_bytes(b"nonsense")
    assert same(load_trace(options), first)
    trace.write_text("\n".join(map(json.dumps, ROWS[:1])))
    assert load_trace(options).n == 1  # other content, other entry
    assert len(list(folder.iterdir())) == 2


def test_without_a_folder_to_write_to_all_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join(map(json.dumps, ROWS)))
    assert load_trace(Trace(path=str(trace))).n == 3
