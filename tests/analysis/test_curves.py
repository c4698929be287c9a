"""Curves: equal to replay at every capacity tried, bounded by each other, and equal to known values."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.helpers import MOONCAKE, W10K_SCRIPT, mooncake, token_rows, w10k
from tests.analysis.test_ceilings import workloads

from prefixsim.analysis import reference
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.curves import _corners, curves
from prefixsim.analysis.sampled import sampled_curve
from prefixsim.analysis.segments import inserted_tokens, lookup_order
from prefixsim.workload.intern import build_chains, build_trie


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workloads(), st.booleans(), st.sampled_from([1, 2, 3, 5]))
def test_equal_to_replay_at_every_capacity(workload, reuse_outputs, g):
    rows = reference.expand(workload, "vllm")
    inserted = inserted_tokens(workload, reuse_outputs)
    order = lookup_order(workload)
    top = build_chains(build_trie(workload, "vllm"), g).n_chains + 2
    capacities = (
        list(range(top + 1)) if top <= 50 else sorted(np.random.default_rng(top).choice(top, 50, replace=False))
    )
    lru, optimal = curves(workload, [g], reuse_outputs=reuse_outputs, optimal_capacities=capacities)
    args = (rows, workload.prompt_tokens.tolist(), inserted.tolist(), order.tolist(), g)
    assert lru.at(capacities).tolist() == [reference.lru_hits(*args, c) for c in capacities]
    assert optimal.at(capacities).tolist() == [reference.optimal_hits(*args, c) for c in capacities]
    assert optimal.hit_tokens.tolist() == optimal.at(capacities).tolist()
    assert (np.diff(lru.at(capacities)) >= 0).all()
    assert (np.diff(optimal.at(capacities)) >= 0).all()
    assert (lru.at(capacities) <= optimal.at(capacities)).all()
    assert (optimal.at(capacities) <= lru.ceiling_tokens).all()
    assert lru.ceiling_tokens == optimal.ceiling_tokens == ceilings(workload, reuse_outputs=reuse_outputs).total(g)[0]
    assert int(lru.at([top])[0]) == int(optimal.at([top])[0]) == lru.ceiling_tokens
    for curve in (lru, optimal):
        need = curve.capacity_for(0.9)
        assert int(curve.at([need])[0]) * 10 >= curve.ceiling_tokens * 9
        assert need == 0 or int(curve.at([need - 1])[0]) * 10 < curve.ceiling_tokens * 9


def best_of_all(rows, prompt, inserted, g, capacity):
    """Most hit tokens that any choice of what to keep can reach, prefix-closed or not, by trying all of them."""
    states = {frozenset(): 0}
    for r, row in enumerate(rows):
        blocks = [tuple(row[: (k + 1) * g]) for k in range(inserted[r] // g)]
        after: dict = {}
        for held, hits in states.items():
            gain = 0
            for block in blocks[: prompt[r] // g]:
                if block not in held:
                    break
                gain += g
            pool = list(held | set(blocks))
            for mask in range(1 << len(pool)):
                kept = frozenset(b for i, b in enumerate(pool) if mask >> i & 1)
                if len(kept) <= capacity:
                    after[kept] = max(after.get(kept, -1), hits + gain)
        states = after
    return max(states.values())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=6), st.integers(0, 3))
def test_optimal_is_what_exhaustive_search_finds(prompts, capacity):
    """Prompts only: Belady's kept set is prefix-closed, so the bound is reached."""
    workload = token_rows([(p, [9]) for p in prompts])
    (optimal,) = curves(workload, [1], ["optimal"], reuse_outputs=False, optimal_capacities=[capacity])
    rows = [list(p) for p in prompts]
    lengths = [len(p) for p in prompts]
    assert int(optimal.hit_tokens[0]) == best_of_all(rows, lengths, lengths, 1, capacity)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=2), st.lists(st.integers(0, 1), min_size=1, max_size=2)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2),
)
def test_optimal_bounds_every_cache_with_outputs(pairs, capacity):
    workload = token_rows(pairs)
    (optimal,) = curves(workload, [1], ["optimal"], optimal_capacities=[capacity])
    rows = [p + o for p, o in pairs]
    best = best_of_all(rows, [len(p) for p, _ in pairs], [len(p) + len(o) - 1 for p, o in pairs], 1, capacity)
    assert int(optimal.hit_tokens[0]) >= best


