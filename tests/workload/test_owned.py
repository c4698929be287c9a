"""Arrays of a loaded workload are writeable, read or kept: a read-only one would compile every kernel a second time."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from prefixsim.scenario.workload import Trace
from prefixsim.workload.load import load_trace


@pytest.mark.parametrize("visit", ["read", "kept"])
def test_arrays_are_writeable(visit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("prefixsim.workload.cache.WORTH_KEEPING_S", 0.0)
    rows = [{"id": f"r{i}", "arrival": float(i), "tokens": [1, 2, 3, i], "output_tokens": [4, 5]} for i in range(3000)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    workload = load_trace(Trace(path=str(tmp_path / "t.jsonl"), format="native"))
    if visit == "kept":
        assert list((tmp_path / "cache").rglob("*.workload")), "nothing was kept: the case shows nothing"
        workload = load_trace(Trace(path=str(tmp_path / "t.jsonl"), format="native"))
    arrays = [getattr(workload, f.name) for f in fields(workload) if isinstance(getattr(workload, f.name), np.ndarray)]
    assert len(arrays) > 15
    assert all(a.flags.writeable and a.flags.c_contiguous for a in arrays)
