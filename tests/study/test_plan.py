"""Plans: the searches against known thresholds, limits, and one plan end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixsim.errors import PrefixsimError, ScenarioError
from prefixsim.scenario.study import Limit, PlanSpec
from prefixsim.study.executors import SerialExecutor
from prefixsim.study.load import load_study
from prefixsim.study.plan import misses, run_plan
from prefixsim.study.plan_text import conclusion, table
from prefixsim.study.search import FleetSearch, RateSearch
from prefixsim.study.store import PointStore


@given(st.floats(0.2, 900.0), st.sampled_from([0.01, 0.1]))
def test_rate_search_finds_the_threshold(threshold: float, tolerance: float) -> None:
    search, tried = RateSearch(0.1, 1000.0, tolerance), 0
    while (value := search.next_value()) is not None:
        search.tell(value, value <= threshold)
        tried += 1
    assert search.best is not None
    assert search.best <= threshold <= search.best * (1 + tolerance) * (1 + 1e-9)
    assert tried <= 30


@pytest.mark.parametrize(("threshold", "best", "capped"), [(0.01, None, False), (1e9, 1000.0, True)])
def test_rate_search_outside_its_bounds(threshold: float, best: float | None, capped: bool) -> None:
    search = RateSearch(0.1, 1000.0, 0.05)
    while (value := search.next_value()) is not None:
        search.tell(value, value <= threshold)
    assert (search.best, search.capped) == (best, capped)


@given(st.integers(1, 64), st.integers(1, 5))
def test_fleet_search_finds_the_smallest(needed: int, low: int) -> None:
    search = FleetSearch(low, 64)
    while (value := search.next_value()) is not None:
        search.tell(value, value >= needed)
    assert search.best == max(needed, low)


def test_fleet_search_when_nothing_is_enough() -> None:
    search = FleetSearch(1, 10)
    while (value := search.next_value()) is not None:
        assert value <= 10
        search.tell(value, False)
    assert search.best is None


def summary(**engine: Any) -> dict[str, Any]:
    return {"engines": {"e": {"saturated": False, "rejected": 0, **engine}}, "ceiling": {"token": 0.4}}


def test_misses_say_by_how_much() -> None:
    limits = [Limit(metric="ttft_s.p99", at_most=0.5), Limit(metric="ceiling.token", at_least=0.3)]
    assert misses(limits, "e", summary(ttft_s={"p99": 0.5})) == ""
    assert "0.25 above 0.5" in misses(limits, "e", summary(ttft_s={"p99": 0.75}))
    assert "queue grows" in misses(limits, "e", summary(ttft_s={"p99": 0.1}, saturated=True))
    assert "2 requests are rejected" in misses(limits, "e", summary(ttft_s={"p99": 0.1}, rejected=2))
    with pytest.raises(PrefixsimError, match="no metric 'ttft'"):
        misses([Limit(metric="ttft", at_most=1.0)], "e", summary())


BASE = """\
name: base
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 1}
  requests: 150
  templates:
    - {name: t, segments: [{shared: system, tokens: 2000}, {unique: user, tokens: 100}]}
  output_tokens: 50
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm}]
seed: 3
"""
PLAN = """\
name: plan
base: base.yaml
limits: [{metric: ttft_s.p99, at_most: 0.3}]
rate: [1, 400]
tolerance: 0.2
repeats: 2
"""


def test_a_plan_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "plan.yaml").write_text(PLAN)
    study = load_study(tmp_path / "plan.yaml", PlanSpec)
    on, off = run_plan(study, SerialExecutor(), PointStore(tmp_path / "out"))
    assert on.caching
    assert not off.caching
    assert on.value is not None
    assert off.value is not None
    assert on.value > 1.2 * off.value, "2,000 of 2,100 prompt tokens are shared: caching must raise the rate"
    said = "\n".join(conclusion(study.spec, [on, off]))
    assert "Prefix caching multiplies the rate" in said
    header, rows = table(study.spec, [on, off])
    assert len(rows) == 2
    assert len(header) == len(rows[0])


def test_a_plan_that_nothing_meets(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "plan.yaml").write_text(
        PLAN.replace("at_most: 0.3", "at_most: 0.000001").replace("repeats: 2", "repeats: 1")
    )
    study = load_study(tmp_path / "plan.yaml", PlanSpec)
    answers = run_plan(study, SerialExecutor(), PointStore(tmp_path / "out"))
    said = "\n".join(conclusion(study.spec, answers))
    assert "No fleet in the grid meets the limits" in said
    assert "above 1e-06" in said


def test_the_cheapest_fleet(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        BASE.replace("rate_per_s: 1", "rate_per_s: 60").replace("requests: 150", "requests: 400")
    )
    (tmp_path / "plan.yaml").write_text(
        PLAN.replace("rate: [1, 400]", "find: cheapest_fleet\nreplicas: [1, 16]").replace("repeats: 2", "repeats: 1")
    )
    study = load_study(tmp_path / "plan.yaml", PlanSpec)
    on, off = run_plan(study, SerialExecutor(), PointStore(tmp_path / "out"))
    assert on.value is not None
    assert off.value is not None
    assert 1 <= on.value < off.value
    assert "caching saves" in "\n".join(conclusion(study.spec, [on, off]))


BOUNDS = """\
name: p
base: quickstart
limits: [{metric: ttft_s.p99, at_most: 1}]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate: [0, 10]", r"rate: expected two rates, the lower one first, above 0"),
        ("rate: [10, 1]", r"rate: expected two rates"),
        ("rate: [1, 1e300]", r"rate: expected two rates"),
        ("replicas: [0, 4]", r"replicas: expected two numbers of replicas"),
        ("replicas: [4, 2]", r"replicas: expected two numbers of replicas"),
        ("replicas: [1, 1000000000]", r"replicas: expected two numbers of replicas"),
        ("tolerance: 1e-300", r"tolerance: .* greater than or equal to 0.000001"),
        ("over: [{key: seed, geometric: {start: 1, stop: 2.5, points: 1000000000000}}]", r"over: 1,000,000,000,000 fleet shapes"),
        ("over: [{key: seed, range: {start: -1e308, stop: 1e308, step: 1}}]", r"range.start: .* greater than or equal to"),
        ("over: [{key: seed, range: {start: 0, stop: 1, step: 1e-300}}]", r"range.step: "),
        ("over: [{key: seed, geometric: {start: 1e-300, stop: 1e300, points: 3}}]", r"geometric.start: "),
        ("over: [{key: hardware.gpu, values: [h200, h20O]}]", r"hardware.gpu=h20O: .*did you mean 'h20'"),
        ("engines: [vlm]", r"engines: the base has no engine 'vlm' \(did you mean 'vllm'\?\)"),
    ],
)  # fmt: skip
def test_bounds_that_no_search_could_end_in_are_refused_at_once(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(f"{BOUNDS}{text}\n")

    class Refusing(SerialExecutor):
        def map(self, task: Any, jobs: Any) -> Any:
            raise AssertionError("nothing was to be run")

    with pytest.raises(ScenarioError, match=said):
        run_plan(load_study(tmp_path / "p.yaml", PlanSpec), Refusing(), PointStore(tmp_path))
