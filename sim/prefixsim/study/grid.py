"""From a study to its points: which keys take which values, in axis order. Sizes are known before anything is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixsim.errors import Problem, ScenarioError, nearest
from prefixsim.scenario.study import AnyAxis, Axis

MAX_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Point:
    """One scenario of a study. axes: key -> value in axis order; repeat: 0-based number of the seed."""

    index: int
    axes: dict[str, Any]
    repeat: int


def axis_lists(axes: Sequence[AnyAxis]) -> list[list[dict[str, Any]]]:
    """Each axis as a list of {key: value} settings; zipped axes as one list."""
    out = []
    for axis in axes:
        if isinstance(axis, Axis):
            out.append([{axis.key: v} for v in axis.points()])
        else:
            columns = [a.points() for a in axis.zip]
            keys = [a.key for a in axis.zip]
            out.append([dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)])
    return out


def grid_size(axes: Sequence[AnyAxis], repeats: int) -> int:
    """Number of runs before exclusions."""
    size = repeats
    for axis in axes:
        size *= axis.size() if isinstance(axis, Axis) else axis.zip[0].size()
    return size


def points(
    axes: Sequence[AnyAxis],
    exclude: Sequence[Mapping[str, Any]],
    repeats: int,
    *,
    limit: int = MAX_POINTS,
    file: str = "study",
) -> list[Point]:
    """All points in axis order, the last axis fastest, repeats innermost.

    Raises ScenarioError for an empty grid, a key that occurs on two axes, an exclusion on a key without an axis, or a grid
    larger than `limit`.
    """
    keys = [k for axis in axes for k in ([axis.key] if isinstance(axis, Axis) else [a.key for a in axis.zip])]
    twice = sorted({k for k in keys if keys.count(k) > 1})
    if twice:
        raise ScenarioError(Problem(f"{twice[0]} is on two axes", file=file, key="axes"))
    size = grid_size(axes, repeats)
    if size > limit:
        raise ScenarioError(
            Problem(
                f"the grid has {size:,} runs, the limit is {limit:,}; confirm with --max-points {size}",
                file,
                key="axes",
            )
        )
    for rule in exclude:
        for key in rule:
            if key not in keys:
                raise ScenarioError(Problem(f"{key} is not an axis{nearest(key, keys)}", file=file, key="exclude"))
    found = list(_product(axis_lists(axes), exclude))
    if not found:
        raise ScenarioError(
            Problem("the grid is empty: an axis has no values, or every point is excluded", file, key="axes")
        )
    runs = itertools.product(found, range(repeats))
    return [Point(i, axes_, repeat) for i, (axes_, repeat) in enumerate(runs)]


def _product(lists: list[list[dict[str, Any]]], exclude: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for combination in itertools.product(*lists):
        setting = {k: v for part in combination for k, v in part.items()}
        if not any(all(setting.get(k) == v for k, v in rule.items()) for rule in exclude):
            yield setting


def for_all_engines(settings: Mapping[str, Any], engines: Sequence[str]) -> dict[str, Any]:
    """`engines.*.key` written out for every engine by name; other keys as they are."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith("engines.*."):
            out.update({f"engines.{name}.{key.removeprefix('engines.*.')}": value for name in engines})
        else:
            out[key] = value
    return out
