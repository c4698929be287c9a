"""The measured end-to-end points: loads as their makers' scripts say, and what our simulation makes of them."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    """bench/validate_e2e.py and, through it, bench/e2e_setups.py."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("validate_e2e")
    finally:
        sys.path.remove(str(BENCH))


def point(bench: Any, **more: Any) -> Any:
    given = {"system": "h200_sxm", "backend": "vllm", "model": "llama-3.1-8b", "fp8": True, "isl": 1000, "osl": 100}
    return bench.Point(**(given | {"concurrency": 4, "tp": 1, "ttft_ms": 1.0, "tpot_ms": 1.0} | more))


def test_prompts_are_sent_again_where_the_client_has_few(bench: Any) -> None:
    p, setup = point(bench), bench.Setup(rounds=5, ratio=0.8, prompts=3)
    w = bench.closed_loop(p, setup)
    assert w.n == 20
    assert np.array_equal(w.prompt_tokens, np.resize(w.prompt_tokens[:3], 20))
    assert len(np.unique(w.atom_id)) == 3
    new = bench.closed_loop(p, replace(setup, prompts=0))
    assert len(np.unique(new.atom_id)) == 20
    assert len(np.unique(new.prompt_tokens)) > 3


def test_each_set_has_the_setup_of_its_scripts(bench: Any) -> None:
    waits = {
        (isl, osl, tp): bench.setup_of(
            point(bench, backend="trtllm", model="llama-3.1-70b", isl=isl, osl=osl, tp=tp)
        ).wait_iterations
        for isl, osl, tp in ((1024, 1024, 4), (1024, 1024, 8), (1024, 8192, 4), (8192, 1024, 1))
    }
    assert waits == {(1024, 1024, 4): 20, (1024, 1024, 8): 0, (1024, 8192, 4): 0, (8192, 1024, 1): 0}
    h100 = point(bench, system="h100_sxm", backend="trtllm", isl=2048, concurrency=16)
    assert bench.setup_of(h100).budget(h100) == 2048 + 1500 + 16
    sglang = point(bench, backend="sglang", isl=8000)
    assert bench.setup_of(sglang).budget(sglang) == 8192
    assert bench.setup_of(point(bench, system="b200_sxm")).ratio == 0.8


@pytest.mark.shared
@pytest.mark.slow
def test_points_nothing_was_fitted_on(bench: Any, shared: Path) -> None:
    """Errors of the points held out, and that what explains the vLLM 8B points is that their prompts come again."""
    points = [p for p in bench.read_points(shared / "gpu" / "end_to_end.csv") if not p.in_fit]
    simulator = bench.Simulator()
    most = {
        ("h200_sxm/vllm", "llama-3.1-70b"): (6.5, 14),
        ("h200_sxm/vllm", "llama-3.1-8b"): (13, 65),
        ("h200_sxm/trtllm", "llama-3.1-70b"): (6.5, 15),
        ("h200_sxm/sglang", "llama-3.1-8b"): (12, 42),
    }
    for (group, model), (tpot, ttft) in most.items():
        mine = [p for p in points if (p.group, p.model) == (group, model)]
        e = bench.errors(mine, [simulator.run(p) for p in mine])
        assert e["tpot_mape_pct"] < tpot, (group, model, e)
        assert e["ttft_mape_pct"] < ttft, (group, model, e)
        if (group, model) == ("h200_sxm/vllm", "llama-3.1-8b"):
            cold = [simulator.run(p, setup=replace(bench.setup_of(p), prompts=0)) for p in mine]
            assert bench.errors(mine, cold)["tpot_mape_pct"] > 80
