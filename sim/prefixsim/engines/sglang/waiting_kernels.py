# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: order of the waiting queue. Compiled through `prefixsim.jit`. Twin: `reference.Scheduler.calc_priority`."""

from __future__ import annotations

import numpy as np

from prefixsim.engines.sglang.hicache_kernels import split_hit
from prefixsim.engines.sglang.state import (
    DFS_WEIGHT,
    FCFS,
    FIRST_AWARE,
    HRRN,
    IN_BATCH_TOKENS,
    L_KEY1,
    L_KEY2,
    L_ORDER,
    L_TEMP,
    L_WAITING,
    LOF,
    LPM,
    LRU,
    N_END,
    N_ORDER,
    N_PARENT,
    NIL,
    R_ARRIVED_TOKENS,
    R_ENTRY,
    R_HOST,
    R_MADE,
    R_MATCHED,
    R_MAX_NEW,
    R_NODE,
    R_PREFIX,
    R_PROMPT,
    R_REQUEST,
    RANDOM,
    REFRESH_INTERVAL,
    ROOT,
    S_DISABLED,
    S_PAGE,
    S_PASSES,
    S_POLICY,
    S_PROCESSED_TOKENS,
    S_REFRESHES,
    S_SCHEDULE,
    S_STEP_CLOCK,
    S_TIER,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
    W_HEAD,
    W_RANK,
    WAITING_MATCH_MAX,
)
from prefixsim.engines.sglang.tree_kernels import match
from prefixsim.jit import lean_kernel


@lean_kernel
def comes_first(a, b, ratio, key1, key2):
    """Whether item b must stand before item a (strictly smaller keys)."""
    if ratio[b] != ratio[a]:
        return ratio[b] < ratio[a]
    if key1[b] != key1[a]:
        return key1[b] < key1[a]
    return key2[b] < key2[a]


@lean_kernel
def stable_sort(order, temp, ratio, key1, key2, n):
    """Sorts order[:n] by (ratio, key1, key2) of its items, equal ones as they stood. Linear where already sorted."""
    width = 1
    while width < n:
        for low in range(0, n - width, 2 * width):
            mid = low + width
            high = min(mid + width, n)
            if not comes_first(order[mid - 1], order[mid], ratio, key1, key2):
                continue
            for i in range(low, high):
                temp[i] = order[i]
            a, b = low, mid
            for i in range(low, high):
                if b < high and (a == mid or comes_first(temp[a], temp[b], ratio, key1, key2)):
                    order[i] = temp[b]
                    b += 1
                else:
                    order[i] = temp[a]
                    a += 1
        width *= 2


