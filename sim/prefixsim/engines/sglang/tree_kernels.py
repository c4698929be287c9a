# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled radix tree: match, insert, split, lock, evict. Compiled through `prefixsim.jit`. Twin: `reference_tree.Tree`.

Rows are runs of consecutive chain ids. A chain id names a whole prefix, so rows that share a prefix share the runs that
cover it, and run j of one row is run j of the other as far as they agree. Hence every node remembers which run (counted
from its row's first) holds its last page and what that run begins with: whether a row runs through a node's end is two
comparisons, and where two rows part is a walk over runs.
"""

from __future__ import annotations

from prefixsim.engines.sglang.heap_kernels import drop_leaf, move_leaf, push_leaf
from prefixsim.engines.sglang.host_kernels import bring_back, demote, host_split, host_touch, write_back
from prefixsim.engines.sglang.state import (
    N_ACCESS,
    N_ALL,
    N_CHILD_SUM,
    N_CHILDREN,
    N_CREATED,
    N_DEVICE,
    N_END,
    N_FIRST,
    N_HEAP,
    N_HISTORY,
    N_HITS,
    N_HOST,
    N_HOST_HEAP,
    N_HOST_PLACE,
    N_LAST_START,
    N_LOCKS,
    N_ORDER,
    N_PARENT,
    N_PRIORITY,
    N_REP,
    N_RUN,
    N_TWICE_NEXT,
    NIL,
    ROOT,
    S_AVAILABLE,
    S_CLOCK,
    S_EVICTABLE,
    S_EVICTED,
    S_FREE_NODE,
    S_LEAVES,
    S_MERGE,
    S_NEXT_NODE,
    S_NODES,
    S_PEAK_NODES,
    S_POLICY,
    S_PROTECTED,
    S_TIER,
    S_W_EVICT,
    S_W_EVICT_CALLS,
    S_W_EVICT_LEAVES,
    S_W_INSERT,
    S_W_MATCH,
    S_W_MERGE,
    S_W_SPLIT,
    S_WRITE_BACK,
    TICK,
    TLRU,
)
from prefixsim.engines.sglang.table_kernels import table_drop, table_find, table_set
from prefixsim.jit import lean_kernel


@lean_kernel
def new_node(scalars, nodes):
    """A node from the free list. The caller has made sure there is one."""
    node = scalars[S_FREE_NODE]
    if node != NIL:
        scalars[S_FREE_NODE] = nodes[node, N_PARENT]
    else:
        node = scalars[S_NEXT_NODE]
        scalars[S_NEXT_NODE] = node + 1
    scalars[S_NODES] += 1
    scalars[S_PEAK_NODES] = max(scalars[S_PEAK_NODES], scalars[S_NODES])
    return node


@lean_kernel
def chain_at(run_start, run_end, base, run, page):
    """Chain id of a page of a row whose runs begin at `base`; `run` holds the page."""
    before = run_end[run - 1] if run > base else 0
    return run_start[run] + page - before


@lean_kernel
def runs_through(nodes, run_start, run_end, base, last, node, n):
    """Whether a row (runs base..last-1, n pages of it) has a node's whole segment, its first page being shared."""
    run = base + nodes[node, N_RUN]
    end = nodes[node, N_END]
    return end <= n and run < last and run_start[run] == nodes[node, N_LAST_START] and run_end[run] >= end


@lean_kernel
def parting(nodes, run_offset, run_start, run_end, base, run, node, n):
    """Where a row leaves a node's segment: (first page not shared or n, run that holds the page before).

    `run` holds the segment's first page, which is shared."""
    rep = nodes[node, N_REP]
    other = run_offset[rep] + run - base
    limit = min(n, nodes[node, N_END])
    while True:
        if run_start[run] != run_start[other]:
            return run_end[run - 1], run - 1
        end = min(run_end[run], run_end[other])
        if end >= limit:
            return limit, run
        if run_end[run] != run_end[other]:
            return end, run
        run += 1
        other += 1


@lean_kernel
def split(scalars, nodes, table, heap, run_offset, run_start, run_end, child, page, run):
    """Cuts a node at `page` (inside it): a new upper node takes its place, the old number stays the lower part.

    run: run, counted from the row's first, that holds the page before the cut. Returns the upper node."""
    scalars[S_W_SPLIT] += 1
    parent = nodes[child, N_PARENT]
    upper = new_node(scalars, nodes)
    for c in range(min(nodes.shape[1], N_HOST_HEAP)):
        nodes[upper, c] = nodes[child, c]
    base = run_offset[nodes[child, N_REP]]
    at = base + run
    nodes[upper, N_END] = page
    nodes[upper, N_RUN] = run
    nodes[upper, N_LAST_START] = run_start[at]
    nodes[upper, N_CHILDREN] = 1
    nodes[upper, N_CHILD_SUM] = child
    nodes[upper, N_HEAP] = NIL
    if run_end[at] <= page:
        at += 1
    table_set(table, nodes[child, N_FIRST], upper)
    nodes[child, N_FIRST] = chain_at(run_start, run_end, base, at, page)
    nodes[child, N_PARENT] = upper
    table_set(table, nodes[child, N_FIRST], child)
    nodes[parent, N_CHILD_SUM] += upper - child
    clock = scalars[S_CLOCK] + 2 * TICK
    scalars[S_CLOCK] = clock
    nodes[upper, N_ACCESS] = clock - TICK
    nodes[child, N_ACCESS] = clock
    nodes[child, N_ORDER] = clock
    if nodes[child, N_HEAP] != NIL:
        move_leaf(scalars, nodes, heap, child)
    if scalars[S_TIER] == 1:
        host_split(scalars, nodes, upper, child)
    return upper


@lean_kernel
def match(scalars, nodes, table, heap, run_offset, run_start, run_end, row, n):
    """Longest resident prefix of the first n pages of a row: the node it ends on (its N_END are the pages matched).

    Splits a node where the match ends inside it and refreshes the path; n = 0 changes nothing."""
    if n == 0:
        return ROOT
    node = ROOT
    at = 0
    base, last = run_offset[row], run_offset[row + 1]
    run = base
    while at < n:
        while run_end[run] <= at:
            run += 1
        child = table_find(table, chain_at(run_start, run_end, base, run, at))
        if child == NIL:
            break
        scalars[S_W_MATCH] += 1
        if runs_through(nodes, run_start, run_end, base, last, child, n):
            node = child
            at = nodes[child, N_END]
            run = base + nodes[child, N_RUN]
            continue
        at, run = parting(nodes, run_offset, run_start, run_end, base, run, child, n)
        node = split(scalars, nodes, table, heap, run_offset, run_start, run_end, child, at, run - base)
        break
    stamp = scalars[S_CLOCK] + TICK
    scalars[S_CLOCK] = stamp
    up = node
    while up != ROOT:
        nodes[up, N_ACCESS] = stamp
        stamp -= 1
        up = nodes[up, N_PARENT]
    if nodes[node, N_HEAP] != NIL:
        move_leaf(scalars, nodes, heap, node)
    if scalars[S_TIER] == 1:
        host_touch(scalars, nodes, heap, node)
    return node


@lean_kernel
def peek(nodes, table, run_offset, run_start, run_end, row, n):
    """Pages `match` would find, changing nothing."""
    at = 0
    base, last = run_offset[row], run_offset[row + 1]
    run = base
    while at < n:
        while run_end[run] <= at:
            run += 1
        child = table_find(table, chain_at(run_start, run_end, base, run, at))
        if child == NIL:
            break
        if not runs_through(nodes, run_start, run_end, base, last, child, n):
            at, run = parting(nodes, run_offset, run_start, run_end, base, run, child, n)
            break
        at = nodes[child, N_END]
        run = base + nodes[child, N_RUN]
    return at


@lean_kernel
def use(scalars, nodes, node, priority, counted):
    """Refreshes a node and its ancestors, root first; raises priorities; counts a hit where a node ends beyond `counted`."""
    depth = 0
    up = node
    while up != ROOT:
        depth += 1
        up = nodes[up, N_PARENT]
    stamp = scalars[S_CLOCK] + depth * TICK
    scalars[S_CLOCK] = stamp
    scalars[S_W_INSERT] += depth
    up = node
    while up != ROOT:
        nodes[up, N_ACCESS] = stamp
        stamp -= TICK
        nodes[up, N_PRIORITY] = max(nodes[up, N_PRIORITY], priority)
        if nodes[up, N_END] > counted:
            nodes[up, N_HITS] += 1
        up = nodes[up, N_PARENT]


@lean_kernel
def insert(scalars, nodes, table, heap, run_offset, run_start, run_end, start, row, n, priority, counted):
    """Makes the first n pages of a row resident: (pages that already were on the GPU, the node it ends on).

    start: a node known to be on the row's path (the one its request is locked at, or the root), not deeper than n.
    The node it ends on may be an unlocked leaf that is not in the heap yet: the caller settles it."""
    use(scalars, nodes, start, priority, counted)
    node = start
    at = nodes[start, N_END]
    base, last = run_offset[row], run_offset[row + 1]
    run = base + nodes[start, N_RUN] if start != ROOT else base
    matched = at
    while at < n:
        while run_end[run] <= at:
            run += 1
        child = table_find(table, chain_at(run_start, run_end, base, run, at))
        if child == NIL:
            break
        scalars[S_W_INSERT] += 1
        if runs_through(nodes, run_start, run_end, base, last, child, n):
            node = child
            at = nodes[child, N_END]
            run = base + nodes[child, N_RUN]
            scalars[S_CLOCK] += TICK
            nodes[node, N_ACCESS] = scalars[S_CLOCK]
        else:
            at, run = parting(nodes, run_offset, run_start, run_end, base, run, child, n)
            node = split(scalars, nodes, table, heap, run_offset, run_start, run_end, child, at, run - base)
        nodes[node, N_PRIORITY] = max(nodes[node, N_PRIORITY], priority)
        if at > counted:
            nodes[node, N_HITS] += 1
        if scalars[S_TIER] == 1 and nodes[node, N_DEVICE] == 0:
            bring_back(scalars, nodes, heap, node)  # with the KV that its request has computed
        else:
            matched = at
    if at < n:
        node = add_leaf(
            scalars, nodes, table, heap, run_start, run_end, node, base, run, row, at, n, priority, n > counted
        )
    return matched, node


@lean_kernel
def add_leaf(scalars, nodes, table, heap, run_start, run_end, parent, base, run, row, at, n, priority, hit):
    """A new leaf for pages at..n-1 of a row; `run` holds page `at`. Not in the heap yet."""
    scalars[S_W_INSERT] += 1
    chain = chain_at(run_start, run_end, base, run, at)
    while run_end[run] < n:
        run += 1
    leaf = new_node(scalars, nodes)
    clock = scalars[S_CLOCK] + 2 * TICK
    scalars[S_CLOCK] = clock
    nodes[leaf, N_PARENT] = parent
    nodes[leaf, N_END] = n
    nodes[leaf, N_REP] = row
    nodes[leaf, N_RUN] = run - base
    nodes[leaf, N_LAST_START] = run_start[run]
    nodes[leaf, N_FIRST] = chain
    nodes[leaf, N_ACCESS] = clock - TICK
    nodes[leaf, N_CREATED] = clock
    nodes[leaf, N_HITS] = 1 if hit else 0
    nodes[leaf, N_PRIORITY] = priority
    nodes[leaf, N_LOCKS] = 0
    nodes[leaf, N_CHILDREN] = 0
    nodes[leaf, N_CHILD_SUM] = 0
    nodes[leaf, N_HEAP] = NIL
    nodes[leaf, N_HISTORY] = n
    nodes[leaf, N_ORDER] = clock
    table_set(table, chain, leaf)
    nodes[parent, N_CHILDREN] += 1
    nodes[parent, N_CHILD_SUM] += leaf
    if scalars[S_TIER] == 1:
        nodes[leaf, N_DEVICE] = 1
        nodes[leaf, N_HOST] = 0
        nodes[leaf, N_ALL] = 0
        nodes[leaf, N_HOST_PLACE] = NIL
        nodes[leaf, N_TWICE_NEXT] = NIL
        nodes[parent, N_ALL] += 1
    if nodes[parent, N_HEAP] != NIL:
        drop_leaf(scalars, nodes, heap, parent)
    scalars[S_EVICTABLE] += n - at
    if scalars[S_POLICY] == TLRU:
        up = parent
        while up != ROOT and nodes[up, N_HISTORY] < n:
            nodes[up, N_HISTORY] = n
            up = nodes[up, N_PARENT]
    return leaf


@lean_kernel
def mark_prompt(scalars, nodes, table, heap, run_offset, run_start, run_end, node, page, priority):
    """Uses the path again as far as `page` (where the prompt ends, above the end of `node`), cutting a node there."""
    while nodes[nodes[node, N_PARENT], N_END] >= page:
        node = nodes[node, N_PARENT]
    if nodes[node, N_END] == page:
        use(scalars, nodes, node, priority, page)
        return
    use(scalars, nodes, nodes[node, N_PARENT], priority, page)
    base = run_offset[nodes[node, N_REP]]
    run = base + nodes[node, N_RUN]
    while run > base and run_end[run - 1] >= page:
        run -= 1
    upper = split(scalars, nodes, table, heap, run_offset, run_start, run_end, node, page, run - base)
    scalars[S_W_INSERT] += 1
    nodes[upper, N_PRIORITY] = max(nodes[upper, N_PRIORITY], priority)


@lean_kernel
def settle(scalars, nodes, heap, node):
    """Brings the heap up to date with a node: in it exactly when it is an unlocked leaf, with its present key."""
    if node == ROOT:
        return
    leaf = nodes[node, N_LOCKS] == 0 and nodes[node, N_CHILDREN] == 0
    if nodes[node, N_HEAP] == NIL:
        if leaf:
            push_leaf(scalars, nodes, heap, node)
    elif leaf:
        move_leaf(scalars, nodes, heap, node)
    else:
        drop_leaf(scalars, nodes, heap, node)


@lean_kernel
def lock(scalars, nodes, heap, node, above):
    """Protects a node and its ancestors below `above` (an ancestor already locked by the same request, or the root)."""
    while node != above:
        if nodes[node, N_LOCKS] == 0:
            pages = nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]
            scalars[S_EVICTABLE] -= pages
            scalars[S_PROTECTED] += pages
            if nodes[node, N_HEAP] != NIL:
                drop_leaf(scalars, nodes, heap, node)
        nodes[node, N_LOCKS] += 1
        node = nodes[node, N_PARENT]