def test_corners_by_counting_and_by_sorting_agree(monkeypatch):
    reuse = np.array([[1, 3, 0, 1], [2, 5, 0, 2], [9, 1, 1, 2], [3, 1, 2, 3]], dtype=np.int64)
    by_counting = _corners(reuse)
    monkeypatch.setattr("prefixsim.analysis.curves.MAX_DENSE_POSITIONS", 0)
    by_sorting = _corners(reuse)
    assert [a.tolist() for a in by_counting] == [a.tolist() for a in by_sorting]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(workloads(), st.sampled_from([1, 2, 3]))
def test_a_full_sample_is_the_exact_curve(workload, g):
    """The textbook method, one reference at a time, is a second implementation of the exact curve."""
    (lru,) = curves(workload, [g], ["lru"])
    capacities = list(range(40))
    sampled = sampled_curve(workload, g, capacities, rate=1.0)
    assert sampled.hit_tokens.round().astype(int).tolist() == lru.at(capacities).tolist()


def many_sessions(n=3000):
    rng = np.random.default_rng(5)
    return token_rows([([7, *rng.integers(0, 40, size=3), *rng.integers(0, 9, size=60)], [1]) for _ in range(n)])


def test_a_sample_is_close_and_says_how_close():
    workload = many_sessions()
    (exact,) = curves(workload, [4], ["lru"])
    capacities = [100, 1000, 5000, 20000]
    sampled = sampled_curve(workload, 4, capacities, rate=0.2)
    off = np.abs(sampled.hit_tokens - exact.at(capacities))
    assert sampled.sampled_ids < 0.25 * sampled.n_chains
    assert (off <= 5 * sampled.standard_error_tokens + 0.002 * exact.prompt_tokens).all()
    assert (sampled.standard_error_tokens < 0.05 * exact.prompt_tokens).all()
    with pytest.raises(ValueError, match="sampling rate"):
        sampled_curve(workload, 4, capacities, rate=0)


def test_a_block_in_every_prompt_does_not_decide_the_estimate():
    """Most hits are of one block: whether it falls into the sample must not move the estimate at a useful capacity."""
    rng = np.random.default_rng(3)
    workload = token_rows([([*range(8), *rng.integers(0, 30, size=40)], [1]) for _ in range(2000)])
    (exact,) = curves(workload, [8], ["lru"])
    for seed in range(8):
        sampled = sampled_curve(workload, 8, [4000, 10**6], rate=0.05, seed=seed)
        off = np.abs(sampled.hit_tokens - exact.at([4000, 10**6])) / exact.prompt_tokens
        assert off[0] < 0.01
        assert off[1] == 0
        assert (sampled.standard_error_tokens < 0.01 * exact.prompt_tokens).all()


@pytest.mark.shared
def test_mooncake_values():
    if not MOONCAKE.exists():
        pytest.skip("../shared is not here")
    workload = mooncake(MOONCAKE)
    (lru,) = curves(workload, [512], ["lru"])
    expected = {
        1_000: 6_650_880,
        3_000: 9_934_848,
        10_000: 31_746_560,
        30_000: 48_812_544,
        50_000: 52_594_688,
        100_000: 53_722_112,
        10**9: 54_063_104,
    }
    assert dict(zip(expected, lru.at(list(expected)).tolist(), strict=True)) == expected


@pytest.mark.shared
@pytest.mark.slow
def test_speed_workload_values(tmp_path):
    if not W10K_SCRIPT.exists():
        pytest.skip("../shared is not here")
    subprocess.run(
        [sys.executable, str(W10K_SCRIPT), "10000", str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL,
    )
    workload = w10k(tmp_path)
    for reuse_outputs, expected in (
        (False, [7_941_104, 13_775_792, 14_499_008]),
        (True, [7_696_272, 13_970_768, 15_149_808]),
    ):
        (lru,) = curves(workload, [16], ["lru"], reuse_outputs=reuse_outputs)
        assert lru.at([2_900, 20_000, 10**9]).tolist() == expected
