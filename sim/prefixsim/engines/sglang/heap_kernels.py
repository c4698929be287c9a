# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: unlocked leaves in eviction order. A 4-ary heap that knows where each leaf is, so that a key may change both
ways when a leaf is used (mru, filo: a refreshed leaf comes first). Compiled through `prefixsim.jit`.

Twin: `EvictionRule.key` and the minimum over all leaves in `reference_tree`."""

from __future__ import annotations

from prefixsim.engines.sglang.state import (
    FIFO,
    FILO,
    LFU,
    LRU,
    MRU,
    N_ACCESS,
    N_CREATED,
    N_END,
    N_HEAP,
    N_HISTORY,
    N_HITS,
    N_PARENT,
    N_PRIORITY,
    NIL,
    PRIORITY,
    S_LEAVES,
    S_PAGE,
    S_POLICY,
    S_PROTECTED_THRESHOLD,
    S_TLRU_ESTIMATE,
    S_TLRU_THRESHOLD,
    SLRU,
)
from prefixsim.jit import lean_kernel


@lean_kernel
def leaf_key(scalars, nodes, node):
    """First part of a leaf's eviction key; the second is its access time."""
    policy = scalars[S_POLICY]
    if policy == LRU:
        return 0
    if policy == LFU:
        return nodes[node, N_HITS]
    if policy == FIFO:
        return nodes[node, N_CREATED]
    if policy == MRU:
        return -nodes[node, N_ACCESS]
    if policy == FILO:
        return -nodes[node, N_CREATED]
    if policy == PRIORITY:
        return nodes[node, N_PRIORITY]
    if policy == SLRU:
        return 1 if nodes[node, N_HITS] >= scalars[S_PROTECTED_THRESHOLD] else 0
    page = scalars[S_PAGE]
    budget = nodes[node, N_HISTORY] * page + scalars[S_TLRU_ESTIMATE] - scalars[S_TLRU_THRESHOLD]
    before = nodes[nodes[node, N_PARENT], N_END] * page
    return -1 if before >= budget else 0


@lean_kernel
def put(heap, at, key, access, node):
    """Writes an entry. Places are kept apart from the nodes: a sift changes many, and they lie close together."""
    heap[3 * at] = key
    heap[3 * at + 1] = access
    heap[3 * at + 2] = node
    heap[3 * (heap.shape[0] >> 2) + node] = at


@lean_kernel
def before(heap, a, b):
    """Whether entry a is evicted before entry b."""
    return heap[3 * a] < heap[3 * b] or (heap[3 * a] == heap[3 * b] and heap[3 * a + 1] < heap[3 * b + 1])


@lean_kernel
def sift_up(heap, at, key, access, node):
    """Moves a hole up until (key, access) fits, and fills it."""
    while at > 0:
        up = (at - 1) >> 2
        if heap[3 * up] < key or (heap[3 * up] == key and heap[3 * up + 1] <= access):
            break
        put(heap, at, heap[3 * up], heap[3 * up + 1], heap[3 * up + 2])
        at = up
    put(heap, at, key, access, node)


@lean_kernel
def sift_down(heap, size, at, key, access, node):
    """Moves a hole down until (key, access) fits, and fills it."""
    while True:
        child = 4 * at + 1
        if child >= size:
            break
        best = child
        for c in range(child + 1, min(child + 4, size)):
            if before(heap, c, best):
                best = c
        if key < heap[3 * best] or (key == heap[3 * best] and access <= heap[3 * best + 1]):
            break
        put(heap, at, heap[3 * best], heap[3 * best + 1], heap[3 * best + 2])
        at = best
    put(heap, at, key, access, node)


@lean_kernel
def push_leaf(scalars, nodes, heap, node):
    """A node became an unlocked leaf."""
    at = scalars[S_LEAVES]
    scalars[S_LEAVES] = at + 1
    nodes[node, N_HEAP] = 1
    sift_up(heap, at, leaf_key(scalars, nodes, node), nodes[node, N_ACCESS], node)


@lean_kernel
def drop_leaf(scalars, nodes, heap, node):
    """A node is no unlocked leaf any more."""
    at = heap[3 * (heap.shape[0] >> 2) + node]
    nodes[node, N_HEAP] = NIL
    size = scalars[S_LEAVES] - 1
    scalars[S_LEAVES] = size
    if at < size:
        place_leaf(heap, size, at, heap[3 * size], heap[3 * size + 1], heap[3 * size + 2])


@lean_kernel
def move_leaf(scalars, nodes, heap, node):
    """The key of an unlocked leaf may have changed."""
    key = leaf_key(scalars, nodes, node)
    at = heap[3 * (heap.shape[0] >> 2) + node]
    place_leaf(heap, scalars[S_LEAVES], at, key, nodes[node, N_ACCESS], node)


@lean_kernel
def place_leaf(heap, size, at, key, access, node):
    """Puts a leaf into the hole at `at`, wherever its key belongs."""
    up = (at - 1) >> 2
    if at > 0 and (heap[3 * up] > key or (heap[3 * up] == key and heap[3 * up + 1] > access)):
        sift_up(heap, at, key, access, node)
    else:
        sift_down(heap, size, at, key, access, node)