@lean_kernel
def unlock(scalars, nodes, heap, node):
    """Reverses `lock(node, ROOT)`."""
    while node != ROOT:
        nodes[node, N_LOCKS] -= 1
        if nodes[node, N_LOCKS] == 0:
            pages = nodes[node, N_END] - nodes[nodes[node, N_PARENT], N_END]
            scalars[S_EVICTABLE] += pages
            scalars[S_PROTECTED] -= pages
            if nodes[node, N_CHILDREN] == 0 and nodes[node, N_HEAP] == NIL:
                push_leaf(scalars, nodes, heap, node)
        node = nodes[node, N_PARENT]


@lean_kernel
def make_room(scalars, nodes, table, heap, pages):
    """Evicts whole leaves, best victim first, until `pages` are free or no unlocked leaf is left."""
    if scalars[S_AVAILABLE] >= pages:
        return
    scalars[S_W_EVICT_CALLS] += 1
    scalars[S_W_EVICT_LEAVES] += scalars[S_LEAVES]
    while scalars[S_AVAILABLE] < pages and scalars[S_LEAVES] > 0:
        victim = heap[2]
        drop_leaf(scalars, nodes, heap, victim)
        parent = nodes[victim, N_PARENT]
        freed = nodes[victim, N_END] - nodes[parent, N_END]
        if scalars[S_TIER] == 1 and (
            nodes[victim, N_HOST] == 1 or (scalars[S_WRITE_BACK] == 1 and write_back(scalars, nodes, table, victim))
        ):
            demote(scalars, nodes, victim)
        elif scalars[S_TIER] == 1 and nodes[victim, N_ALL] > 0:
            continue  # it can't go before what is below it
        else:
            table_drop(table, nodes[victim, N_FIRST])
            nodes[victim, N_PARENT] = scalars[S_FREE_NODE]
            scalars[S_FREE_NODE] = victim
            scalars[S_NODES] -= 1
            if scalars[S_TIER] == 1:
                nodes[parent, N_ALL] -= 1
        scalars[S_AVAILABLE] += freed
        scalars[S_EVICTABLE] -= freed
        scalars[S_EVICTED] += freed
        scalars[S_W_EVICT] += 1
        nodes[parent, N_CHILDREN] -= 1
        nodes[parent, N_CHILD_SUM] -= victim
        if parent == ROOT:
            continue
        if nodes[parent, N_CHILDREN] == 0:
            if nodes[parent, N_LOCKS] == 0:
                push_leaf(scalars, nodes, heap, parent)
        elif nodes[parent, N_CHILDREN] == 1 and scalars[S_MERGE] == 1:
            merge(scalars, nodes, table, heap, parent)


