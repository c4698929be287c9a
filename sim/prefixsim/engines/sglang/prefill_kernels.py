# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: one prefill pass over the waiting queue. Compiled through `prefixsim.jit`.
Twin: `reference.Scheduler.prefill_batch` and what it calls."""

from __future__ import annotations

from prefixsim.engines.sglang.hicache_kernels import load_back
from prefixsim.engines.sglang.host_kernels import on_device
from prefixsim.engines.sglang.request_kernels import ceil_pages
from prefixsim.engines.sglang.state import (
    CLIP_NEW_TOKENS,
    CONTINUE,
    F_RATIO,
    L_BATCH,
    L_RUNNING,
    L_WAITING,
    N_END,
    NIL,
    NO_TOKEN,
    OTHER,
    R_EXTEND_END,
    R_HOST,
    R_LOCK,
    R_MADE,
    R_MAX_NEW,
    R_NODE,
    R_PREFIX,
    R_PROMPT,
    R_PROTECTED,
    ROOT,
    S_AVAILABLE,
    S_CHUNK,
    S_CHUNKED,
    S_EVICTABLE,
    S_FULL,
    S_MAX_PREFILL,
    S_MAX_RUNNING,
    S_PAGE,
    S_RUNNING,
    S_SCHEDULE,
    S_STEP_CLOCK,
    S_TIER,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
    SHORTEST,
)
from prefixsim.engines.sglang.tree_kernels import lock, unlock
from prefixsim.engines.sglang.waiting_kernels import look_up, order_waiting
from prefixsim.jit import lean_kernel

# budget float64 (3,) and left int64 (3,) hold what one pass may still admit
B_RESERVED, N_BUDGET = range(2)
A_NOW, A_INPUT, A_CHUNK, N_LEFT = range(4)


@lean_kernel
def remaining(scalars, reserved):
    """Pool tokens not spoken for."""
    return (scalars[S_AVAILABLE] + scalars[S_EVICTABLE]) * scalars[S_PAGE] - reserved


@lean_kernel
def verdict_of(scalars, budget, left):
    """CONTINUE, NO_TOKEN or OTHER for the next candidate."""
    if remaining(scalars, budget[B_RESERVED]) <= 0.0 or remaining(scalars, left[A_NOW]) <= 0:
        return NO_TOKEN
    if left[A_INPUT] <= 0 or (scalars[S_CHUNK] > 0 and left[A_CHUNK] <= 0):
        return OTHER
    return CONTINUE


@lean_kernel
def charge(scalars, budget, left, tokens, max_new):
    """Books one admitted prefill."""
    page = scalars[S_PAGE]
    paged = ceil_pages(tokens, page) * page
    budget[B_RESERVED] += paged + page + max_new
    left[A_NOW] += paged + page
    left[A_INPUT] -= paged
    left[A_CHUNK] -= paged


@lean_kernel
def shorter_waiting(scalars, slots, waiting, n, room, tokens_left):
    """shortest-prefill-first: chunk budget kept back for waiting requests shorter than what is left of the chunked one;
    0 where none. Twin: none, the golden loop has no such limit."""
    page = scalars[S_PAGE]
    if room < 2 * page:
        return 0
    kept = 0
    for i in range(n):
        slot = waiting[i]
        work = max(1, slots[slot, R_PROMPT] + slots[slot, R_MADE] - slots[slot, R_PREFIX])
        paged = ceil_pages(work, page) * page
        if work >= tokens_left or kept + paged > room - page:
            break
        kept += paged
    return kept


@lean_kernel
def continue_chunk(scalars, slots, budget, left, slot, limit):
    """The next chunk of the request being chunked; it stays the chunked one while more is left."""
    room = min(left[A_CHUNK], int(remaining(scalars, budget[B_RESERVED])))
    if room <= 0:
        room = left[A_CHUNK]
    if limit > 0:
        room = min(room, limit)
    tokens_left = slots[slot, R_PROMPT] + slots[slot, R_MADE] - slots[slot, R_PREFIX]
    tokens = min(tokens_left, room)
    slots[slot, R_EXTEND_END] = slots[slot, R_PREFIX] + tokens
    if tokens_left > room:
        charge(scalars, budget, left, tokens, 0)
    else:
        charge(scalars, budget, left, tokens, min(slots[slot, R_MAX_NEW], CLIP_NEW_TOKENS))
        scalars[S_CHUNKED] = NIL


@lean_kernel
def shape(scalars, budget, left, total, prefix, tokens, n_batch):
    """How much of a request one pass may compute: (refusal or CONTINUE, tokens, is it a chunk)."""
    page = scalars[S_PAGE]
    refusal = CONTINUE
    extend = tokens
    chunked = False
    paged = ceil_pages(tokens, page) * page
    if total >= remaining(scalars, budget[B_RESERVED]):
        refusal = NO_TOKEN
    elif scalars[S_CHUNK] == 0:
        if n_batch > 0 and paged >= left[A_INPUT]:
            refusal = OTHER
    elif paged > left[A_CHUNK]:
        extend = (prefix + left[A_CHUNK] // page * page) // page * page - prefix
        chunked = True
        if extend <= 0 or (scalars[S_CHUNKED] != NIL and scalars[S_SCHEDULE] == SHORTEST):
            refusal = OTHER
    return refusal, extend, chunked


@lean_kernel
def admit(scalars, nodes, table, heap, slots, budget, left, slot, n_batch):
    """Tries to admit a looked-up request: (whether, is it a chunk, what the pass should do next)."""
    page = scalars[S_PAGE]
    prefix = slots[slot, R_PREFIX]
    tokens = slots[slot, R_PROMPT] + slots[slot, R_MADE] - prefix
    total = tokens + min(max(slots[slot, R_MAX_NEW] - slots[slot, R_MADE], 0), CLIP_NEW_TOKENS) + page
    node = slots[slot, R_NODE]
    host = 0
    if scalars[S_TIER] == 1:
        node = on_device(nodes, node)
        host = slots[slot, R_HOST] * page
    lock(scalars, nodes, heap, node, ROOT)
    refusal, extend, chunked = shape(scalars, budget, left, total, prefix + host, tokens - host, n_batch)
    if refusal == CONTINUE and host > 0:
        if load_back(scalars, nodes, table, heap, slots[slot, R_NODE], node) > 0:
            node = slots[slot, R_NODE]
            prefix += host
            slots[slot, R_PREFIX] = prefix
        else:  # computed again instead
            slots[slot, R_HOST] = 0
            refusal, extend, chunked = shape(scalars, budget, left, total, prefix, tokens, n_batch)
    if refusal != CONTINUE:
        unlock(scalars, nodes, heap, node)
        return False, False, refusal
    slots[slot, R_EXTEND_END] = prefix + extend
    slots[slot, R_LOCK] = node
    slots[slot, R_PROTECTED] = nodes[node, N_END]
    charge(scalars, budget, left, extend, 0 if chunked else min(slots[slot, R_MAX_NEW], CLIP_NEW_TOKENS))
    return True, chunked, verdict_of(scalars, budget, left)


@lean_kernel
def prefill_pass(
    scalars, floats, nodes, table, heap, run_offset, run_start, run_end, slots, lists, ratio, seen, weights, static,
    budget, left,
):  # fmt: skip
    """Fills lists[L_BATCH] from the chunked request and the head of the waiting queue; returns how many."""
    chunked = scalars[S_CHUNKED]
    n = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
    n_running = scalars[S_RUNNING]
    if chunked == NIL and (scalars[S_FULL] == 1 or n == 0 or n_running >= scalars[S_MAX_RUNNING]):
        return 0
    order_waiting(
        scalars, nodes, table, heap, run_offset, run_start, run_end, slots, lists, ratio, seen, weights, static
    )
    reserved = 0.0
    for i in range(n_running):
        slot = lists[L_RUNNING, i]
        reserved += min(slots[slot, R_MAX_NEW] - slots[slot, R_MADE], CLIP_NEW_TOKENS) * floats[F_RATIO]
    budget[B_RESERVED] = reserved
    left[A_NOW] = 0
    left[A_INPUT] = scalars[S_MAX_PREFILL]
    left[A_CHUNK] = scalars[S_CHUNK]
    count = 0
    if chunked != NIL:
        limit = 0
        if scalars[S_SCHEDULE] == SHORTEST and scalars[S_STEP_CLOCK] == 0:
            tokens_left = slots[chunked, R_PROMPT] + slots[chunked, R_MADE] - slots[chunked, R_PREFIX]
            waiting = lists[L_WAITING, scalars[S_WAIT_HEAD] :]
            kept = shorter_waiting(scalars, slots, waiting, n, left[A_CHUNK], tokens_left)
            if kept > 0:
                limit = (left[A_CHUNK] - kept) // scalars[S_PAGE] * scalars[S_PAGE]
        continue_chunk(scalars, slots, budget, left, chunked, limit)
        lists[L_BATCH, 0] = chunked
        count = 1
    new_chunked = NIL
    for _ in range(n):
        if verdict_of(scalars, budget, left) == OTHER:
            break
        if count >= scalars[S_MAX_RUNNING] - n_running:
            scalars[S_FULL] = 1
            break
        slot = lists[L_WAITING, scalars[S_WAIT_HEAD]]
        length = slots[slot, R_PROMPT] + slots[slot, R_MADE]
        look_up(scalars, nodes, table, heap, run_offset, run_start, run_end, slots, slot, length - 1)
        admitted, is_chunk, verdict = admit(scalars, nodes, table, heap, slots, budget, left, slot, count)
        if admitted:
            lists[L_BATCH, count] = slot
            count += 1
            scalars[S_WAIT_HEAD] += 1
            if is_chunk:
                new_chunked = slot
        if verdict != CONTINUE:
            if verdict == NO_TOKEN:
                scalars[S_FULL] = 1 if count > 0 or n_running > 0 else 0
            break
    if new_chunked != NIL:
        scalars[S_CHUNKED] = new_chunked
    return count
