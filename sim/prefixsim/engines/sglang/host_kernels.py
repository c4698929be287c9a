# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: host copies of the tree's nodes (HiCache, write_through and write_through_selective). Compiled through
`prefixsim.jit`. Rules: docs/tiers.md. Twin: `reference_hicache.HostTree`.

A node is on the GPU (N_DEVICE), in host memory (N_HOST), or both. What is above a node on the GPU is on the GPU, what is
above one in host memory is in host memory. A node with neither does not exist.
"""

from __future__ import annotations

from prefixsim.engines.sglang.heap_kernels import drop_leaf, leaf_key, move_leaf
from prefixsim.engines.sglang.state import (
    N_ACCESS,
    N_ALL,
    N_CHILDREN,
    N_DEVICE,
    N_END,
    N_FIRST,
    N_HEAP,
    N_HOST,
    N_HOST_HEAP,
    N_HOST_PLACE,
    N_PARENT,
    NIL,
    ROOT,
    S_EVICTABLE,
    S_FREE_NODE,
    S_HOST_AVAILABLE,
    S_HOST_EVICTED,
    S_HOST_LEAVES,
    S_HOST_PINNED,
    S_NODES,
)
from prefixsim.engines.sglang.table_kernels import table_drop
from prefixsim.jit import lean_kernel


@lean_kernel
def _first(scalars, nodes, a, b):
    """Whether host leaf a is evicted before host leaf b: the same order as on the GPU."""
    key, other = leaf_key(scalars, nodes, a), leaf_key(scalars, nodes, b)
    return key < other or (key == other and nodes[a, N_ACCESS] < nodes[b, N_ACCESS])


@lean_kernel
def _put(nodes, at, node):
    nodes[at, N_HOST_HEAP] = node
    nodes[node, N_HOST_PLACE] = at


@lean_kernel
def _settle_at(scalars, nodes, at, node):
    """Brings a node at (or near) place `at` of the heap where it belongs."""
    while at > 0:
        up = (at - 1) >> 1
        if not _first(scalars, nodes, node, nodes[up, N_HOST_HEAP]):
            break
        _put(nodes, at, nodes[up, N_HOST_HEAP])
        at = up
    n = scalars[S_HOST_LEAVES]
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and _first(scalars, nodes, nodes[child + 1, N_HOST_HEAP], nodes[child, N_HOST_HEAP]):
            child += 1
        if not _first(scalars, nodes, nodes[child, N_HOST_HEAP], node):
            break
        _put(nodes, at, nodes[child, N_HOST_HEAP])
        at = child
    _put(nodes, at, node)


@lean_kernel
def host_leaf(scalars, nodes, node):
    """A node became a host leaf: in host memory only, without children. The one about to be loaded never is."""
    if node == ROOT or nodes[node, N_DEVICE] == 1 or nodes[node, N_ALL] > 0 or node == scalars[S_HOST_PINNED]:
        return
    at = scalars[S_HOST_LEAVES]
    scalars[S_HOST_LEAVES] = at + 1
    nodes[at, N_HOST_HEAP] = node
    _settle_at(scalars, nodes, at, node)


@lean_kernel
def host_drop(scalars, nodes, node):
    """A node is no host leaf any more, if it was one."""
    at = nodes[node, N_HOST_PLACE]
    if at == NIL:
        return
    nodes[node, N_HOST_PLACE] = NIL
    n = scalars[S_HOST_LEAVES] - 1
    scalars[S_HOST_LEAVES] = n
    if at < n:
        _settle_at(scalars, nodes, at, nodes[n, N_HOST_HEAP])


@lean_kernel
def host_move(scalars, nodes, node):
    """The key of a host leaf, if it is one, may have changed."""
    if nodes[node, N_HOST_PLACE] != NIL:
        _settle_at(scalars, nodes, nodes[node, N_HOST_PLACE], node)


@lean_kernel
def on_device(nodes, node):
    """The deepest node on the GPU at or above a node."""
    while node != ROOT and nodes[node, N_DEVICE] == 0:
        node = nodes[node, N_PARENT]
    return node


@lean_kernel
def host_split(scalars, nodes, upper, child):
    """After a cut: `upper` has the child's copies and one child."""
    nodes[upper, N_ALL] = 1
    nodes[upper, N_CHILDREN] = nodes[child, N_DEVICE]
    nodes[upper, N_HOST_PLACE] = NIL
    host_move(scalars, nodes, child)


@lean_kernel
def host_touch(scalars, nodes, heap, node):
    """After a match ended on `node` and refreshed its path."""
    if node == ROOT:
        return
    host_move(scalars, nodes, node)
    last = on_device(nodes, node)
    if last not in (node, ROOT) and nodes[last, N_HEAP] != NIL:
        move_leaf(scalars, nodes, heap, last)


@lean_kernel
def bring_back(scalars, nodes, heap, node):
    """A node in host memory only is on the GPU again; its parent is there. The caller settles its own place in the heap."""
    parent = nodes[node, N_PARENT]
    host_drop(scalars, nodes, node)
    nodes[node, N_DEVICE] = 1
    nodes[parent, N_CHILDREN] += 1
    if nodes[parent, N_HEAP] != NIL:
        drop_leaf(scalars, nodes, heap, parent)
    scalars[S_EVICTABLE] += nodes[node, N_END] - nodes[parent, N_END]


@lean_kernel
def demote(scalars, nodes, node):
    """A node with a host copy leaves the GPU and stays in the tree. The caller counts pages and sees to the parent."""
    nodes[node, N_DEVICE] = 0
    host_leaf(scalars, nodes, node)


@lean_kernel
def evict_host(scalars, nodes, table, pages):
    """Drops whole host leaves, best victim first, until `pages` host pages are free. False: not enough of them."""
    while scalars[S_HOST_AVAILABLE] < pages and scalars[S_HOST_LEAVES] > 0:
        victim = nodes[0, N_HOST_HEAP]
        host_drop(scalars, nodes, victim)
        parent = nodes[victim, N_PARENT]
        freed = nodes[victim, N_END] - nodes[parent, N_END]
        table_drop(table, nodes[victim, N_FIRST])
        nodes[victim, N_PARENT] = scalars[S_FREE_NODE]
        scalars[S_FREE_NODE] = victim
        scalars[S_NODES] -= 1
        scalars[S_HOST_AVAILABLE] += freed
        scalars[S_HOST_EVICTED] += freed
        nodes[victim, N_HOST] = 0
        nodes[parent, N_ALL] -= 1
        host_leaf(scalars, nodes, parent)
    return scalars[S_HOST_AVAILABLE] >= pages
