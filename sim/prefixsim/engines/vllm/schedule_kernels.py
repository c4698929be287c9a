# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The scheduler, compiled. Twin: `twin.TwinScheduler`, method by method. Arrays: see `state`.

`run_engine` runs steps until something outside could matter: it consumes arrivals by itself.
"""

from __future__ import annotations

from prefixsim.engines.vllm.pool_kernels import commit_row, known_blocks, lookup, release, take, touch
from prefixsim.engines.vllm.queue_kernels import head_of_queue, pop_waiting, push_waiting, remove_waiting
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
    I_ADMISSIONS,
    I_AGAIN_HITS,
    I_AGAIN_QUERIES,
    I_BLOCK_SIZE,
    I_BUDGET,
    I_CACHING,
    I_CHUNKED,
    I_COUNT_RETRIES,
    I_CUT,
    I_DEPTH,
    I_DONE,
    I_END,
    I_EVICTED,
    I_FINISHED,
    I_FIRST_CACHED,
    I_FIRST_LOOKUP,
    I_FLIGHT,
    I_FOLLOWING,
    I_FREE,
    I_GAPS,
    I_GENERATED,
    I_HEAD,
    I_HEAP,
    I_HITS,
    I_KEEP_LOG,
    I_LAST_END,
    I_LOG,
    I_LOOKUPS,
    I_MAX_LEN,
    I_MAX_SEQS,
    I_NOW,
    I_OLDEST,
    I_PREEMPTIONS,
    I_PRIORITY,
    I_QUERIES,
    I_RESERVE,
    I_RUNNING,
    I_SEEN_RUNNING,
    I_SEEN_USED,
    I_SEEN_WAITING,
    I_SINGLE_STEP,
    I_STACK,
    I_STEPS,
    I_STRIDE,
    I_STUCK,
    I_SUBMITTED,
    I_THRESHOLD,
    I_TIMELINE,
    I_TURN_NS,
    I_UPDATE_HITS,
    I_UPDATE_QUERIES,
    I_UPDATE_REQUESTS,
    I_USED_PEAK,
    I_WATERMARK,
    I_WINDOW_AT,
    I_WINDOW_HITS,
    I_WINDOW_N,
    I_WINDOW_QUERIES,
    I_WINDOW_REQUESTS,
    IN_SLOT,
    IS_DONE,
    IS_PREEMPTED,
    LIST_FREE,
    LIST_RUNNING,
    Q_BEFORE,
    Q_LAST_NS,
    Q_OUTPUTS,
    Q_READY_NS,
    Q_REQ,
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
    S_STOP,
    S_TAIL,
    STOP_AWAITED,
    STOP_IDLE,
    STOP_ROOM,
    STOP_STEP,
    STOP_STUCK,
    STOP_UNTIL,
    WINDOW_REQUESTS,
    WINDOW_ROWS,
)
from prefixsim.hardware.step_kernels import prefill_item, step_ns
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_CHUNKS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_PREEMPTIONS,
    REQ_RECOMPUTED_TOKENS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_RUNNING,
    STATUS_WAITING,
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


@lean_kernel
def waiting_count(state):
    """Requests waiting: preempted ones in front and arrived ones behind, or those in the heap."""
    if state[I_PRIORITY] != 0:
        return state[I_HEAP]
    return state[I_STACK] + state[I_FOLLOWING] - state[I_HEAD]


@lean_kernel
def count_lookup(state, again, tokens, hits):
    """vLLM's own statistics of one lookup: resumed requests stand apart."""
    if again:
        state[I_AGAIN_QUERIES] += tokens
        state[I_AGAIN_HITS] += hits
    else:
        state[I_QUERIES] += tokens
        state[I_HITS] += hits
        state[I_UPDATE_REQUESTS] += 1
        state[I_UPDATE_QUERIES] += tokens
        state[I_UPDATE_HITS] += hits


@lean_kernel
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


@lean_kernel
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


