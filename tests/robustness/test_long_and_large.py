"""Long names, times beyond any clock, tables that the machine's memory does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixsim.errors import DoesNotFitError, ScenarioError
from prefixsim.pipeline.run import run_scenario
from prefixsim.scenario.load import load_scenario
from robustness.scenarios import SMALL


def written(folder: Path, more: str) -> Path:
    path = folder / "s.yaml"
    path.write_text(SMALL + more)
    return path


def test_a_key_of_a_thousand_letters_is_named_in_short(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(written(tmp_path, "y" * 1000 + ": 1\n"))
    assert len(str(caught.value)) < 900
    assert "... (1,000 characters)" in str(caught.value)


def test_a_long_override_is_named_in_short(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(written(tmp_path, ""), {"y" * 5000: 1})
    assert len(str(caught.value)) < 3000


def test_a_time_beyond_the_clock_is_refused_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="eviction_interval_s"):
        load_scenario(written(tmp_path, "router: {kind: cache_aware, eviction_interval_s: 1.0e18}\n"))


def test_tables_beyond_the_memory_are_an_error_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("prefixsim.engines.vllm.engine.build", full)
    scenario = load_scenario(written(tmp_path, ""))
    with pytest.raises(DoesNotFitError, match="distinct blocks of 16 tokens"):
        run_scenario(scenario, engines=[next(e.name for e in scenario.engines if e.kind.startswith("vllm"))])
