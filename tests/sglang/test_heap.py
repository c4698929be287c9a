"""The heap of unlocked leaves on its own: many leaves, so that holes are filled from other branches."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.heap_kernels import drop_leaf, leaf_key, move_leaf, push_leaf

from .cases import check_heap

N = 120


@pytest.mark.parametrize("policy", [st.LRU, st.LFU, st.MRU])
@pytest.mark.parametrize("seed", range(3))
def test_heap_is_sorted_leaves(policy: int, seed: int) -> None:
    rng = random.Random(seed)
    scalars = np.zeros(st.N_SCALARS, dtype=np.int64)
    scalars[st.S_POLICY] = policy
    nodes = np.zeros((N + 1, st.NODE_COLUMNS), dtype=np.int64)
    nodes[:, st.N_LOCKS], nodes[:, st.N_HEAP] = 1, st.NIL
    heap = np.zeros(4 * (N + 1), dtype=np.int64)
    arenas = SimpleNamespace(scalars=scalars, nodes=nodes, heap=heap)
    live = list(range(1, N + 1))
    stamps = rng.sample(range(10_000), 2000)  # in no order: leaves come back with old stamps, too

    def use(node: int) -> None:
        nodes[node, st.N_ACCESS], nodes[node, st.N_HITS] = stamps.pop(), rng.randrange(3)

    def order(node: int) -> tuple[int, int]:
        return int(leaf_key(scalars, nodes, node)), int(nodes[node, st.N_ACCESS])

    inside: list[int] = []
    for _ in range(700):
        node = rng.choice(inside) if inside and rng.random() < 0.55 else rng.choice(live)
        if node not in inside:
            use(node)
            nodes[node, st.N_LOCKS] = 0
            push_leaf(scalars, nodes, heap, node)
            inside.append(node)
        elif rng.random() < 0.5:
            nodes[node, st.N_LOCKS] = 1
            drop_leaf(scalars, nodes, heap, node)
            inside.remove(node)
        else:
            use(node)
            move_leaf(scalars, nodes, heap, node)
        check_heap(arenas, live)  # type: ignore[arg-type]
    assert len(inside) > 30
    for node in sorted(inside, key=order):
        assert heap[2] == node, "the first to be evicted"
        nodes[node, st.N_LOCKS] = 1
        drop_leaf(scalars, nodes, heap, node)
    assert scalars[st.S_LEAVES] == 0