@lean_kernel
def admit_waiting(
    state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
    prompt_tokens, output_tokens, max_tokens, open_ended, skip, admissions, batch, entries, budget, threshold, now,
):  # fmt: skip
    """Admissions from the head of the queue until one finds no room. Returns (entries, budget left)."""
    block_size = state[I_BLOCK_SIZE]
    caching = state[I_CACHING] != 0
    while budget > 0 and state[I_RUNNING] < state[I_MAX_SEQS] and waiting_count(state) > 0:
        pos = head_of_queue(state, lists, heap)
        request = queue[pos, Q_REQ]
        prompt = prompt_tokens[request]
        again = queue[pos, Q_STATE] == IS_PREEMPTED
        outputs = queue[pos, Q_OUTPUTS]
        tokens = prompt + outputs
        found = 0
        in_use = 0
        if caching:
            found, in_use = lookup(blocks, where, run_offset, run_start, run_end, request, (tokens - 1) // block_size)
            state[I_LOOKUPS] += 1
        hits = found
        if skip[request]:
            hits, in_use = 0, 0
        elif caching and state[I_COUNT_RETRIES] != 0:
            count_lookup(state, again, tokens, hits * block_size)
        computed = hits * block_size
        new = tokens - computed
        if 0 < threshold < new:
            new = threshold
        if new > budget:
            if state[I_CHUNKED] == 0:
                break
            new = budget
        # Both admission tests; hits that nobody uses leave the free queue too.
        leaving = hits - in_use + (state[I_WATERMARK] if state[I_RUNNING] > 0 else 0)
        if state[I_RESERVE] != 0 and (tokens + block_size - 1) // block_size - hits + leaving > state[I_FREE]:
            break
        need = (computed + new + block_size - 1) // block_size - hits
        if need + leaving > state[I_FREE]:
            break
        if not again:
            rows[request, REQ_ADMITTED_NS] = now
            rows[request, REQ_CACHED_TOKENS] = computed
            rows[request, REQ_DEVICE_TOKENS] = found * block_size
            rows[request, REQ_LOOKUP_TOKENS] = tokens
            if caching:
                rows[request, REQ_KNOWN_TOKENS] = block_size * known_blocks(
                    where, run_offset, run_start, run_end, request, prompt // block_size
                )
            state[I_FIRST_LOOKUP] += tokens
            state[I_FIRST_CACHED] += computed
        else:
            rows[request, REQ_RECOMPUTED_TOKENS] += max(0, queue[pos, Q_BEFORE] - computed)
        rows[request, REQ_STATUS] = STATUS_RUNNING
        if caching and not skip[request] and state[I_COUNT_RETRIES] == 0:
            count_lookup(state, again, tokens, computed)
        if hits > 0:
            touch(state, blocks, where, run_offset, run_start, run_end, request, hits)
        tail = take(state, blocks, where, 0, need)
        run = run_offset[request]
        full = min(computed + new, tokens) // block_size
        if caching and full > hits:
            run = commit_row(
                state, blocks, where, commits, run_offset, run_start, run_end, request,
                run, tail, hits + need, hits, full, now,
            )  # fmt: skip
        pop_waiting(state, lists, queue, heap, priority)
        n = state[I_RUNNING]
        slot = lists[LIST_FREE, lists.shape[1] - 1 - n]
        lists[LIST_RUNNING, n] = slot
        state[I_RUNNING] = n + 1
        queue[pos, Q_STATE] = IN_SLOT
        slots[slot, S_POS] = pos
        slots[slot, S_REQ] = request
        slots[slot, S_PROMPT] = prompt
        slots[slot, S_COMPUTED] = computed
        slots[slot, S_OUTPUTS] = outputs
        slots[slot, S_PLACE] = 0
        slots[slot, S_FLIGHT] = 0
        slots[slot, S_HITS] = hits
        slots[slot, S_BLOCKS] = hits + need
        slots[slot, S_TAIL] = tail
        slots[slot, S_COMMITTED] = max(hits, full) if caching else 0
        slots[slot, S_RUN] = run
        slots[slot, S_STOP] = min(output_tokens[request], max_tokens[request])
        limit = max_tokens[request]
        if open_ended[request]:  # it stops by itself: vLLM can't know that no further slot is needed
            limit = max(limit, output_tokens[request] + 1)
        slots[slot, S_LIMIT] = prompt + limit
        slots[slot, S_LAST_NS] = queue[pos, Q_LAST_NS]
        slots[slot, S_AGAIN] = 1 if again else 0
        slots[slot, S_ENTRY] = entries
        batch[entries, E_POS] = pos
        batch[entries, E_SLOT] = slot
        batch[entries, E_NEW] = new
        entries += 1
        budget -= new
        if state[I_KEEP_LOG] != 0:
            k = state[I_ADMISSIONS]
            admissions[k, 0] = request
            admissions[k, 1] = now
            admissions[k, 2] = computed
            admissions[k, 3] = tokens
            state[I_ADMISSIONS] = k + 1
    return entries, budget


@lean_kernel
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


@lean_kernel
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


@lean_kernel
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


@lean_kernel
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


@lean_kernel
def _golden_loop_ends(state):
    """The loop around the golden cases gives up after a synchronous step that computed nothing and left nothing running,
    once all requests have arrived; a server goes on."""
    last = state[I_FOLLOWING] == state[I_SUBMITTED] and state[I_RUNNING] == 0
    return state[I_KEEP_LOG] != 0 and state[I_DEPTH] == 1 and last


@lean_kernel
def run_engine(
    state, blocks, where, commits, slots, lists, queue, heap, batches, heads, window,
    run_offset, run_start, run_end, prompt_tokens, output_tokens, max_tokens, open_ended, priority, skip, awaited,
    rows, done, gaps, timeline, log, admissions, coef, gemm_us, lm_head_us, until,
):  # fmt: skip
    """Schedules and processes steps while the next schedule instant is < until. Returns STOP_*."""
    state[I_DONE] = 0
    by_priority = state[I_PRIORITY] != 0
    room = slots.shape[0] + 2
    while True:
        following, submitted = state[I_FOLLOWING], state[I_SUBMITTED]
        idle = state[I_FLIGHT] == 0 and state[I_RUNNING] == 0 and waiting_count(state) == 0
        if idle or state[I_STUCK] != 0:
            if following == submitted:
                return STOP_IDLE if idle else STOP_STUCK
            state[I_NOW] = max(state[I_NOW], queue[following, Q_READY_NS])
            state[I_STUCK] = 0
        now = state[I_NOW]
        if now >= until:
            return STOP_UNTIL
        if state[I_GAPS] + room > gaps.shape[0] or state[I_STEPS] // state[I_STRIDE] >= timeline.shape[0]:
            return STOP_ROOM
        if state[I_KEEP_LOG] != 0 and state[I_LOG] >= log.shape[0]:
            return STOP_ROOM
        if state[I_KEEP_LOG] != 0 and state[I_ADMISSIONS] + room > admissions.shape[0]:
            return STOP_ROOM
        while following < submitted and queue[following, Q_READY_NS] <= now:
            if by_priority:
                push_waiting(state, lists, queue, heap, priority, following)
            following += 1
        state[I_FOLLOWING] = following

        threshold = state[I_THRESHOLD] if state[I_RUNNING] + waiting_count(state) > 1 else 0
        young = (state[I_OLDEST] + state[I_FLIGHT]) % 2
        batch, head = batches[young], heads[young]
        entries, budget, preempted = schedule_running(
            state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
            batch, state[I_BUDGET], threshold, now,
        )  # fmt: skip
        if preempted == 0:
            entries, budget = admit_waiting(
                state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority,
                rows, prompt_tokens, output_tokens, max_tokens, open_ended, skip, admissions, batch, entries, budget,
                threshold, now,
            )  # fmt: skip
        used = blocks.shape[0] - 1 - state[I_FREE]
        state[I_SEEN_RUNNING] = state[I_RUNNING]
        state[I_SEEN_WAITING] = waiting_count(state)
        state[I_SEEN_USED] = used
        state[I_USED_PEAK] = max(state[I_USED_PEAK], used)
        tokens = close_batch(state, slots, rows, batch, head, entries, now, coef, gemm_us, lm_head_us)
        if state[I_KEEP_LOG] != 0 and (tokens > 0 or preempted > 0):
            k = state[I_LOG]
            log[k, 0] = now
            log[k, 1] = tokens
            log[k, 2] = preempted
            log[k, 3] = state[I_RUNNING]
            log[k, 4] = state[I_SEEN_WAITING]
            log[k, 5] = state[I_FREE]
            state[I_LOG] = k + 1
        if tokens > 0:
            state[I_FLIGHT] += 1
            if state[I_FLIGHT] < state[I_DEPTH]:
                state[I_NOW] = now + state[I_TURN_NS]
                continue
        if state[I_FLIGHT] > 0:
            oldest = state[I_OLDEST]
            process(
                state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority,
                rows, output_tokens, max_tokens, awaited, done, gaps, batches[oldest], heads[oldest],
            )  # fmt: skip
            roll_window(state, window)
            write_timeline(state, timeline, heads[oldest])
            state[I_OLDEST] = 1 - oldest
            state[I_FLIGHT] -= 1
            state[I_NOW] = heads[oldest, H_END_NS]
            if state[I_DONE] > 0:
                return STOP_AWAITED
            if state[I_SINGLE_STEP] != 0:
                return STOP_STEP
        elif preempted > 0 and not _golden_loop_ends(state):
            state[I_NOW] = now + state[I_TURN_NS]
        else:
            state[I_STUCK] = 1
