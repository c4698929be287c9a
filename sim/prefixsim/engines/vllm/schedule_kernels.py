# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Running requests, preemption and the batch's cost, compiled. Twin: first half of `twin.TwinScheduler.schedule`.
Arrays: see `state`.
"""

from __future__ import annotations

from prefixsim.engines.vllm.pool_kernels import commit_row, release, take
from prefixsim.engines.vllm.queue_kernels import push_waiting
from prefixsim.engines.vllm.state import (
    E_NEW,
    E_POS,
    E_SAMPLES,
    E_SLOT,
    H_CACHED,
    H_END_NS,
    H_ENTRIES,
    H_EVICTED,
    H_LOOKUP,
    H_PREEMPTIONS,
    H_PREFILL,
    H_RUNNING,
    H_START_NS,
    H_TOKENS,
    H_USED,
    H_WAITING,
    I_BLOCK_SIZE,
    I_CACHING,
    I_DEPTH,
    I_END,
    I_EVICTED,
    I_FIRST_CACHED,
    I_FIRST_LOOKUP,
    I_FREE,
    I_MAX_LEN,
    I_PREEMPTIONS,
    I_PRIORITY,
    I_RUNNING,
    I_SEEN_USED,
    I_SEEN_WAITING,
    I_TURN_NS,
    IS_PREEMPTED,
    LIST_FREE,
    LIST_RUNNING,
    Q_BEFORE,
    Q_LAST_NS,
    Q_OUTPUTS,
    Q_STATE,
    S_AGAIN,
    S_BLOCKS,
    S_COMMITTED,
    S_COMPUTED,
    S_ENTRY,
    S_FLIGHT,
    S_HITS,
    S_LAST_NS,
    S_LIMIT,
    S_OUTPUTS,
    S_PLACE,
    S_POS,
    S_PROMPT,
    S_REQ,
    S_RUN,
    S_TAIL,
)
from prefixsim.hardware.step_kernels import prefill_item, step_ns
from prefixsim.jit import inline_kernel, lean_kernel
from prefixsim.records import (
    REQ_CHUNKS,
    REQ_PREEMPTIONS,
    REQ_STATUS,
    STATUS_WAITING,
)


@lean_kernel
def leave_slot(state, lists, slots, slot):
    """Takes a slot out of the running list and makes it free for another request."""
    n = state[I_RUNNING]
    i = n - 1
    while lists[LIST_RUNNING, i] != slot:
        i -= 1
    for k in range(i, n - 1):
        lists[LIST_RUNNING, k] = lists[LIST_RUNNING, k + 1]
    state[I_RUNNING] = n - 1
    lists[LIST_FREE, lists.shape[1] - n] = slot
    slots[slot, S_POS] = -1
    return i


@lean_kernel
def pick_victim(state, lists, slots, priority):
    """Slot to preempt: the last running one, or the largest (priority, arrival)."""
    n = state[I_RUNNING]
    worst = lists[LIST_RUNNING, n - 1]
    if state[I_PRIORITY] != 0:
        for i in range(n - 1):
            s = lists[LIST_RUNNING, i]
            p, q = priority[slots[s, S_REQ]], priority[slots[worst, S_REQ]]
            if p > q or (p == q and slots[s, S_POS] > slots[worst, S_POS]):
                worst = s
    return worst


@lean_kernel
def preempt(state, blocks, where, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows, slot):
    """Frees a running request's blocks and puts it in front of the waiting ones. Returns its place in the running list."""
    pos, request = slots[slot, S_POS], slots[slot, S_REQ]
    hits = slots[slot, S_HITS]
    own = slots[slot, S_BLOCKS] - hits
    release(state, blocks, where, run_offset, run_start, run_end, request, hits, slots[slot, S_TAIL], own)
    queue[pos, Q_OUTPUTS] = slots[slot, S_OUTPUTS]
    queue[pos, Q_BEFORE] = slots[slot, S_COMPUTED]
    queue[pos, Q_LAST_NS] = slots[slot, S_LAST_NS]
    queue[pos, Q_STATE] = IS_PREEMPTED
    rows[request, REQ_PREEMPTIONS] += 1
    rows[request, REQ_STATUS] = STATUS_WAITING
    at = leave_slot(state, lists, slots, slot)
    push_waiting(state, lists, queue, heap, priority, pos)
    state[I_PREEMPTIONS] += 1
    return at


