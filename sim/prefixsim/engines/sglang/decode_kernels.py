# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: the running batch, decode allocation, retraction. Compiled through `prefixsim.jit`.
Twin: `reference.Scheduler.merge_last_prefill`, `decode_batch`, `retract`."""

from __future__ import annotations

from prefixsim.engines.sglang.request_kernels import ceil_pages
from prefixsim.engines.sglang.state import (
    F_RATIO,
    F_RATIO_DECAY,
    F_RATIO_MIN,
    L_LAST,
    L_RUNNING,
    L_WAITING,
    NIL,
    R_AGAIN,
    R_COMMITTED,
    R_GONE,
    R_HIGH,
    R_INSERTED,
    R_LOCK,
    R_MADE,
    R_MATCHED,
    R_MAX_NEW,
    R_MIDDLE,
    R_NODE,
    R_OUTPUTS,
    R_PREFIX,
    R_PROMPT,
    R_PROTECTED,
    R_REQUEST,
    R_SKIP,
    R_STAMP,
    RETRACT_TOKENS,
    ROOT,
    S_ABORTED,
    S_ADMITTED,
    S_AVAILABLE,
    S_BATCHES,
    S_CHUNKED,
    S_COMPLETED,
    S_DIRTY,
    S_DISABLED,
    S_FREE_SLOT,
    S_FULL,
    S_LAST,
    S_NOW,
    S_OOM_HAVE,
    S_OOM_NEED,
    S_PAGE,
    S_PENDING,
    S_RETRACTIONS,
    S_RUNNING,
    S_STEP_CLOCK,
    S_WAIT_TAIL,
    W_AWAITED,
    W_STOP,
)
from prefixsim.engines.sglang.tree_kernels import make_room, unlock
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    REQ_PREEMPTIONS,
    REQ_STATUS,
    STATUS_REJECTED,
    STATUS_WAITING,
)


@lean_kernel
def merge_last(scalars, slots, lists):
    """Moves prefilled requests to the running batch, except the one still being chunked, and drops finished ones."""
    running = lists[L_RUNNING]
    before = scalars[S_RUNNING]
    n = before
    for i in range(scalars[S_LAST]):
        slot = lists[L_LAST, i]
        if slot != scalars[S_CHUNKED]:
            running[n] = slot
            n += 1
    scalars[S_LAST] = 0
    if scalars[S_DIRTY] == 1:
        kept = 0
        for i in range(n):
            slot = running[i]
            if slots[slot, R_MADE] < slots[slot, R_OUTPUTS]:
                running[kept] = slot
                kept += 1
            else:
                slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
                scalars[S_FREE_SLOT] = slot
        n = kept
        scalars[S_DIRTY] = 0
    scalars[S_RUNNING] = n
    if n < before or n == 0:
        scalars[S_FULL] = 0


@lean_kernel
def fits(scalars, nodes, table, heap, need):
    """Whether `need` pages can be had, after evicting for them."""
    if scalars[S_DISABLED] == 0:
        make_room(scalars, nodes, table, heap, need)
    return scalars[S_AVAILABLE] >= need


@lean_kernel
def decode_pass(scalars, floats, nodes, table, heap, slots, lists, static, rows, completed):
    """One decode step of the running batch: (how many decode, sum of their KV tokens); (-1, 0): the engine would stop."""
    running = lists[L_RUNNING]
    page = scalars[S_PAGE]
    before = scalars[S_RUNNING]
    in_flight = scalars[S_BATCHES] - 1 if scalars[S_PENDING] > 0 else NIL
    n = 0
    need = 0
    for i in range(before):
        slot = running[i]
        if (
            slots[slot, R_MADE] + 1 >= slots[slot, R_OUTPUTS]
            and in_flight != NIL
            and slots[slot, R_STAMP] == in_flight
            and static[slots[slot, R_REQUEST], W_STOP] == 0
        ):
            slots[slot, R_GONE] = 1  # its last token is already being computed
        else:
            running[n] = slot
            n += 1
            if page == 1 or slots[slot, R_COMMITTED] % page == 0:
                need += 1
    ending = before - n
    if ending > 0:
        scalars[S_FULL] = 0
    scalars[S_RUNNING] = n
    if n == 0:
        return 0, 0
    if fits(scalars, nodes, table, heap, need):
        floats[F_RATIO] = max(floats[F_RATIO] - floats[F_RATIO_DECAY], floats[F_RATIO_MIN])
    elif ending > 0 and scalars[S_STEP_CLOCK] == 0:
        # the results in flight free memory: the engine decodes the others next time (the golden loop retracts)
        scalars[S_FULL] = 0
        return 0, 0
    else:
        retract(scalars, floats, nodes, table, heap, slots, lists, static, rows, completed)
        if scalars[S_RUNNING] < n:
            scalars[S_FULL] = 0
        n = scalars[S_RUNNING]
        if n == 0:
            return 0, 0
        need = pages_in(scalars, slots, running, n)
    if scalars[S_AVAILABLE] < n and scalars[S_DISABLED] == 0:
        make_room(scalars, nodes, table, heap, n)
    if need > scalars[S_AVAILABLE]:
        scalars[S_OOM_NEED], scalars[S_OOM_HAVE] = need, scalars[S_AVAILABLE]
        return -1, 0
    scalars[S_AVAILABLE] -= need
    kv_tokens = 0
    stamp = scalars[S_BATCHES]
    for i in range(n):
        slot = running[i]
        slots[slot, R_COMMITTED] += 1
        slots[slot, R_STAMP] = stamp
        kv_tokens += slots[slot, R_COMMITTED]
    return n, kv_tokens


@lean_kernel
def pages_in(scalars, slots, running, n):
    """Pages the next decode of the first n running requests takes."""
    need = 0
    for i in range(n):
        if slots[running[i], R_COMMITTED] % scalars[S_PAGE] == 0:
            need += 1
    return need


@lean_kernel
def drop(scalars, nodes, table, heap, slots, slot, others):
    """Frees a request's KV without keeping it, and room for some decode steps of the others."""
    page = scalars[S_PAGE]
    scalars[S_AVAILABLE] += ceil_pages(slots[slot, R_COMMITTED], page) - slots[slot, R_PROTECTED]
    unlock(scalars, nodes, heap, slots[slot, R_LOCK])
    slots[slot, R_LOCK] = ROOT
    if scalars[S_DISABLED] == 0:
        make_room(scalars, nodes, table, heap, ceil_pages(others * RETRACT_TOKENS, page))