@lean_kernel
def look_up(scalars, nodes, table, heap, run_offset, run_start, run_end, slots, slot, tokens):
    """Matches the first `tokens` tokens of a request and adopts the hit; what is in host memory only is kept apart."""
    page = scalars[S_PAGE]
    node = ROOT
    if scalars[S_DISABLED] == 0:
        row = slots[slot, R_REQUEST]
        node = match(scalars, nodes, table, heap, run_offset, run_start, run_end, row, tokens // page)
    slots[slot, R_NODE] = node
    slots[slot, R_PREFIX] = nodes[node, N_END] * page
    slots[slot, R_MATCHED] = min(slots[slot, R_PREFIX], slots[slot, R_PROMPT] + slots[slot, R_MADE] - 1)
    if scalars[S_TIER] == 1:
        last, host = split_hit(nodes, node)
        slots[slot, R_PREFIX] = nodes[last, N_END] * page
        slots[slot, R_HOST] = host


@lean_kernel
def order_waiting(
    scalars, nodes, table, heap, run_offset, run_start, run_end, slots, lists, ratio, seen, weights, static
):
    """Sorts the waiting queue by the schedule policy; looks waiting requests up where the policy does.

    ratio float64 (capacity,): scratch; seen int64: pass in which a 32-token head was last met; weights int64
    (node capacity, 3): zeros, scratch of dfs-weight."""
    head = scalars[S_WAIT_HEAD]
    n = scalars[S_WAIT_TAIL] - head
    waiting = lists[L_WAITING, head : head + n]
    scalars[S_PASSES] += 1
    policy = scalars[S_SCHEDULE]
    if (policy in (LPM, HRRN)) and n > WAITING_MATCH_MAX:
        policy = FCFS
    order, temp, key1, key2 = lists[L_ORDER], lists[L_TEMP], lists[L_KEY1], lists[L_KEY2]
    for i in range(n):
        order[i] = i
        ratio[i] = 0.0
        key1[i] = 0
        key2[i] = 0
    if policy >= FIRST_AWARE:
        for i in range(n):
            slot = waiting[i]
            length = slots[slot, R_PROMPT] + slots[slot, R_MADE]
            look_up(scalars, nodes, table, heap, run_offset, run_start, run_end, slots, slot, length)
            first = static[slots[slot, R_REQUEST], W_HEAD]
            if slots[slot, R_PREFIX] <= IN_BATCH_TOKENS and first >= 0 and length >= IN_BATCH_TOKENS:
                if seen[first] == scalars[S_PASSES]:
                    ratio[i] = np.inf  # sorted last: an earlier waiting prompt will bring what it needs
                seen[first] = scalars[S_PASSES]
        if policy == DFS_WEIGHT:
            dfs_order(nodes, slots, waiting, order, temp, key1, key2, ratio, weights, n)
        else:
            for i in range(n):
                rank_aware(scalars, slots, static, waiting[i], i, policy, ratio, key1, key2)
            stable_sort(order, temp, ratio, key1, key2, n)
        apply_order(waiting, order, temp, n)
        return
    if policy in (LOF, RANDOM):
        for i in range(n):
            slot = waiting[i]
            if policy == LOF:
                key1[i] = -slots[slot, R_MAX_NEW]
            else:
                mixed = static[slots[slot, R_REQUEST], W_RANK] ^ ((scalars[S_PASSES] * 40503) & 0x3FFFFFFF)
                key1[i] = (mixed * 48271) % 2147483647
        stable_sort(order, temp, ratio, key1, key2, n)
        apply_order(waiting, order, temp, n)
    if n > 0 and scalars[S_POLICY] == LRU and scalars[S_DISABLED] == 0:
        scalars[S_REFRESHES] += 1
        if (scalars[S_REFRESHES] - 1) % REFRESH_INTERVAL == 0:
            for i in range(min(n, WAITING_MATCH_MAX) - 1, -1, -1):
                slot = waiting[i]
                pages = (slots[slot, R_PROMPT] + slots[slot, R_MADE]) // scalars[S_PAGE]
                match(scalars, nodes, table, heap, run_offset, run_start, run_end, slots[slot, R_REQUEST], pages)


@lean_kernel
def rank_aware(scalars, slots, static, slot, i, policy, ratio, key1, key2):
    """Sort keys of lpm, shortest-prefill-first and hrrn; ratio[i] is infinite for what goes last."""
    last = ratio[i] > 0.0
    if policy == LPM:
        if not last:
            ratio[i] = -slots[slot, R_MATCHED]
    elif policy == HRRN:
        key2[i] = static[slots[slot, R_REQUEST], W_RANK]
        left = slots[slot, R_PROMPT] - slots[slot, R_MATCHED]
        if last:
            return
        if left <= 0:
            ratio[i] = -np.inf
        elif scalars[S_STEP_CLOCK] == 0:
            ratio[i] = -((scalars[S_PROCESSED_TOKENS] - slots[slot, R_ARRIVED_TOKENS]) / left)
    else:
        left = slots[slot, R_PROMPT] + slots[slot, R_MADE] - slots[slot, R_MATCHED]
        key1[i] = max(left, 1)
        key2[i] = slots[slot, R_ENTRY]


@lean_kernel
def apply_order(waiting, order, temp, n):
    """Puts the queue into the order found."""
    for i in range(n):
        temp[i] = waiting[order[i]]
    for i in range(n):
        waiting[i] = temp[i]


@lean_kernel
def dfs_order(nodes, slots, waiting, order, temp, key1, key2, ratio, weights, n):
    """dfs-weight: depth first through the nodes that waiting requests end on, heavier subtrees first, older ones among
    equals, a node's own requests after those below it.

    weights columns: requests at or below a node; its first marked child + 1; next marked sibling + 1. Left zero."""
    for i in range(n):
        up = slots[waiting[i], R_NODE]
        while True:
            weights[up, 0] += 1
            if up == ROOT:
                break
            up = nodes[up, N_PARENT]
    # requests stand by the post-order place of their node, then as they stood
    for i in range(n):
        ratio[i] = 0.0
        key1[i] = NIL
        key2[i] = i
    place = 0
    for i in range(n):
        link_path(nodes, weights, slots[waiting[i], R_NODE])
    node = ROOT
    while True:
        child = heaviest(nodes, weights, node)
        if child != NIL:
            node = child
            continue
        weights[node, 0] = -1 - place  # done: its place in post-order
        place += 1
        if node == ROOT:
            break
        node = nodes[node, N_PARENT]
    for i in range(n):
        key1[i] = -1 - weights[slots[waiting[i], R_NODE], 0]
        order[i] = i
    stable_sort(order, temp, ratio, key1, key2, n)
    for i in range(n):
        up = slots[waiting[i], R_NODE]
        while True:
            weights[up, 0] = 0
            weights[up, 1] = 0
            weights[up, 2] = 0
            if up == ROOT:
                break
            up = nodes[up, N_PARENT]


@lean_kernel
def link_path(nodes, weights, node):
    """Lists a node and its ancestors as marked children of their parents, each once, heavier first, older among equals."""
    while node != ROOT and (weights[node, 2] & 1) == 0:
        parent = nodes[node, N_PARENT]
        before = NIL
        at = weights[parent, 1] - 1
        while at != NIL and (
            weights[at, 0] > weights[node, 0]
            or (weights[at, 0] == weights[node, 0] and nodes[at, N_ORDER] < nodes[node, N_ORDER])
        ):
            before = at
            at = (weights[at, 2] >> 1) - 1
        weights[node, 2] = (at + 1) * 2 + 1
        if before == NIL:
            weights[parent, 1] = node + 1
        else:
            weights[before, 2] = (node + 1) * 2 + 1
        node = parent


@lean_kernel
def heaviest(nodes, weights, node):
    """The first marked child not visited yet, which is taken off the list; NIL when there is none."""
    child = weights[node, 1] - 1
    if child != NIL:
        weights[node, 1] = weights[child, 2] >> 1
    return child
