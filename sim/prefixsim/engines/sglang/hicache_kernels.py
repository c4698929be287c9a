# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: backups to host memory and loads from it (HiCache). Compiled through `prefixsim.jit`. Rules: docs/tiers.md.
Twin: `reference_hicache.HostTree`."""

from __future__ import annotations

from prefixsim.engines.sglang.host_kernels import bring_back, copy_out, evict_host, host_drop, host_leaf, on_device
from prefixsim.engines.sglang.state import (
    N_DEVICE,
    N_END,
    N_HITS,
    N_HOST,
    N_PARENT,
    N_RING,
    N_RING_NS,
    NIL,
    ROOT,
    S_AVAILABLE,
    S_BACKUP_USES,
    S_HOST_FAILED,
    S_HOST_PINNED,
    S_INSERT_NS,
    S_LOAD_FLOOR,
    S_LOAD_SKIPPED,
    S_LOADING,
    S_PAGE,
    S_RING_AT,
    S_RING_N,
)
from prefixsim.engines.sglang.table_kernels import table_find
from prefixsim.engines.sglang.tree_kernels import lock, make_room, peek, unlock
from prefixsim.jit import lean_kernel


@lean_kernel
def finish_backups(scalars, nodes, heap, now):
    """Backups that are done by `now`: their nodes may leave the GPU."""
    while scalars[S_RING_N] > 0:
        at = scalars[S_RING_AT]
        if nodes[at, N_RING_NS] > now:
            break
        unlock(scalars, nodes, heap, nodes[at, N_RING])
        scalars[S_RING_AT] = at + 1 if at + 1 < nodes.shape[0] else 0
        scalars[S_RING_N] -= 1


@lean_kernel
def back_up_path(scalars, nodes, table, heap, node, counted):
    """After an insert that ended on `node`: the deepest node of its path that was counted and was used often enough, with
    all above it, gets a copy in host memory, from the top down, as far as there is room."""
    target = node
    while target != ROOT and nodes[target, N_HOST] == 0:
        if nodes[target, N_END] > counted and nodes[target, N_HITS] >= scalars[S_BACKUP_USES]:
            break
        target = nodes[target, N_PARENT]
    while target != ROOT and nodes[target, N_HOST] == 0:
        top = target
        while nodes[top, N_PARENT] != ROOT and nodes[nodes[top, N_PARENT], N_HOST] == 0:
            top = nodes[top, N_PARENT]
        if not back_up(scalars, nodes, table, heap, top):
            return


@lean_kernel
def back_up(scalars, nodes, table, heap, node):
    """Copies one node to host memory; it is locked until that is done. False: no room there."""
    pages = nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]
    if not evict_host(scalars, nodes, table, pages):
        scalars[S_HOST_FAILED] += 1
        return False
    done = copy_out(scalars, nodes, node, scalars[S_INSERT_NS])
    lock(scalars, nodes, heap, node, ROOT)
    at = (scalars[S_RING_AT] + scalars[S_RING_N]) % nodes.shape[0]
    nodes[at, N_RING] = node
    nodes[at, N_RING_NS] = done
    scalars[S_RING_N] += 1
    return True


@lean_kernel
def load_back(scalars, nodes, table, heap, node, last):
    """Loads what is below `last` (on the GPU, locked) down to `node`. Returns the pages; 0: too few to be worth it, or no
    room. After a load `node` is locked down to `last`."""
    pages = nodes[node, N_END] - nodes[last, N_END]
    if pages * scalars[S_PAGE] < scalars[S_LOAD_FLOOR]:
        scalars[S_LOAD_SKIPPED] += pages
        return 0
    host_drop(scalars, nodes, node)
    scalars[S_HOST_PINNED] = node
    make_room(scalars, nodes, table, heap, pages)
    scalars[S_HOST_PINNED] = NIL
    if scalars[S_AVAILABLE] < pages:
        host_leaf(scalars, nodes, node)
        scalars[S_LOAD_SKIPPED] += pages
        return 0
    scalars[S_AVAILABLE] -= pages
    up = node
    while up != last:
        bring_back(scalars, nodes, heap, up)
        up = nodes[up, N_PARENT]
    lock(scalars, nodes, heap, node, last)
    scalars[S_LOADING] += pages
    return pages


@lean_kernel
def peek_tiers(nodes, table, run_offset, run_start, run_end, row, n):
    """(pages of a row that a match would find on the GPU, on the GPU and in host memory), changing nothing."""
    both = peek(nodes, table, run_offset, run_start, run_end, row, n)
    device = 0
    base = run_offset[row]
    run = base
    while device < both:
        while run_end[run] <= device:
            run += 1
        before = run_end[run - 1] if run > base else 0
        child = table_find(table, run_start[run] + device - before)
        if nodes[child, N_DEVICE] == 0:
            break
        device = min(both, nodes[child, N_END])
    return device, both


@lean_kernel
def split_hit(nodes, node):
    """(deepest node on the GPU at or above a match, pages below it that are in host memory only)."""
    last = on_device(nodes, node)
    return last, nodes[node, N_END] - nodes[last, N_END]
