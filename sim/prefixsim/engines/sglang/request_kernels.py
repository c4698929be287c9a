# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: what requests do to pool and tree, and the sequential and overlap-window loops of golden cases.
Compiled through `prefixsim.jit`. Twin: `reference.Cache`, `run_sequential`, `run_overlap`."""

from __future__ import annotations

from prefixsim.engines.sglang.hicache_kernels import back_up_path
from prefixsim.engines.sglang.state import (
    DONE,
    GROW_COMMITS,
    GROW_NODES,
    L_RUNNING,
    N_END,
    OUT_OF_MEMORY,
    R_COMMITTED,
    R_INSERTED,
    R_LOCK,
    R_MADE,
    R_OUTPUTS,
    R_PROMPT,
    R_PROTECTED,
    R_REQUEST,
    ROOT,
    S_ARRIVALS,
    S_ARRIVED,
    S_AVAILABLE,
    S_COMMITS,
    S_DISABLED,
    S_EVICTABLE,
    S_EVICTED,
    S_FREE_SLOT,
    S_INSERT_NS,
    S_KEEP_COMMITS,
    S_MAX_RUNS,
    S_NODES,
    S_OOM_HAVE,
    S_OOM_NEED,
    S_PAGE,
    S_RUNNING,
    S_STRIP_THINKING,
    S_TIER,
    S_WRITE_BACK,
    W_OUTPUTS,
    W_PRIORITY,
    W_PROMPT,
    X_CHUNKS,
    X_EVICTED,
)
from prefixsim.engines.sglang.tree_kernels import insert, lock, make_room, mark_prompt, match, settle, unlock
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    NEVER,
    REQ_CACHED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
)

# Tree arrays and row arrays always travel in this order: scalars, nodes, table, heap, run_offset, run_start, run_end.
# heads int64 (R,): for each run, which entry of `marks` counts its pages ever inserted; commits int64 (capacity, 3):
# (first chain id, how many, when) of every growth of a mark.


@lean_kernel
def ceil_pages(tokens, page):
    """Pages that hold so many tokens."""
    return (tokens + page - 1) // page


@lean_kernel
def known_pages(run_offset, run_end, heads, marks, row, n):
    """Of a row's first n pages, how many were ever inserted here (a prefix)."""
    known = 0
    before = 0
    for run in range(run_offset[row], run_offset[row + 1]):
        if before >= n:
            break
        have = min(run_end[run], n) - before
        seen = min(marks[heads[run]], have)
        known += seen
        if seen < have:
            break
        before = run_end[run]
    return known


@lean_kernel
def note_inserted(scalars, run_offset, run_start, run_end, heads, marks, commits, row, n):
    """Remembers that a row's first n pages were inserted. What is marked is closed under prefixes, so the walk from the
    deep end stops at the first run that is marked far enough."""
    base = run_offset[row]
    run = run_offset[row + 1] - 1
    while run > base and run_end[run - 1] >= n:
        run -= 1
    while run >= base:
        before = run_end[run - 1] if run > base else 0
        have = min(run_end[run], n) - before
        seen = marks[heads[run]]
        if seen >= have:
            break
        marks[heads[run]] = have
        if scalars[S_KEEP_COMMITS] == 1:
            at = scalars[S_COMMITS]
            commits[at, 0] = run_start[run] + seen
            commits[at, 1] = have - seen
            commits[at, 2] = scalars[S_INSERT_NS]
            scalars[S_COMMITS] = at + 1
        run -= 1


@lean_kernel
def checkpoint(
    scalars,
    nodes,
    table,
    heap,
    run_offset,
    run_start,
    run_end,
    heads,
    marks,
    commits,
    slots,
    slot,
    up_to,
    priority,
    stay,
):
    """Inserts what a request has computed. stay: it goes on running, so its lock moves to where the insert ended."""
    page = scalars[S_PAGE]
    n = up_to // page
    if scalars[S_DISABLED] == 1 or up_to <= 0:
        return
    row = slots[slot, R_REQUEST]
    locked = slots[slot, R_LOCK]
    counted = slots[slot, R_INSERTED] if scalars[S_WRITE_BACK] == 0 else NEVER  # write_back counts no hits
    matched, node = insert(
        scalars, nodes, table, heap, run_offset, run_start, run_end, locked, row, n, priority, counted
    )
    if matched > slots[slot, R_PROTECTED]:
        scalars[S_AVAILABLE] += matched - slots[slot, R_PROTECTED]  # duplicates of what the tree holds
    if scalars[S_TIER] == 1:
        back_up_path(scalars, nodes, table, heap, node, counted)
    slots[slot, R_INSERTED] = max(slots[slot, R_INSERTED], n)
    prompt = slots[slot, R_PROMPT] // page
    if prompt > 0 and prompt < n:
        mark_prompt(scalars, nodes, table, heap, run_offset, run_start, run_end, node, prompt, priority + 1)
    if stay:
        lock(scalars, nodes, heap, node, locked)
        slots[slot, R_LOCK] = node
    else:
        settle(scalars, nodes, heap, node)
    slots[slot, R_PROTECTED] = n
    if n > 0:
        note_inserted(scalars, run_offset, run_start, run_end, heads, marks, commits, row, n)


