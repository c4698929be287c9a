"""Ranges in flat arrays, and requests that await others, by their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefixsim.workload import reference
from prefixsim.workload.links import parents_first, resolve, turns
from prefixsim.workload.ragged import gather


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=8))
def test_gathered_ranges(ranges):
    flat = np.arange(100, 115)
    start, count = [a for a, _ in ranges], [n for _, n in ranges]
    assert gather(flat, start, count).tolist() == reference.copy_ranges(flat.tolist(), start, count)


def test_a_whole_array_is_not_copied():
    flat = np.arange(6)
    assert gather(flat, [0, 9, 2], [2, 0, 4]) is flat
    assert gather(flat, [2, 0], [4, 2]).tolist() == [2, 3, 4, 5, 0, 1]


@st.composite
def forests(draw):
    """after (-1 or another request, no circles, in any file order), delays, arrivals, which of them are given."""
    n = draw(st.integers(1, 12))
    place = draw(st.permutations(range(n)))
    after = [-1] * n
    for k in range(1, n):
        if draw(st.booleans()):
            after[place[k]] = place[draw(st.integers(0, k - 1))]
    number = st.sampled_from([0, 1, 7, 4 * 10**18, 9 * 10**18])
    numbers = st.lists(number, min_size=n, max_size=n)
    return after, draw(numbers), draw(numbers), draw(st.lists(st.booleans(), min_size=n, max_size=n))


@given(forests())
def test_nominal_arrivals(forest):
    after, delay, arrival, given_ = forest
    got, circle = resolve(
        np.array(after, dtype=np.int32), np.array(delay), np.array(arrival), np.array(given_, dtype=np.bool_)
    )
    assert circle == -1
    assert got.tolist() == reference.nominal_arrivals(after, delay, arrival, given_)


@given(forests())
def test_nobody_comes_before_the_one_it_awaits(forest):
    after = np.array(forest[0], dtype=np.int32)
    order = parents_first(after).tolist()
    assert sorted(order) == list(range(len(order)))
    place = {r: k for k, r in enumerate(order)}
    assert all(place[int(p)] < place[r] for r, p in enumerate(after) if p >= 0)
    if all(p < r for r, p in enumerate(after)):
        assert order == sorted(order)


def test_circles_are_found():
    after = np.array([-1, 0, 3, 4, 2], dtype=np.int32)
    zeros = np.zeros(5, dtype=np.int64)
    assert resolve(after, zeros, zeros, zeros.astype(np.bool_))[1] in {2, 3, 4}


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=20))
def test_turns_count_within_sessions(sessions):
    expected = [0 if s < 0 else sessions[:i].count(s) for i, s in enumerate(sessions)]
    assert turns(np.array(sessions, dtype=np.int32)).tolist() == expected
