"""The hash table from chain ids to nodes, beside a dict: crowded, so that entries stand in each other's way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.engines.sglang.state import NIL
from prefixsim.engines.sglang.table_kernels import table_drop, table_find, table_home, table_refill, table_set


def empty(slots: int) -> np.ndarray:
    return np.full((slots, 2), NIL, dtype=np.int64)


@pytest.mark.parametrize("slots", [4, 16])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_table_is_a_dict(slots: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chains = rng.choice([50, 2**40], size=20).astype(np.int64) + rng.integers(0, 30, 20)
    table, want = empty(slots), {}
    for step in range(120):
        chain = int(rng.choice(chains))
        if chain in want and rng.random() < 0.5:
            table_drop(table, chain)
            del want[chain]
        elif chain in want or len(want) < slots - 1:  # one slot stays free: a search must end
            table_set(table, chain, step)
            want[chain] = step
        assert {int(c): int(table_find(table, c)) for c in chains} == {int(c): want.get(int(c), NIL) for c in chains}
        assert np.count_nonzero(table[:, 1] != NIL) == len(want)
    larger = empty(4 * slots)
    table_refill(table, larger)
    assert {int(c): int(table_find(larger, c)) for c in chains} == {int(c): want.get(int(c), NIL) for c in chains}


def test_consecutive_ids_spread() -> None:
    """Ids of one row are consecutive, and may be those of 10^9 tokens: they must not pile up in one place."""
    table = empty(1 << 12)
    for base in (0, 10**9, 2**45):
        homes = [int(table_home(table, np.int64(base + i))) for i in range(1 << 12)]
        assert all(0 <= home < 1 << 12 for home in homes)
        assert len(set(homes)) > 0.55 * (1 << 12), "a random function fills 63 %"
