# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""What a step's output changes, compiled. Twin: `twin.TwinScheduler.process`. Arrays: see `state`."""

from __future__ import annotations

from prefixsim.engines.vllm.pool_kernels import commit_row, release
from prefixsim.engines.vllm.queue_kernels import remove_waiting
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
    I_CUT,
    I_DONE,
    I_FINISHED,
    I_GAPS,
    I_GENERATED,
    I_LAST_END,
    I_MAX_LEN,
    I_RUNNING,
    I_STEPS,
    I_STRIDE,
    I_TIMELINE,
    I_UPDATE_HITS,
    I_UPDATE_QUERIES,
    I_UPDATE_REQUESTS,
    I_WINDOW_AT,
    I_WINDOW_HITS,
    I_WINDOW_N,
    I_WINDOW_QUERIES,
    I_WINDOW_REQUESTS,
    IS_DONE,
    IS_PREEMPTED,
    LIST_FREE,
    LIST_RUNNING,
    Q_LAST_NS,
    Q_OUTPUTS,
    Q_REQ,
    Q_STATE,
    S_BLOCKS,
    S_COMMITTED,
    S_COMPUTED,
    S_FLIGHT,
    S_HITS,
    S_LAST_NS,
    S_OUTPUTS,
    S_PLACE,
    S_POS,
    S_PROMPT,
    S_REQ,
    S_RUN,
    S_STOP,
    S_TAIL,
    WINDOW_REQUESTS,
    WINDOW_ROWS,
)
from prefixsim.jit import inline_kernel, lean_kernel
from prefixsim.records import (
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_LOOKUP_TOKENS,
    REQ_STATUS,
    STATUS_FINISHED,
    TL_CACHED_TOKENS,
    TL_END_NS,
    TL_EVICTED_TOKENS,
    TL_FINISHED,
    TL_KV_USED_TOKENS,
    TL_LOOKUP_TOKENS,
    TL_PREEMPTIONS,
    TL_PREFILL_TOKENS,
    TL_RUNNING,
    TL_SCHEDULED_TOKENS,
    TL_START_NS,
    TL_WAITING,
)


@inline_kernel
def roll_window(state, window):
    """The log line's window takes in what was looked up since the last processed step: whole updates are dropped from
    its far end while more than 1,000 requests are in it; the newest is always kept."""
    if state[I_UPDATE_REQUESTS] == 0:
        return
    at = (state[I_WINDOW_AT] + state[I_WINDOW_N]) % WINDOW_ROWS
    window[at, 0] = state[I_UPDATE_REQUESTS]
    window[at, 1] = state[I_UPDATE_QUERIES]
    window[at, 2] = state[I_UPDATE_HITS]
    state[I_WINDOW_N] += 1
    state[I_WINDOW_REQUESTS] += window[at, 0]
    state[I_WINDOW_QUERIES] += window[at, 1]
    state[I_WINDOW_HITS] += window[at, 2]
    while state[I_WINDOW_N] > 1 and state[I_WINDOW_REQUESTS] > WINDOW_REQUESTS:
        old = state[I_WINDOW_AT]
        state[I_WINDOW_REQUESTS] -= window[old, 0]
        state[I_WINDOW_QUERIES] -= window[old, 1]
        state[I_WINDOW_HITS] -= window[old, 2]
        state[I_WINDOW_AT] = (old + 1) % WINDOW_ROWS
        state[I_WINDOW_N] -= 1
    state[I_UPDATE_REQUESTS] = 0
    state[I_UPDATE_QUERIES] = 0
    state[I_UPDATE_HITS] = 0


@inline_kernel
def add_gap(state, gaps, gap, count):
    """Adds `count` inter-token gaps of one length."""
    k = state[I_GAPS]
    if k > 0 and gaps[k - 1, 0] == gap:
        gaps[k - 1, 1] += count
    else:
        gaps[k, 0] = gap
        gaps[k, 1] = count
        state[I_GAPS] = k + 1


@lean_kernel
def end_request(state, rows, awaited, done, request, end):
    """A request's last token came."""
    rows[request, REQ_FINISH_NS] = end
    rows[request, REQ_STATUS] = STATUS_FINISHED
    state[I_FINISHED] += 1
    if awaited[request]:
        k = state[I_DONE]
        done[k, 0] = request
        done[k, 1] = end
        state[I_DONE] = k + 1


@lean_kernel
def late_token(
    state, lists, queue, heap, priority, rows, output_tokens, max_tokens, awaited, done, gaps, pos, end
):  # fmt: skip
    """A token that was in flight when its request was preempted: appended, and it may end the request."""
    request = queue[pos, Q_REQ]
    outputs = queue[pos, Q_OUTPUTS] + 1
    queue[pos, Q_OUTPUTS] = outputs
    state[I_GENERATED] += 1
    if outputs == 1:
        rows[request, REQ_FIRST_TOKEN_NS] = end
    else:
        add_gap(state, gaps, end - queue[pos, Q_LAST_NS], 1)
    queue[pos, Q_LAST_NS] = end
    tokens = rows[request, REQ_LOOKUP_TOKENS] + outputs
    enough = outputs >= min(output_tokens[request], max_tokens[request])
    if enough or tokens >= state[I_MAX_LEN]:
        if not enough:
            state[I_CUT] += 1
        queue[pos, Q_STATE] = IS_DONE
        remove_waiting(state, lists, queue, heap, priority, pos)
        end_request(state, rows, awaited, done, request, end)