@inline_kernel
def schedule_running(
    state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
    batch, budget, threshold, now,
):  # fmt: skip
    """Running requests in order; who finds no room preempts. Returns (entries, budget left, preempted)."""
    block_size = state[I_BLOCK_SIZE]
    caching = state[I_CACHING] != 0
    by_priority = state[I_PRIORITY] != 0
    max_len = state[I_MAX_LEN]
    entries = 0
    preempted = 0
    i = 0
    while i < state[I_RUNNING] and budget > 0:
        slot = lists[LIST_RUNNING, i]
        computed, place = slots[slot, S_COMPUTED], slots[slot, S_PLACE]
        # Outputs in flight already reach max_tokens: nothing more to compute for it.
        if place > 0 and computed + 2 - place >= slots[slot, S_LIMIT]:
            i += 1
            continue
        known = slots[slot, S_PROMPT] + slots[slot, S_OUTPUTS]
        new = known + place - computed
        if 0 < threshold < new:
            new = threshold
        new = min(new, budget, max_len - computed - 1)
        if new <= 0:
            i += 1
            continue
        need = (computed + new + block_size - 1) // block_size - slots[slot, S_BLOCKS]
        fits = True
        while need > state[I_FREE]:
            victim = pick_victim(state, lists, slots, priority)
            if slots[victim, S_ENTRY] >= 0 and victim != slot:  # only under the priority policy
                gone = slots[victim, S_ENTRY]
                budget += batch[gone, E_NEW]
                batch[gone, E_NEW] = 0
            at = preempt(
                state, blocks, where, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows, victim
            )
            if at < i:
                i -= 1
            preempted += 1
            if victim == slot:
                fits = False
                break
        if not fits:
            if by_priority:
                continue
            break
        if need > 0:
            slots[slot, S_TAIL] = take(state, blocks, where, slots[slot, S_TAIL], need)
            slots[slot, S_BLOCKS] += need
        if caching:
            full = min(computed + new, known) // block_size
            done = slots[slot, S_COMMITTED]
            if full > done:
                slots[slot, S_RUN] = commit_row(
                    state, blocks, where, commits, run_offset, run_start, run_end, slots[slot, S_REQ],
                    slots[slot, S_RUN], slots[slot, S_TAIL], slots[slot, S_BLOCKS], done, full, now,
                )  # fmt: skip
                slots[slot, S_COMMITTED] = full
        batch[entries, E_POS] = slots[slot, S_POS]
        batch[entries, E_SLOT] = slot
        batch[entries, E_NEW] = new
        slots[slot, S_ENTRY] = entries
        entries += 1
        budget -= new
        i += 1
    return entries, budget, preempted


@inline_kernel
def close_batch(state, slots, rows, batch, head, entries, now, coef, gemm_us, lm_head_us):
    """Advances what was scheduled, adds up the batch and its duration. Returns the number of tokens."""
    is_async = state[I_DEPTH] == 2
    tokens = 0
    prefill_tokens = 0
    n_prefill = 0
    n_decode = 0
    n_sampled = 0
    kv_tokens = 0
    work = 0.0
    longest = 0.0
    for e in range(entries):
        slot = batch[e, E_SLOT]
        new = batch[e, E_NEW]
        if new == 0:  # preempted after it had been scheduled
            continue
        past = slots[slot, S_COMPUTED]
        slots[slot, S_ENTRY] = -1
        slots[slot, S_COMPUTED] = past + new
        slots[slot, S_FLIGHT] += new
        tokens += new
        end = slots[slot, S_PROMPT] + slots[slot, S_OUTPUTS] + slots[slot, S_PLACE]
        if past + new >= end:
            batch[e, E_SAMPLES] = 1
            n_sampled += 1
            if is_async:
                slots[slot, S_PLACE] += 1
        else:
            batch[e, E_SAMPLES] = 0
        if past < slots[slot, S_PROMPT]:
            prefill_tokens += new
            if slots[slot, S_AGAIN] == 0:
                rows[slots[slot, S_REQ], REQ_CHUNKS] += 1
        elif new > 1:
            prefill_tokens += new
        if new > 1:
            n_prefill += 1
            w, item = prefill_item(coef, new, past)
            work += w
            longest = max(longest, item)
        else:
            n_decode += 1
            kv_tokens += past + 1
    if tokens > 0:
        turn = state[I_TURN_NS] if is_async else 0
        start = max(state[I_END], now + turn)
        state[I_END] = start + step_ns(
            coef, gemm_us, lm_head_us, tokens, n_prefill, work, longest, n_decode, kv_tokens, n_sampled
        )
        head[H_START_NS] = start
        head[H_END_NS] = state[I_END]
        head[H_ENTRIES] = entries
        head[H_TOKENS] = tokens
        head[H_PREFILL] = prefill_tokens
        head[H_RUNNING] = state[I_RUNNING]
        head[H_WAITING] = state[I_SEEN_WAITING]
        head[H_USED] = state[I_SEEN_USED]
        head[H_EVICTED] = state[I_EVICTED]
        head[H_PREEMPTIONS] = state[I_PREEMPTIONS]
        head[H_LOOKUP] = state[I_FIRST_LOOKUP]
        head[H_CACHED] = state[I_FIRST_CACHED]
    return tokens
