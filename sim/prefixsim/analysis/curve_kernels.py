# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled curves: stack distances and farthest-next-use over segments, one operation a run of blocks.

Twins: `analysis.reference.lru_hits`, `analysis.reference.optimal_hits`.
"""

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

NIL = -1


@kernel
def _add(tree, i, amount):
    i += 1
    while i < tree.shape[0]:
        tree[i] += amount
        i += i & -i


@kernel
def _sum_to(tree, i):
    """Sum of entries 0..i."""
    i += 1
    total = 0
    while i > 0:
        total += tree[i]
        i -= i & -i
    return total


@kernel
def reuses(visit_offset, visit_segment, visit_end, prompt, inserted, order, granularity):
    """Every reuse of a run of blocks, int64 (k, 4): [stack position of its first block, number of blocks, index in `order` of
    the lookup before, index of this lookup]. Only blocks of the prompt are counted, all inserted ones are touched.

    A block's position is 1 + the number of distinct blocks touched after it. Each row touches its blocks deepest first, so
    the blocks whose last touch is row q are a suffix of q's path, in path order; a Fenwick tree holds how many each row
    still owns. The segments hold which row touched which depth last: lists of (end block, index of row), shallow to deep.
    """
    n = order.shape[0]
    visits = visit_segment.shape[0]
    head = np.full(visit_offset.shape[0] - 1, NIL, np.int64)
    node_end = np.empty(visits, np.int64)
    node_row = np.empty(visits, np.int64)
    node_next = np.empty(visits, np.int64)
    tree = np.zeros(n + 1, np.int64)
    out = np.empty((2 * visits, 4), np.int64)
    found = 0
    alive = 0
    for i in range(n):
        r = order[i]
        asked = prompt[r] // granularity
        stop = inserted[r] // granularity
        taken = 0
        block = 0
        for v in range(visit_offset[r], visit_offset[r + 1]):
            if block >= stop:
                break
            s = visit_segment[v]
            end = min(visit_end[v] // granularity, stop)
            if end <= block:
                continue
            node = head[s]
            at = block
            while node != NIL and at < end:
                q = node_row[node]
                upto = min(node_end[node], end)
                count = upto - at
                if at < asked:
                    out[found, 0] = alive - _sum_to(tree, q) + taken + 1
                    out[found, 1] = min(upto, asked) - at
                    out[found, 2] = q
                    out[found, 3] = i
                    found += 1
                _add(tree, q, -count)
                alive -= count
                taken += count
                at = upto
                if node_end[node] <= end:
                    node = node_next[node]
            node_end[v] = end
            node_row[v] = i
            node_next[v] = node
            head[s] = v
            block = end
        _add(tree, i, block)
        alive += block
    return out[:found]


@kernel
def corners(reuse):
    """The curve hits(C) = sum of min(max(C - position + 1, 0), blocks) as its corners: (capacity int64 (m,), hit blocks
    int64 (m,)), straight lines between them, first (0, 0), constant after the last. Counting sort where positions are dense,
    so that the whole is linear."""
    top = 0
    for k in range(reuse.shape[0]):
        top = max(top, reuse[k, 0] + reuse[k, 1] - 1)
    slope = np.zeros(top + 2, np.int64)
    for k in range(reuse.shape[0]):
        slope[reuse[k, 0] - 1] += 1
        slope[reuse[k, 0] + reuse[k, 1] - 1] -= 1
    count = 1
    for c in range(1, top + 1):
        if slope[c] != 0:
            count += 1
    capacity = np.zeros(count, np.int64)
    hits = np.zeros(count, np.int64)
    m = 1
    now = slope[0]
    total = 0
    last = 0
    for c in range(1, top + 1):
        if slope[c] != 0:
            total += now * (c - last)
            last = c
            now += slope[c]
            capacity[m] = c
            hits[m] = total
            m += 1
    return capacity, hits


@kernel
def by_first_use(reuse, n):
    """Reuses in the order of the lookup before them: (offset int64 (n+1,), index int64 (k,)). Counting sort."""
    offset = np.zeros(n + 1, np.int64)
    for k in range(reuse.shape[0]):
        offset[reuse[k, 2] + 1] += 1
    for i in range(n):
        offset[i + 1] += offset[i]
    fill = offset.copy()
    index = np.empty(reuse.shape[0], np.int64)
    for k in range(reuse.shape[0]):
        index[fill[reuse[k, 2]]] = k
        fill[reuse[k, 2]] += 1
    return offset, index


@kernel
def optimal_hits(reuse, offset, index, n, capacity):
    """Hit blocks of Belady's rule with bypass at one capacity. A reuse is an interval between two lookups that takes one slot
    a block and pays one hit a block; of the blocks held after a lookup those used farthest in the future are dropped, which
    for intervals of equal pay is optimal. Blocks with the same next use are interchangeable: only their number is kept."""
    held = np.zeros(n, np.int64)  # blocks held until lookup i
    heap = np.empty(n + 1, np.int64)
    size = 0
    queued = np.zeros(n, np.bool_)
    occupied = 0
    hits = 0
    for i in range(n):
        hits += held[i]
        occupied -= held[i]
        held[i] = 0
        for j in range(offset[i], offset[i + 1]):
            k = index[j]
            use = reuse[k, 3]
            held[use] += reuse[k, 1]
            occupied += reuse[k, 1]
            if not queued[use]:
                queued[use] = True
                child = size
                size += 1
                while child > 0 and heap[(child - 1) // 2] < use:
                    heap[child] = heap[(child - 1) // 2]
                    child = (child - 1) // 2
                heap[child] = use
        while occupied > capacity:
            use = heap[0]
            dropped = min(occupied - capacity, held[use])
            held[use] -= dropped
            occupied -= dropped
            if held[use] == 0:
                queued[use] = False
                size -= 1
                last = heap[size]
                hole = 0
                while 2 * hole + 1 < size:
                    child = 2 * hole + 1
                    if child + 1 < size and heap[child + 1] > heap[child]:
                        child += 1
                    if heap[child] <= last:
                        break
                    heap[hole] = heap[child]
                    hole = child
                heap[hole] = last
    return hits


@kernel
def sampled_positions(offset, ids, asked, n_ids):
    """Textbook stack positions, one reference at a time: row i references ids[offset[i]:offset[i+1]] in path order, the first
    `asked[i]` of them are looked up. Returns (id index, position) int64 (k, 2) of every lookup of a block seen before."""
    total = ids.shape[0]
    last = np.full(n_ids, NIL, np.int64)
    tree = np.zeros(total + 1, np.int64)
    out = np.empty((total, 2), np.int64)
    found = 0
    alive = 0
    clock = 0
    for i in range(offset.shape[0] - 1):
        for j in range(offset[i], offset[i] + asked[i]):
            when = last[ids[j]]
            if when != NIL:
                out[found, 0] = ids[j]
                out[found, 1] = alive - _sum_to(tree, when) + 1
                found += 1
        for j in range(offset[i + 1] - 1, offset[i] - 1, -1):  # deepest first
            if last[ids[j]] != NIL:
                _add(tree, last[ids[j]], -1)
                alive -= 1
            _add(tree, clock, 1)
            last[ids[j]] = clock
            clock += 1
            alive += 1
    return out[:found]