@lean_kernel
def keep_order(slots, running, n):
    """Sorts the running batch: most outputs first, then shortest prompt, equal ones as they stood (insertion sort: it
    stands nearly so after the first time)."""
    for i in range(1, n):
        slot = running[i]
        made, prompt = slots[slot, R_MADE], slots[slot, R_PROMPT]
        at = i
        while at > 0:
            other = running[at - 1]
            if slots[other, R_MADE] > made or (slots[other, R_MADE] == made and slots[other, R_PROMPT] <= prompt):
                break
            running[at] = other
            at -= 1
        running[at] = slot


@lean_kernel
def retract(scalars, floats, nodes, table, heap, slots, lists, static, rows, completed):
    """Drops requests with fewest outputs, then longest prompt, until the others fit; they wait again. A last one that
    does not fit alone is aborted. Sets the new-token ratio."""
    running = lists[L_RUNNING]
    n = scalars[S_RUNNING]
    keep_order(slots, running, n)
    while n > 1:
        n -= 1
        slot = running[n]
        slots[slot, R_HIGH] = slots[slot, R_COMMITTED]
        drop(scalars, nodes, table, heap, slots, slot, n)
        slots[slot, R_SKIP] = 1
        slots[slot, R_AGAIN] = 1
        slots[slot, R_PREFIX] = 0
        slots[slot, R_PROTECTED] = 0
        slots[slot, R_INSERTED] = 0
        slots[slot, R_MATCHED] = 0
        slots[slot, R_COMMITTED] = 0
        slots[slot, R_MIDDLE] = 0
        slots[slot, R_NODE] = ROOT
        lists[L_WAITING, scalars[S_WAIT_TAIL]] = slot
        scalars[S_WAIT_TAIL] += 1
        scalars[S_RETRACTIONS] += 1
        scalars[S_ADMITTED] -= 1
        rows[slots[slot, R_REQUEST], REQ_PREEMPTIONS] += 1
        rows[slots[slot, R_REQUEST], REQ_STATUS] = STATUS_WAITING
        if fits(scalars, nodes, table, heap, pages_in(scalars, slots, running, n)):
            break
    if n == 1 and not fits(scalars, nodes, table, heap, pages_in(scalars, slots, running, 1)):
        n = 0
        slot = running[0]
        drop(scalars, nodes, table, heap, slots, slot, 0)
        request = slots[slot, R_REQUEST]
        slots[slot, R_OUTPUTS] = slots[slot, R_MADE]
        scalars[S_ABORTED] += 1
        scalars[S_ADMITTED] -= 1
        rows[request, REQ_STATUS] = STATUS_REJECTED
        if static[request, W_AWAITED] == 1:
            completed[scalars[S_COMPLETED], 0] = request
            completed[scalars[S_COMPLETED], 1] = scalars[S_NOW]
            scalars[S_COMPLETED] += 1
        slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
        scalars[S_FREE_SLOT] = slot
    scalars[S_RUNNING] = n
    made = 0
    allowed = 0
    for i in range(n):
        made += slots[running[i], R_MADE]
        allowed += slots[running[i], R_MAX_NEW]
    floats[F_RATIO] = min(1.0, (made + RETRACT_TOKENS * n) / (allowed + 1))