@lean_kernel
def release(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, priority, keep
):
    """Gives a request's KV back, after inserting it where `keep`."""
    committed = slots[slot, R_COMMITTED]
    if keep:
        up_to = committed
        if scalars[S_STRIP_THINKING] == 1:
            up_to = min(up_to, slots[slot, R_PROMPT])
        checkpoint(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, up_to,
            priority, False,
        )  # fmt: skip
    scalars[S_AVAILABLE] += ceil_pages(committed, scalars[S_PAGE]) - slots[slot, R_PROTECTED]
    unlock(scalars, nodes, heap, slots[slot, R_LOCK])
    slots[slot, R_LOCK] = ROOT


@lean_kernel
def start_alone(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, static, rows, extra
):
    """Match, lock, allocate, prefill, first token, insert: 1 started, 0 does not fit, -1 the engine would stop."""
    page = scalars[S_PAGE]
    row = slots[slot, R_REQUEST]
    prompt = static[row, W_PROMPT]
    node = ROOT
    if scalars[S_DISABLED] == 0:
        rows[row, REQ_KNOWN_TOKENS] = known_pages(run_offset, run_end, heads, marks, row, prompt // page) * page
        node = match(scalars, nodes, table, heap, run_offset, run_start, run_end, row, (prompt - 1) // page)
    prefix = nodes[node, N_END] * page
    rows[row, REQ_LOOKUP_TOKENS] = prompt
    rows[row, REQ_CACHED_TOKENS] = prefix
    rows[row, REQ_DEVICE_TOKENS] = prefix
    lock(scalars, nodes, heap, node, ROOT)
    need = prompt - prefix + (page if page > 1 else 0)
    if need > (scalars[S_AVAILABLE] + scalars[S_EVICTABLE]) * page:
        unlock(scalars, nodes, heap, node)
        return 0
    slots[slot, R_LOCK] = node
    slots[slot, R_PROTECTED] = nodes[node, N_END]
    slots[slot, R_INSERTED] = 0
    slots[slot, R_MADE] = 1
    slots[slot, R_OUTPUTS] = static[row, W_OUTPUTS]
    slots[slot, R_PROMPT] = prompt
    slots[slot, R_COMMITTED] = prompt
    before = scalars[S_EVICTED]
    if scalars[S_DISABLED] == 0:
        make_room(scalars, nodes, table, heap, ceil_pages(need, page))
    take = ceil_pages(prompt, page) - nodes[node, N_END]
    if take > scalars[S_AVAILABLE]:
        scalars[S_OOM_NEED], scalars[S_OOM_HAVE] = take, scalars[S_AVAILABLE]
        return -1
    scalars[S_AVAILABLE] -= take
    extra[row, X_CHUNKS] += 1
    extra[row, X_EVICTED] += (scalars[S_EVICTED] - before) * page
    priority = static[row, W_PRIORITY]
    if slots[slot, R_OUTPUTS] <= 1:
        release(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, priority,
            True,
        )  # fmt: skip
        rows[row, REQ_STATUS] = STATUS_FINISHED
    else:
        checkpoint(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, prompt,
            priority, True,
        )  # fmt: skip
    return 1


@lean_kernel
def finish_alone(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, static, rows, extra
):
    """Decodes one request to its end; nothing else happens meanwhile, so whole pages of tokens go at once.

    Each step asks for a page, needed or not; asking evicts only while nothing is free. False: the engine would stop."""
    page = scalars[S_PAGE]
    row = slots[slot, R_REQUEST]
    left = slots[slot, R_OUTPUTS] - slots[slot, R_MADE]
    before = scalars[S_EVICTED]
    committed = slots[slot, R_COMMITTED]
    while left > 0:
        if scalars[S_AVAILABLE] == 0 and scalars[S_DISABLED] == 0:
            make_room(scalars, nodes, table, heap, 1)
        inside = committed % page
        if inside == 0:
            if scalars[S_AVAILABLE] == 0:
                scalars[S_OOM_NEED], scalars[S_OOM_HAVE] = 1, 0
                return False
            if page == 1:
                steps = min(left, scalars[S_AVAILABLE])
                scalars[S_AVAILABLE] -= steps
            else:
                steps = min(left, page)
                scalars[S_AVAILABLE] -= 1
                if steps > 1 and scalars[S_AVAILABLE] == 0:
                    steps = 1  # the next step asks for a page again
        else:
            steps = min(left, page - inside)
        left -= steps
        committed += steps
    slots[slot, R_COMMITTED] = committed
    slots[slot, R_MADE] = slots[slot, R_OUTPUTS]
    extra[row, X_EVICTED] += (scalars[S_EVICTED] - before) * page
    release(
        scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot,
        static[row, W_PRIORITY], True,
    )  # fmt: skip
    rows[row, REQ_STATUS] = STATUS_FINISHED
    return True


@lean_kernel
def run_window(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists, static, rows,
    extra, order, width, alone,
):  # fmt: skip
    """Golden modes: a window of `width` running requests, each started when the one `width` before it is done, ended in
    first-in order. alone: sequential mode, where a request's evictions include those of its decoding.

    order int64 (m,): requests in order; resumes at scalars[S_ARRIVED]. slots has width + 1 rows. Returns a code."""
    running = lists[L_RUNNING]
    while scalars[S_ARRIVED] < scalars[S_ARRIVALS]:
        if nodes.shape[0] - 1 - scalars[S_NODES] < 16 + 8 * width:
            return GROW_NODES
        if scalars[S_KEEP_COMMITS] == 1 and commits.shape[0] - scalars[S_COMMITS] < (width + 2) * scalars[S_MAX_RUNS]:
            return GROW_COMMITS
        while scalars[S_RUNNING] > width - 1:
            if not end_first(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, running,
                static, rows, extra, alone,
            ):  # fmt: skip
                return OUT_OF_MEMORY
        row = order[scalars[S_ARRIVED]]
        scalars[S_ARRIVED] += 1
        slot = scalars[S_FREE_SLOT]
        scalars[S_FREE_SLOT] = slots[slot, R_LOCK]
        slots[slot, R_REQUEST] = row
        while True:
            started = start_alone(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, static,
                rows, extra,
            )  # fmt: skip
            if started < 0:
                return OUT_OF_MEMORY
            if started == 1 or scalars[S_RUNNING] == 0:
                break
            before = scalars[S_EVICTED]
            if not end_first(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, running,
                static, rows, extra, alone,
            ):  # fmt: skip
                return OUT_OF_MEMORY
            extra[row, X_EVICTED] += (scalars[S_EVICTED] - before) * scalars[S_PAGE]
        if started == 0:
            rows[row, REQ_STATUS] = STATUS_REJECTED
        if started == 1 and slots[slot, R_MADE] < slots[slot, R_OUTPUTS]:
            running[scalars[S_RUNNING]] = slot
            scalars[S_RUNNING] += 1
            if alone and not end_first(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, running,
                static, rows, extra, alone,
            ):  # fmt: skip
                return OUT_OF_MEMORY
        else:
            slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
            scalars[S_FREE_SLOT] = slot
    while scalars[S_RUNNING] > 0:
        if not end_first(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, running, static,
            rows, extra, alone,
        ):  # fmt: skip
            return OUT_OF_MEMORY
    return DONE


@lean_kernel
def end_first(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, running, static, rows,
    extra, alone,
):  # fmt: skip
    """Ends the longest-running request of the window. Its own evictions count for it only in sequential mode."""
    slot = running[0]
    row = slots[slot, R_REQUEST]
    own = extra[row, X_EVICTED]
    fits = finish_alone(
        scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot, static, rows,
        extra,
    )  # fmt: skip
    if not alone:
        extra[row, X_EVICTED] = own
    for i in range(1, scalars[S_RUNNING]):
        running[i - 1] = running[i]
    scalars[S_RUNNING] -= 1
    slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
    scalars[S_FREE_SLOT] = slot
    return fits
