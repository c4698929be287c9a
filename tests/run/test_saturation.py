"""Saturation: a growing queue is seen, a ramp and a drained one are not, and turns that hold themselves back hide nothing."""

from __future__ import annotations

import numpy as np
import pytest

from prefixsim.analysis.saturation import queue_growth
from prefixsim.records import REQ_ADMITTED_NS, REQ_RELEASED_NS, new_request_rows
from prefixsim.units import NS_PER_S


def rows(released_s: np.ndarray, admitted_s: np.ndarray) -> np.ndarray:
    out = new_request_rows(len(released_s))
    out[:, REQ_RELEASED_NS] = (released_s * NS_PER_S).astype(np.int64)
    out[:, REQ_ADMITTED_NS] = (admitted_s * NS_PER_S).astype(np.int64)
    return out


@pytest.mark.parametrize(("service_per_s", "saturated"), [(0.8, True), (0.95, True), (1.05, False), (10.0, False)])
def test_one_arrival_a_second_against_the_rate_of_service(service_per_s: float, saturated: bool) -> None:
    released = np.arange(1000, dtype=float)
    admitted = np.maximum.accumulate(np.maximum(released, np.arange(1000) / service_per_s))
    found = queue_growth(rows(released, admitted))
    assert found.saturated is saturated
    assert ("queue grows" in found.note) is saturated


def test_later_turns_do_not_hide_a_queue_that_grew() -> None:
    """Sessions arrive for 500 s faster than they are served; their later turns trickle on for another 2,000 s."""
    released = np.concatenate([np.arange(500, dtype=float), np.linspace(600, 2500, 500)])
    admitted = np.concatenate([np.arange(500) * 2.0, np.linspace(1000, 2500, 500)])
    after = np.concatenate([np.full(500, -1), np.arange(500)])
    assert queue_growth(rows(released, admitted), after).saturated
    assert not queue_growth(rows(released, admitted)).saturated, "the case shows nothing if the plain rule sees it too"
