"""Looking numbers up in a summary by their dotted name, and small statistics over repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefixsim.report.facts import named
from prefixsim.report.facts import value_of as lookup

__all__ = ["is_boolean", "lookup", "mean_interval", "names"]

# Two-sided 95 % quantiles of Student's t by degrees of freedom (standard tables); beyond 30: the normal one.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


def names(summary: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of all numbers in a summary; engines are addressed without `engines.`."""
    for key, value in summary.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from names(value, "" if name == "engines" else f"{name}.")
        elif isinstance(value, bool | int | float):
            yield name


def is_boolean(summary: Mapping[str, Any], name: str) -> bool:
    """Whether a metric is true or false."""
    return isinstance(named(summary, name), bool)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half width of its 95 % confidence interval by Student's t; 0 for one value)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, 0.0
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.96
    return mean, t * math.sqrt(variance / n)
