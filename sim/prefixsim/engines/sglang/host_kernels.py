# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: host copies of the tree's nodes (HiCache). Compiled through
`prefixsim.jit`. Rules: docs/tiers.md. Twin: `reference_hicache.HostTree`.

A node is on the GPU (N_DEVICE), in host memory (N_HOST), or both. What is above a node on the GPU is on the GPU; what is
above one in host memory is in host memory, too, except under write_back. A node with neither does not exist.
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
    N_TWICE_NEXT,
    N_TWICE_PREV,
    NIL,
    ROOT,
    S_EVICTABLE,
    S_FREE_NODE,
    S_GPU_FREE,
    S_HOST_AVAILABLE,
    S_HOST_EVICTED,
    S_HOST_FAILED,
    S_HOST_LEAVES,
    S_HOST_PAGES,
    S_HOST_PEAK,
    S_HOST_PINNED,
    S_LINK,
    S_NODES,
    S_NOW,
    S_OVERLAP,
    S_STALL_NS,
    S_STALLED,
    S_WRITE_BACK,
)
from prefixsim.engines.sglang.table_kernels import table_drop
from prefixsim.engines.tiers.link_kernels import transfer_out
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
def twice(scalars, nodes, node):
    """A node is on the GPU and in host memory: its copy may be given up (write_back)."""
    if scalars[S_WRITE_BACK] == 1 and nodes[node, N_HOST] == 1 and nodes[node, N_TWICE_NEXT] == NIL:
        last = nodes[ROOT, N_TWICE_PREV]
        nodes[node, N_TWICE_PREV] = last
        nodes[node, N_TWICE_NEXT] = ROOT
        nodes[last, N_TWICE_NEXT] = node
        nodes[ROOT, N_TWICE_PREV] = node


@lean_kernel
def once(nodes, node):
    """A node is in one place only."""
    if nodes[node, N_TWICE_NEXT] != NIL:
        nodes[nodes[node, N_TWICE_PREV], N_TWICE_NEXT] = nodes[node, N_TWICE_NEXT]
        nodes[nodes[node, N_TWICE_NEXT], N_TWICE_PREV] = nodes[node, N_TWICE_PREV]
        nodes[node, N_TWICE_NEXT] = NIL


@lean_kernel
def give_up_copies(scalars, nodes, pages):
    """Frees host pages of nodes that are on the GPU, too, until `pages` are free: first those that will stay there."""
    for spare_leaves in range(1, -1, -1):
        node = nodes[ROOT, N_TWICE_NEXT]
        while node != ROOT and scalars[S_HOST_AVAILABLE] < pages:
            following = nodes[node, N_TWICE_NEXT]
            if spare_leaves == 0 or nodes[node, N_HEAP] == NIL:
                freed = nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]
                nodes[node, N_HOST] = 0
                once(nodes, node)
                scalars[S_HOST_AVAILABLE] += freed
                scalars[S_HOST_EVICTED] += freed
            node = following


@lean_kernel
def copy_out(scalars, nodes, node, now):
    """Takes host pages, which are free, for a node, and queues the copy. Returns when it is done."""
    pages = nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]
    scalars[S_HOST_AVAILABLE] -= pages
    scalars[S_HOST_PEAK] = max(scalars[S_HOST_PEAK], scalars[S_HOST_PAGES] - scalars[S_HOST_AVAILABLE])
    nodes[node, N_HOST] = 1
    if scalars[S_OVERLAP] == 1:  # a step on the GPU may still be writing what is copied
        now = max(now, scalars[S_GPU_FREE])
    return transfer_out(scalars[S_LINK:], now, pages)


@lean_kernel
def write_back(scalars, nodes, table, node):
    """Copies a node that is to leave the GPU; the scheduler waits for it. False: no room in host memory."""
    if not evict_host(scalars, nodes, table, nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]):
        scalars[S_HOST_FAILED] += 1
        return False
    since = max(scalars[S_NOW], scalars[S_STALL_NS])
    done = copy_out(scalars, nodes, node, since)
    scalars[S_STALLED] += done - since
    scalars[S_STALL_NS] = done
    return True


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
    nodes[upper, N_TWICE_NEXT] = NIL
    if nodes[child, N_TWICE_NEXT] != NIL:
        twice(scalars, nodes, upper)
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
    twice(scalars, nodes, node)


@lean_kernel
def demote(scalars, nodes, node):
    """A node with a host copy leaves the GPU and stays in the tree. The caller counts pages and sees to the parent."""
    nodes[node, N_DEVICE] = 0
    once(nodes, node)
    host_leaf(scalars, nodes, node)


@lean_kernel
def evict_host(scalars, nodes, table, pages):
    """Drops whole host leaves, best victim first, until `pages` host pages are free (under write_back, copies of what is on
    the GPU before them). False: not enough of them."""
    if scalars[S_WRITE_BACK] == 1:
        give_up_copies(scalars, nodes, pages)
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
