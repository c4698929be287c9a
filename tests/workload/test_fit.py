"""Reuse profiles against their twin, and fitted scenarios against the traces they were fitted to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_intern import request as requests_
from test_intern import workload

from prefixsim.analysis.ceilings import ceilings
from prefixsim.errors import NotModelledError
from prefixsim.scenario.load import load_scenario
from prefixsim.scenario.workload import WORKLOAD, Trace
from prefixsim.workload import reference
from prefixsim.workload.fit import fit_text, fit_trace, profile
from prefixsim.workload.intern import namespaces
from prefixsim.workload.load import load_trace, load_workload


@given(st.lists(requests_, min_size=1, max_size=8))
@settings(max_examples=200)
def test_profile_is_its_twin_and_the_ceiling(requests):
    w = workload(requests)
    shared, back = profile(w)
    twin_shared, twin_back = reference.reuse_profile(w, namespaces(w, "vllm"))
    assert shared.tolist() == twin_shared
    assert back.tolist() == twin_back
    for g in (1, 3):
        assert ceilings(w, (g,)).total(g)[0] == int((shared // g * g).sum())


@pytest.mark.parametrize("kind", ["sessions", "rag", "agents"])
def test_a_fitted_scenario_behaves_like_its_trace(tmp_path, kind):
    from test_generators import SMALL

    more = (
        {"turns": {"geometric": {"mean": 3}}, "output_tokens": {"lognormal": {"median": 100, "p95": 400}}}
        if kind == "sessions"
        else {}
    )
    w = load_workload(WORKLOAD.validate_python({**SMALL[kind], **more, "requests": 4000}), base_dir=Path(), seed=3)
    text, match = fit_trace(w, rows=800, seed=1)
    (tmp_path / "fitted.yaml").write_text(text)
    scenario = load_scenario(tmp_path / "fitted.yaml")
    made = load_workload(scenario.workload, base_dir=tmp_path, seed=scenario.seed)
    for g in (1, 16, 64):
        hit, total = ceilings(made, (g,)).total(g)
        wanted, all_ = ceilings(w, (g,)).total(g)
        assert abs(hit / total - wanted / all_) < 0.005, g
    assert abs(made.prompt_tokens.mean() / w.prompt_tokens.mean() - 1) < 0.02
    assert abs(made.output_tokens.mean() / w.output_tokens.mean() - 1) < 0.02
    figures = {f["figure"]: f for f in match["figures"]}
    assert figures["ceiling 16"]["scenario"] == pytest.approx(
        ceilings(made, (16,)).total(16)[0] / made.prompt_tokens.sum()
    )
    assert "ceiling token" in fit_text(match)
    assert not np.array_equal(made.atom_id[:50], w.atom_id[:50])


@pytest.mark.shared
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="too much work for uncompiled kernels")
def test_mooncake_fit(shared, tmp_path):
    path = shared / "traces" / "mooncake" / "conversation_trace.jsonl"
    _, match = fit_trace(load_trace(Trace(path=str(path))), rows=1000, seed=1)
    figures = {f["figure"]: f for f in match["figures"]}
    for name in ("ceiling token", "ceiling 512"):
        assert abs(figures[name]["trace"] - figures[name]["scenario"]) < 0.005
    assert figures["ceiling 512"]["trace"] == 54_063_104 / 144_793_823


def test_lengths_alone_cannot_be_fitted(tmp_path):
    from test_formats import write

    with pytest.raises(NotModelledError):
        fit_trace(load_trace(Trace(path=str(write(tmp_path, "azure")), cache=False)), rows=100, seed=1)