@inline_kernel
def process(
    state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
    output_tokens, max_tokens, awaited, done, gaps, batch, head,
):  # fmt: skip
    """Takes in a step's output: a token for each request that sampled, commits of filled blocks, ends."""
    block_size = state[I_BLOCK_SIZE]
    caching = state[I_CACHING] != 0
    max_len = state[I_MAX_LEN]
    end = head[H_END_NS]
    last = state[I_LAST_END]
    usual = 0
    stopped = 0
    for e in range(head[H_ENTRIES]):
        new = batch[e, E_NEW]
        if new == 0:
            continue
        pos = batch[e, E_POS]
        slot = batch[e, E_SLOT]
        if slots[slot, S_POS] != pos:  # since then it has finished, or has been preempted
            if batch[e, E_SAMPLES] != 0 and queue[pos, Q_STATE] == IS_PREEMPTED:
                late_token(
                    state, lists, queue, heap, priority, rows, output_tokens, max_tokens, awaited, done, gaps, pos, end
                )
            continue
        slots[slot, S_FLIGHT] -= new
        if batch[e, E_SAMPLES] == 0:
            continue
        outputs = slots[slot, S_OUTPUTS] + 1
        slots[slot, S_OUTPUTS] = outputs
        if outputs == 1:
            rows[slots[slot, S_REQ], REQ_FIRST_TOKEN_NS] = end
        elif slots[slot, S_LAST_NS] == last:
            usual += 1
        else:
            add_gap(state, gaps, end - slots[slot, S_LAST_NS], 1)
        slots[slot, S_LAST_NS] = end
        state[I_GENERATED] += 1
        if slots[slot, S_PLACE] > 0:
            slots[slot, S_PLACE] -= 1
            full = (slots[slot, S_COMPUTED] - slots[slot, S_FLIGHT]) // block_size
            if caching and full > slots[slot, S_COMMITTED]:
                slots[slot, S_RUN] = commit_row(
                    state, blocks, where, commits, run_offset, run_start, run_end, slots[slot, S_REQ],
                    slots[slot, S_RUN], slots[slot, S_TAIL], slots[slot, S_BLOCKS], slots[slot, S_COMMITTED], full, end,
                )  # fmt: skip
                slots[slot, S_COMMITTED] = full
        if outputs >= slots[slot, S_STOP] or slots[slot, S_PROMPT] + outputs >= max_len:
            if outputs < slots[slot, S_STOP]:
                state[I_CUT] += 1
            request = slots[slot, S_REQ]
            hits = slots[slot, S_HITS]
            release(
                state, blocks, where, run_offset, run_start, run_end, request, hits,
                slots[slot, S_TAIL], slots[slot, S_BLOCKS] - hits,
            )  # fmt: skip
            queue[pos, Q_STATE] = IS_DONE
            slots[slot, S_POS] = -1
            stopped += 1
            end_request(state, rows, awaited, done, request, end)
    if usual > 0:
        add_gap(state, gaps, end - last, usual)
    state[I_LAST_END] = end
    if stopped > 0:
        n = state[I_RUNNING]
        kept = 0
        free = lists.shape[1] - n
        for i in range(n):
            slot = lists[LIST_RUNNING, i]
            if slots[slot, S_POS] >= 0:
                lists[LIST_RUNNING, kept] = slot
                kept += 1
            else:
                lists[LIST_FREE, free] = slot
                free += 1
        state[I_RUNNING] = kept


@inline_kernel
def write_timeline(state, timeline, head):
    """One row a step, or one a group of `stride` steps: sums of the group, the rest as of its last step."""
    stride = state[I_STRIDE]
    i = state[I_STEPS] // stride
    if state[I_STEPS] % stride == 0:
        timeline[i, TL_START_NS] = head[H_START_NS]
        timeline[i, TL_SCHEDULED_TOKENS] = 0
        timeline[i, TL_PREFILL_TOKENS] = 0
    timeline[i, TL_END_NS] = head[H_END_NS]
    timeline[i, TL_SCHEDULED_TOKENS] += head[H_TOKENS]
    timeline[i, TL_PREFILL_TOKENS] += head[H_PREFILL]
    timeline[i, TL_RUNNING] = head[H_RUNNING]
    timeline[i, TL_WAITING] = head[H_WAITING]
    timeline[i, TL_KV_USED_TOKENS] = head[H_USED] * state[I_BLOCK_SIZE]
    timeline[i, TL_EVICTED_TOKENS] = head[H_EVICTED] * state[I_BLOCK_SIZE]
    timeline[i, TL_PREEMPTIONS] = head[H_PREEMPTIONS]
    timeline[i, TL_LOOKUP_TOKENS] = head[H_LOOKUP]
    timeline[i, TL_CACHED_TOKENS] = head[H_CACHED]
    timeline[i, TL_FINISHED] = state[I_FINISHED]
    state[I_STEPS] += 1
    state[I_TIMELINE] = i + 1


@lean_kernel
def halve_timeline(state, timeline):
    """Joins neighbouring rows: twice the stride, half the rows. Only when the rows are an even number of whole groups."""
    n = state[I_TIMELINE] // 2
    for i in range(n):
        first, second = 2 * i, 2 * i + 1
        start = timeline[first, TL_START_NS]
        scheduled = timeline[first, TL_SCHEDULED_TOKENS] + timeline[second, TL_SCHEDULED_TOKENS]
        prefill = timeline[first, TL_PREFILL_TOKENS] + timeline[second, TL_PREFILL_TOKENS]
        for column in range(timeline.shape[1]):
            timeline[i, column] = timeline[second, column]
        timeline[i, TL_START_NS] = start
        timeline[i, TL_SCHEDULED_TOKENS] = scheduled
        timeline[i, TL_PREFILL_TOKENS] = prefill
    state[I_TIMELINE] = n
    state[I_STRIDE] *= 2
