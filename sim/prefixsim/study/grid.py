"""From a study to its points: which keys take which values, in axis order. Sizes are known before anything is made."""

from __future__ import annotations

import copy
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


def apply_settings(base: Mapping[str, Any], settings: Mapping[str, Any], file: str = "study") -> dict[str, Any]:
    """A copy of raw scenario data with keys set. `engines.NAME.key` finds an engine by name, `engines.*.key` all of them.

    Raises ScenarioError when a key leads through something that is not there; unknown last keys are found by validation.
    """
    data = copy.deepcopy(dict(base))
    for key, value in settings.items():
        _set(data, key.split("."), value, key, file)
    return data


def _set(node: Any, parts: list[str], value: Any, key: str, file: str) -> None:
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        names = [str(item.get("name", i)) if isinstance(item, dict) else str(i) for i, item in enumerate(node)]
        if head == "*":
            chosen = list(range(len(node)))
        elif head in names:
            chosen = [names.index(head)]
        elif head.isdigit() and int(head) < len(node):
            chosen = [int(head)]
        else:
            raise ScenarioError(
                Problem(f"names no key: there is no '{head}'{nearest(head, names)}", file=file, key=key)
            )
        for i in chosen:
            if rest:
                _set(node[i], rest, value, key, file)
            else:
                node[i] = copy.deepcopy(value)
        return
    if not isinstance(node, dict):
        raise ScenarioError(Problem(f"names no key: '{head}' is looked up in a plain value", file=file, key=key))
    if not rest:
        node[head] = copy.deepcopy(value)
        return
    if node.get(head) is None:
        node[head] = {}
    _set(node[head], rest, value, key, file)