@lean_kernel
def merge(scalars, nodes, table, heap, parent):
    """What-if: a node with one child becomes one node with it, unless some request is locked at the node itself."""
    child = nodes[parent, N_CHILD_SUM]
    if nodes[child, N_LOCKS] != nodes[parent, N_LOCKS]:
        return
    scalars[S_W_MERGE] += 1
    above = nodes[parent, N_PARENT]
    table_drop(table, nodes[child, N_FIRST])
    table_set(table, nodes[parent, N_FIRST], child)
    nodes[child, N_FIRST] = nodes[parent, N_FIRST]
    nodes[child, N_PARENT] = above
    nodes[child, N_ORDER] = nodes[parent, N_ORDER]
    nodes[child, N_CREATED] = nodes[parent, N_CREATED]
    nodes[child, N_ACCESS] = max(nodes[child, N_ACCESS], nodes[parent, N_ACCESS])
    nodes[child, N_HITS] = max(nodes[child, N_HITS], nodes[parent, N_HITS])
    nodes[child, N_PRIORITY] = max(nodes[child, N_PRIORITY], nodes[parent, N_PRIORITY])
    nodes[child, N_HISTORY] = max(nodes[child, N_HISTORY], nodes[parent, N_HISTORY])
    nodes[above, N_CHILD_SUM] += child - parent
    nodes[parent, N_PARENT] = scalars[S_FREE_NODE]
    scalars[S_FREE_NODE] = parent
    scalars[S_NODES] -= 1
    if nodes[child, N_HEAP] != NIL:
        move_leaf(scalars, nodes, heap, child)
