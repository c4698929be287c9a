"""The report's arithmetic: extremes survive thinning, sums of step functions and histograms are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.report.series import LogHistogram, envelope, thin, total_of_steps

steps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=40).map(
    lambda rows: (
        np.array(sorted({t for t, _ in rows}), dtype=float),
        np.array([dict(rows)[t] for t in sorted({t for t, _ in rows})], dtype=float),
    )
)


def value_at(step: tuple[np.ndarray, np.ndarray], when: float) -> float:
    index = int(np.searchsorted(step[0], when, side="right")) - 1
    return float(step[1][index]) if index >= 0 else 0.0


def test_thin_keeps_first_last_minimum_maximum() -> None:
    rng = np.random.default_rng(1)
    time = np.sort(rng.uniform(0, 100, 50_000))
    value = rng.normal(size=50_000)
    value[31_337], value[41_000] = 99.0, -99.0
    t, v = thin(time, value, 1000)
    assert len(t) <= 1002
    assert (np.diff(t) >= 0).all()
    assert (t[0], v[0], t[-1], v[-1]) == (time[0], value[0], time[-1], value[-1])
    assert (v.max(), v.min()) == (99.0, -99.0)
    assert t[v.argmax()] == time[31_337]


def test_thin_survives_equal_times_and_short_input() -> None:
    t, v = thin(np.zeros(100), np.arange(100.0), 10)
    assert (v.min(), v.max()) == (0, 99)
    assert len(thin(np.empty(0), np.empty(0), 10)[0]) == 0
    assert len(t) <= 10


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=1, max_size=4))
def test_total_of_steps_is_the_sum_everywhere(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    total = total_of_steps(parts)
    for when in np.arange(0, 51, 0.5):
        assert value_at(total, when) == sum(value_at(p, when) for p in parts)


@settings(max_examples=100, deadline=None)
@given(steps.filter(lambda s: len(s[0]) > 1), st.integers(1, 20))
def test_envelope_holds_every_value_and_the_whole_area(step: tuple[np.ndarray, np.ndarray], slices: int) -> None:
    start, low, mean, high = envelope(*step, slices)
    width = (step[0][-1] - step[0][0]) / slices
    assert mean.sum() * width == pytest.approx((step[1][:-1] * np.diff(step[0])).sum(), abs=1e-6)
    assert high.max() == step[1].max()
    assert low.min() == step[1].min()
    for s, lo, hi in zip(start, low, high, strict=True):
        for when in np.linspace(s + 1e-6, s + width - 1e-6, 7):
            assert lo <= value_at(step, when) <= hi


def test_histogram_counts_are_exact_and_quantiles_within_a_bin() -> None:
    rng = np.random.default_rng(2)
    values = rng.lognormal(-3, 1.2, 20_000)
    histogram = LogHistogram()
    histogram.add(values[:7000])
    histogram.add(values[7000:])
    histogram.add(np.array([np.nan, -1.0]))
    assert histogram.total == 20_000
    for q in (0.01, 0.5, 0.9, 0.99):
        assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), rel=0.02)
    edge, share = histogram.cdf(5000)
    for x, s in zip(edge[::50], share[::50], strict=True):
        assert s == pytest.approx((values < x).mean(), abs=1e-9)
    assert (share[0], share[-1]) == (0, 1)
    assert edge[0] <= values.min()
    assert histogram.density()[1].sum() == pytest.approx(1)
    assert histogram.extent()[0] <= values.min() <= values.max() <= histogram.extent()[1]


def test_histogram_weights_zeros_and_nothing() -> None:
    histogram = LogHistogram()
    assert histogram.quantile(0.5) is None
    assert len(histogram.cdf()[0]) == len(histogram.density()[0]) == 0
    histogram.add(np.array([0.0, 0.01]), np.array([3.0, 1.0]))
    assert (histogram.total, histogram.zero) == (4, 3)
    assert histogram.quantile(0.5) == 0
    assert histogram.quantile(0.99) == pytest.approx(0.01, rel=0.012)
    assert histogram.cdf()[1][0] == 0.75
