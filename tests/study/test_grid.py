"""Grids: sizes, order, exclusions, keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prefixsim.errors import ScenarioError
from prefixsim.scenario.study import Axis, Geometric, Range, ZippedAxes
from prefixsim.study import grid
from prefixsim.study.metrics import lookup, mean_interval, names


def test_last_axis_is_fastest_and_repeats_innermost() -> None:
    axes = [Axis(key="a", values=[1, 2]), Axis(key="b", values=["x", "y"])]
    got = [(p.index, p.axes, p.repeat) for p in grid.points(axes, [], 2)]
    assert got == [
        (2 * i + r, {"a": a, "b": b}, r)
        for i, (a, b) in enumerate([(1, "x"), (1, "y"), (2, "x"), (2, "y")])
        for r in (0, 1)
    ]


def test_zipped_axes_move_together() -> None:
    axes = [ZippedAxes(zip=[Axis(key="a", values=[1, 2]), Axis(key="b", values=[3, 4])])]
    assert [p.axes for p in grid.points(axes, [], 1)] == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]


def test_exclusions_need_all_their_values() -> None:
    axes = [Axis(key="a", values=[1, 2]), Axis(key="b", values=[1, 2])]
    left = [p.axes for p in grid.points(axes, [{"a": 1, "b": 2}], 1)]
    assert left == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 2}]


@pytest.mark.parametrize(
    ("axes", "exclude", "said"),
    [
        ([Axis(key="a", range=Range(start=0, stop=10**9, step=1))], [], "1,000,000,001 runs"),
        ([Axis(key="a", values=[])], [], "empty"),
        ([Axis(key="a", values=[1])], [{"a": 1}], "empty"),
        ([Axis(key="abc", values=[1])], [{"abd": 1}], "did you mean 'abc'"),
        ([Axis(key="a", values=[1]), Axis(key="a", values=[2])], [], "on two axes"),
    ],
)
def test_refusals(axes: list[Axis], exclude: list[dict[str, int]], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        grid.points(axes, exclude, 1)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 7))
def test_range_size_is_the_number_of_its_values(start: int, width: int, step: int) -> None:
    spread = Range(start=start, stop=start + width, step=step)
    assert spread.values() == list(range(start, start + width + 1, step))
    assert spread.size() == len(spread.values())


def test_geometric_ends_are_kept() -> None:
    assert Geometric(start=1, stop=1000, points=4).values() == [1, 10, 100, 1000]


def test_a_star_stands_for_every_engine() -> None:
    got = grid.for_all_engines({"engines.*.x": 1, "seed": 2}, ["vllm", "sglang"])
    assert got == {"engines.vllm.x": 1, "engines.sglang.x": 1, "seed": 2}


def test_metrics_by_name() -> None:
    summary = {"ceiling": {"token": 0.5}, "engines": {"vllm": {"hit_rate": 0.25, "ttft_s": {"p99": 2}}}}
    assert sorted(names(summary)) == ["ceiling.token", "vllm.hit_rate", "vllm.ttft_s.p99"]
    assert lookup(summary, "vllm.ttft_s.p99") == 2.0
    assert lookup(summary, "ceiling.token") == 0.5
    assert lookup(summary, "engines.vllm.hit_rate") == 0.25
    assert lookup(summary, "nope") is None


def test_interval_of_three_values_by_hand() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)


def test_zipped_axes_are_as_long_as_their_values() -> None:
    with pytest.raises(ValidationError, match="different lengths"):  # of 1, 2, 2, 3 the equal ones count once
        ZippedAxes.model_validate(
            {
                "zip": [
                    {"key": "a", "geometric": {"start": 1, "stop": 3, "points": 4}},
                    {"key": "b", "values": [1, 2, 3, 4]},
                ]
            }
        )
