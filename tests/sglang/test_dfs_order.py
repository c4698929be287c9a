"""dfs-weight on its own: the order of waiting requests in a grown tree, compiled and plain."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as hs

from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.reference_tree import dfs_weight_order
from prefixsim.engines.sglang.waiting_kernels import dfs_order

from .test_twin import Both


@given(seed=hs.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_dfs_order_equals_twin(seed: int) -> None:
    rng = random.Random(seed)
    both = Both("lru", rng)
    nodes = both.arenas.nodes
    weights = np.zeros((nodes.shape[0], 3), dtype=np.int64)
    for _ in range(6):
        for _ in range(rng.randint(1, 8)):
            both.put(rng.randrange(24), rng.randint(1, 24), 0, 0)
        live = [x for x in both.arenas.table[:, 1].tolist() if x != st.NIL]
        twins = {x.pages[0]: x for x in both.tree.nodes()}
        n = rng.randint(1, 16)
        ends = [rng.choice([st.ROOT, *live]) for _ in range(n)]
        want = dfs_weight_order(
            both.tree.root, [both.tree.root if x == st.ROOT else twins[int(nodes[x, st.N_FIRST])] for x in ends]
        )
        slots = np.zeros((n, st.SLOT_COLUMNS), dtype=np.int64)
        waiting = np.array(rng.sample(range(n), n), dtype=np.int64)
        slots[waiting, st.R_NODE] = ends
        order, temp, key1, key2 = np.zeros((4, n), dtype=np.int64)
        dfs_order(nodes, slots, waiting, order, temp, key1, key2, np.zeros(n), weights, n)
        assert order.tolist() == want
        assert not weights.any(), "left as it was found"
