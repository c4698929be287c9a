"""Comparing runs: pairs, signs, and the ledger's change explains the change in hits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefixsim.errors import InputError
from prefixsim.pipeline.run import run_scenario
from prefixsim.report.compare_runs import compare_engines, engine_pairs, in_words, interval
from prefixsim.report.folder import RunFolder, open_run
from prefixsim.scenario.load import load_scenario


def run(folder: Path, name: str, **keys: object) -> RunFolder:
    scenario = load_scenario(folder / "base.yaml", {f"engines.vllm.{k}": v for k, v in keys.items()})
    run_scenario(scenario, out=folder / name, write=True)
    return open_run(folder / name)


def test_the_ledger_explains_the_difference(folder: Path) -> None:
    small, large = run(folder, "small", block_size=2), run(folder, "large", block_size=8)
    found = compare_engines(small, large, "vllm", "vllm")
    assert found["paired_requests"] == 24
    assert found["cached_tokens"]["sum"] < 0, "larger blocks lose more of 22 shared tokens"
    lost = {k: v for k, v in found["ledger"].items() if not k.startswith("hit_")}
    assert sum(lost.values()) == -found["cached_tokens"]["sum"]
    assert lost["granularity"] > 0
    for request in found["requests"]:
        before, after = request["cached_tokens"]
        assert sum(request["why"].values()) == before - after
    back = compare_engines(large, small, "vllm", "vllm")
    assert back["cached_tokens"]["sum"] == -found["cached_tokens"]["sum"]


def test_a_run_against_itself_does_not_differ(folder: Path) -> None:
    one = run(folder, "one")
    found = compare_engines(one, one, "vllm", "vllm")
    assert found["cached_tokens_differ"] == 0
    assert found["requests"] == []
    assert "no part differs" in " ".join(in_words(found))


def test_engines_are_paired_by_name(folder: Path) -> None:
    one = run(folder, "one")
    assert engine_pairs(one, one, []) == [("vllm", "vllm")]
    with pytest.raises(InputError, match="did you mean 'vllm'"):
        engine_pairs(one, one, ["vlm"])


def test_interval_by_hand() -> None:
    got = interval(np.array([1.0, 2.0, 3.0, np.nan]))
    assert got["mean"] == 2.0
    assert got["high"] - got["mean"] == pytest.approx(1.96 / 3**0.5)
