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
def sift_up(nodes, heap, at, key, access, node):
    """Moves a hole up until (key, access) fits, and fills it."""
    while at > 0:
        up = (at - 1) >> 2
        if heap[up, 0] < key or (heap[up, 0] == key and heap[up, 1] <= access):
            break
        heap[at, 0] = heap[up, 0]
        heap[at, 1] = heap[up, 1]
        heap[at, 2] = heap[up, 2]
        nodes[heap[at, 2], N_HEAP] = at
        at = up
    heap[at, 0] = key
    heap[at, 1] = access
    heap[at, 2] = node
    nodes[node, N_HEAP] = at


@lean_kernel
def sift_down(nodes, heap, size, at, key, access, node):
    """Moves a hole down until (key, access) fits, and fills it."""
    while True:
        child = 4 * at + 1
        if child >= size:
            break
        best = child
        stop = min(child + 4, size)
        for c in range(child + 1, stop):
            if heap[c, 0] < heap[best, 0] or (heap[c, 0] == heap[best, 0] and heap[c, 1] < heap[best, 1]):
                best = c
        if key < heap[best, 0] or (key == heap[best, 0] and access <= heap[best, 1]):
            break
        heap[at, 0] = heap[best, 0]
        heap[at, 1] = heap[best, 1]
        heap[at, 2] = heap[best, 2]
        nodes[heap[at, 2], N_HEAP] = at
        at = best
    heap[at, 0] = key
    heap[at, 1] = access
    heap[at, 2] = node
    nodes[node, N_HEAP] = at


@lean_kernel
def push_leaf(scalars, nodes, heap, node):
    """A node became an unlocked leaf."""
    at = scalars[S_LEAVES]
    scalars[S_LEAVES] = at + 1
    sift_up(nodes, heap, at, leaf_key(scalars, nodes, node), nodes[node, N_ACCESS], node)


@lean_kernel
def drop_leaf(scalars, nodes, heap, node):
    """A node is no unlocked leaf any more."""
    at = nodes[node, N_HEAP]
    nodes[node, N_HEAP] = NIL
    size = scalars[S_LEAVES] - 1
    scalars[S_LEAVES] = size
    if at < size:
        place_leaf(nodes, heap, size, at, heap[size, 0], heap[size, 1], heap[size, 2])


@lean_kernel
def move_leaf(scalars, nodes, heap, node):
    """The key of an unlocked leaf may have changed."""
    key = leaf_key(scalars, nodes, node)
    place_leaf(nodes, heap, scalars[S_LEAVES], nodes[node, N_HEAP], key, nodes[node, N_ACCESS], node)


@lean_kernel
def place_leaf(nodes, heap, size, at, key, access, node):
    """Puts a leaf into the hole at `at`, wherever its key belongs."""
    up = (at - 1) >> 2
    if at > 0 and (heap[up, 0] > key or (heap[up, 0] == key and heap[up, 1] > access)):
        sift_up(nodes, heap, at, key, access, node)
    else:
        sift_down(nodes, heap, size, at, key, access, node)
