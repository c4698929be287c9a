# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled event loop: arrivals, prefill or decode, results, time. Compiled through `prefixsim.jit`.
Twin: `reference.Scheduler.run` (golden clock); the timed clock adds step time and is described in docs/sglang.md."""

from __future__ import annotations

from prefixsim.engines.sglang.decode_kernels import decode_pass, merge_last
from prefixsim.engines.sglang.hicache_kernels import finish_backups
from prefixsim.engines.sglang.launch_kernels import launch, load_with_step, note_step
from prefixsim.engines.sglang.prefill_kernels import prefill_pass
from prefixsim.engines.sglang.request_kernels import ceil_pages, checkpoint, known_pages, release
from prefixsim.engines.sglang.state import (
    COMPLETED,
    DONE,
    FIRST_AWARE,
    GROW_COMMITS,
    GROW_GAPS,
    GROW_NODES,
    GROW_SLOTS,
    GROW_TIMELINE,
    L_BATCH,
    L_LAST,
    L_PENDING,
    L_RUNNING,
    L_WAITING,
    N_RING_NS,
    NIL,
    OUT_OF_MEMORY,
    R_ADMITTED,
    R_AGAIN,
    R_ARRIVED_TOKENS,
    R_COMMITTED,
    R_ENTRY,
    R_EXTEND_END,
    R_GONE,
    R_HIGH,
    R_HOST,
    R_LAST_NS,
    R_LOCK,
    R_MADE,
    R_MAX_NEW,
    R_MIDDLE,
    R_OUTPUTS,
    R_PREFIX,
    R_PROMPT,
    R_REQUEST,
    R_SKIP,
    R_STAMP,
    S_ADMITTED,
    S_ARRIVALS,
    S_ARRIVED,
    S_AVAILABLE,
    S_BATCHES,
    S_CACHED_TOKENS,
    S_CHUNKED,
    S_COMMITS,
    S_COMPLETED,
    S_DECODE_TOKENS,
    S_DIRTY,
    S_DISABLED,
    S_EVICTABLE,
    S_FINISHED,
    S_FREE_SLOT,
    S_FULL,
    S_GAPS,
    S_HELD,
    S_HOST_CACHED,
    S_INSERT_NS,
    S_KEEP_COMMITS,
    S_LAST,
    S_LAST_END,
    S_LAST_PREFILL_HIT,
    S_LAST_PREFILL_INPUT,
    S_LOADING,
    S_LOOKUP_TOKENS,
    S_MAX_INPUT,
    S_MAX_RUNNING,
    S_MAX_RUNS,
    S_NEXT_SLOT,
    S_NODES,
    S_NOW,
    S_OOM_HAVE,
    S_OOM_NEED,
    S_OVERLAP,
    S_PAGE,
    S_PAGES,
    S_PENDING,
    S_PENDING_END,
    S_PENDING_PREFILL,
    S_PREFILL_BATCHES,
    S_PREFILL_HIT,
    S_PREFILL_HIT_AGAIN,
    S_PREFILL_INPUT,
    S_PREFILL_INPUT_AGAIN,
    S_PROCESSED_TOKENS,
    S_REFUSED,
    S_REJECTED,
    S_RING_AT,
    S_RING_N,
    S_RUNNING,
    S_SCHEDULE,
    S_SEEN_ADMITTED,
    S_SEEN_AT,
    S_SEEN_USED,
    S_SEEN_WAITING,
    S_SINGLE_STEP,
    S_STALL_NS,
    S_STEADY,
    S_STEP_CLOCK,
    S_STEPS,
    S_TIER,
    S_TIMELINE,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
    S_WRITE_BACK,
    SLOT_COLUMNS,
    W_AWAITED,
    W_MAX_NEW,
    W_OUTPUTS,
    W_PRIORITY,
    W_PROMPT,
    WAITING_MATCH_MAX,
    X_CHUNKS,
)
from prefixsim.engines.sglang.steady_kernels import steady_steps
from prefixsim.engines.sglang.tree_kernels import make_room
from prefixsim.hardware.step_kernels import prefill_item
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
    REQ_CACHED_TOKENS,
    REQ_CHUNKS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_RECOMPUTED_TOKENS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    STATUS_RUNNING,
    STATUS_WAITING,
    TL_END_NS,
    TL_PREFILL_TOKENS,
    TL_SCHEDULED_TOKENS,
    TL_START_NS,
)


@lean_kernel
def room_for_step(scalars, nodes, slots, lists, timeline, gaps, commits):
    """DONE, or which arena must grow before another iteration is safe."""
    waiting = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
    busy = scalars[S_RUNNING] + scalars[S_LAST] + scalars[S_PENDING] + 2
    looked_up = waiting if scalars[S_SCHEDULE] >= FIRST_AWARE else min(waiting, WAITING_MATCH_MAX)
    tried = min(waiting, scalars[S_MAX_RUNNING] + 1)
    if nodes.shape[0] - 1 - scalars[S_NODES] < 4 * (busy + tried) + 2 * looked_up + 64:
        return GROW_NODES
    if scalars[S_WAIT_TAIL] + busy + 2 >= lists.shape[1] and scalars[S_WAIT_HEAD] > 0:
        head = scalars[S_WAIT_HEAD]
        for i in range(waiting):
            lists[L_WAITING, i] = lists[L_WAITING, head + i]
        scalars[S_WAIT_HEAD] = 0
        scalars[S_WAIT_TAIL] = waiting
    if scalars[S_WAIT_TAIL] + busy + 2 >= lists.shape[1]:
        return GROW_SLOTS
    if scalars[S_TIMELINE] >= timeline.shape[0]:
        return GROW_TIMELINE
    if scalars[S_GAPS] + busy + tried + 2 >= gaps.shape[0]:
        return GROW_GAPS
    if scalars[S_KEEP_COMMITS] == 1 and commits.shape[0] - scalars[S_COMMITS] < (busy + 2) * scalars[S_MAX_RUNS]:
        return GROW_COMMITS
    return DONE


@lean_kernel
def take_arrivals(scalars, slots, lists, static, rows, arrivals, completed):
    """Moves requests that have arrived into the waiting queue. False: no slot is free."""
    now = scalars[S_NOW]
    while scalars[S_ARRIVED] < scalars[S_ARRIVALS] and arrivals[scalars[S_ARRIVED], 1] <= now:
        request = arrivals[scalars[S_ARRIVED], 0]
        if scalars[S_MAX_INPUT] > 0 and static[request, W_PROMPT] >= scalars[S_MAX_INPUT]:
            scalars[S_REFUSED] += 1
            refuse(scalars, static, rows, completed, request, now)
            scalars[S_ARRIVED] += 1
            continue
        slot = scalars[S_FREE_SLOT]
        if slot != NIL:
            scalars[S_FREE_SLOT] = slots[slot, R_LOCK]
        elif scalars[S_NEXT_SLOT] < slots.shape[0]:
            slot = scalars[S_NEXT_SLOT]
            scalars[S_NEXT_SLOT] += 1
        else:
            return False
        if scalars[S_WAIT_TAIL] >= lists.shape[1]:
            slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
            scalars[S_FREE_SLOT] = slot
            return False
        for c in range(SLOT_COLUMNS):
            slots[slot, c] = 0
        slots[slot, R_REQUEST] = request
        slots[slot, R_PROMPT] = static[request, W_PROMPT]
        slots[slot, R_OUTPUTS] = static[request, W_OUTPUTS]
        slots[slot, R_MAX_NEW] = static[request, W_MAX_NEW]
        slots[slot, R_ENTRY] = now
        slots[slot, R_ARRIVED_TOKENS] = scalars[S_PROCESSED_TOKENS]
        rows[request, REQ_STATUS] = STATUS_WAITING
        lists[L_WAITING, scalars[S_WAIT_TAIL]] = slot
        scalars[S_WAIT_TAIL] += 1
        scalars[S_ARRIVED] += 1
    return True


@lean_kernel
def refuse(scalars, static, rows, completed, request, now):
    """A request that will never be served; whoever waits for it is told."""
    rows[request, REQ_STATUS] = STATUS_REJECTED
    scalars[S_REJECTED] += 1
    tell(scalars, static, completed, request, now + 1)  # as if a step had found out: nothing is told of at `now` itself


@lean_kernel
def tell(scalars, static, completed, request, at):
    """Notes a completion somebody waits for."""
    if static[request, W_AWAITED] == 1:
        completed[scalars[S_COMPLETED], 0] = request
        completed[scalars[S_COMPLETED], 1] = at
        scalars[S_COMPLETED] += 1


@lean_kernel
def start_prefill(
    scalars, floats, nodes, table, heap, run_offset, run_end, heads, marks, slots, lists, static, rows, extra, coef,
    gemm_us, lm_head_us, n, row,
):  # fmt: skip
    """KV, records and step time of a prefill batch. False: the engine would stop."""
    page = scalars[S_PAGE]
    now = scalars[S_NOW]
    tokens = 0
    pages = 0
    hits = 0
    work = 0.0
    longest = 0.0
    for i in range(n):
        slot = lists[L_BATCH, i]
        new = slots[slot, R_EXTEND_END] - slots[slot, R_PREFIX]
        tokens += new
        pages += ceil_pages(slots[slot, R_EXTEND_END], page) - ceil_pages(slots[slot, R_PREFIX], page)
        if scalars[S_STEP_CLOCK] == 0:
            one, tile = prefill_item(coef, new, slots[slot, R_PREFIX])
            work += one
            longest = max(longest, tile)
    asked = tokens if page == 1 else ceil_pages(tokens, page) + n
    if scalars[S_DISABLED] == 0:
        make_room(scalars, nodes, table, heap, asked)
    if pages > scalars[S_AVAILABLE]:
        scalars[S_OOM_NEED], scalars[S_OOM_HAVE] = pages, scalars[S_AVAILABLE]
        return False
    scalars[S_AVAILABLE] -= pages
    scalars[S_LAST_PREFILL_INPUT] = 0
    scalars[S_LAST_PREFILL_HIT] = 0
    for i in range(n):
        slot = lists[L_BATCH, i]
        request = slots[slot, R_REQUEST]
        prefix = slots[slot, R_PREFIX]
        new = slots[slot, R_EXTEND_END] - prefix
        continues = slots[slot, R_COMMITTED] > 0
        if not continues:
            admitted_now(scalars, run_offset, run_end, heads, marks, slots, slot, rows, now)
        slots[slot, R_COMMITTED] = slots[slot, R_EXTEND_END]
        slots[slot, R_SKIP] = 0
        slots[slot, R_STAMP] = scalars[S_BATCHES]
        hit = 0 if continues else prefix
        hits += hit
        scalars[S_PREFILL_INPUT] += new
        scalars[S_PREFILL_HIT] += hit
        if slots[slot, R_AGAIN] == 1:
            scalars[S_PREFILL_INPUT_AGAIN] += new
            scalars[S_PREFILL_HIT_AGAIN] += hit
        else:
            rows[request, REQ_CHUNKS] += 1
            scalars[S_LAST_PREFILL_INPUT] += new
            scalars[S_LAST_PREFILL_HIT] += hit
        if extra.shape[0] > 0:
            extra[request, X_CHUNKS] += 1
        lists[L_LAST, i] = slot
    scalars[S_LAST] = n
    scalars[S_PROCESSED_TOKENS] += tokens
    scalars[S_PREFILL_BATCHES] += 1
    sampled = n - (1 if scalars[S_CHUNKED] != NIL else 0)
    start, end = launch(scalars, floats, coef, gemm_us, lm_head_us, tokens, n, work, longest, 0, 0, sampled)
    if scalars[S_TIER] == 1 and scalars[S_LOADING] > 0:
        end = load_with_step(scalars, coef, start, end)
    row[TL_START_NS] = start
    row[TL_END_NS] = end
    row[TL_SCHEDULED_TOKENS] = tokens
    row[TL_PREFILL_TOKENS] = tokens
    return True


@lean_kernel
def admitted_now(scalars, run_offset, run_end, heads, marks, slots, slot, rows, now):
    """Records of an admission: everything at the first, recomputed tokens at later ones."""
    request = slots[slot, R_REQUEST]
    scalars[S_ADMITTED] += 1
    rows[request, REQ_STATUS] = STATUS_RUNNING
    if slots[slot, R_ADMITTED] == 1:
        rows[request, REQ_RECOMPUTED_TOKENS] += max(0, slots[slot, R_HIGH] - slots[slot, R_PREFIX])
        return
    slots[slot, R_ADMITTED] = 1
    page = scalars[S_PAGE]
    prompt = slots[slot, R_PROMPT]
    rows[request, REQ_ADMITTED_NS] = now
    rows[request, REQ_CACHED_TOKENS] = slots[slot, R_PREFIX]
    rows[request, REQ_DEVICE_TOKENS] = slots[slot, R_PREFIX]
    rows[request, REQ_LOOKUP_TOKENS] = prompt
    rows[request, REQ_KNOWN_TOKENS] = known_pages(run_offset, run_end, heads, marks, request, prompt // page) * page
    scalars[S_LOOKUP_TOKENS] += prompt
    scalars[S_CACHED_TOKENS] += slots[slot, R_PREFIX]
    if scalars[S_TIER] == 1:
        host = slots[slot, R_HOST] * page
        rows[request, REQ_CACHED_HOST_TOKENS] = host
        rows[request, REQ_DEVICE_TOKENS] -= host
        scalars[S_HOST_CACHED] += host


@lean_kernel
def process(
    scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, results, n, prefill,
    static, rows, gaps, completed, at,
):  # fmt: skip
    """Takes in the results of a batch at time `at`: tokens, inserts, ends."""
    scalars[S_SEEN_AT] = at
    scalars[S_INSERT_NS] = at
    scalars[S_SEEN_ADMITTED] = scalars[S_ADMITTED]
    scalars[S_SEEN_WAITING] = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
    scalars[S_SEEN_USED] = (scalars[S_PAGES] - scalars[S_AVAILABLE] - scalars[S_EVICTABLE]) * scalars[S_PAGE]
    gap = NIL
    count = 0
    for i in range(n):
        slot = results[i]
        if prefill and slots[slot, R_MIDDLE] > 0:
            slots[slot, R_MIDDLE] -= 1
            continue
        if slots[slot, R_SKIP] == 1 or slots[slot, R_MADE] >= slots[slot, R_OUTPUTS]:
            continue
        request = slots[slot, R_REQUEST]
        made = slots[slot, R_MADE] + 1
        slots[slot, R_MADE] = made
        if made == 1:
            rows[request, REQ_FIRST_TOKEN_NS] = at
        else:
            since = at - slots[slot, R_LAST_NS]
            if since == gap:
                count += 1
            else:
                if count > 0:
                    gaps[scalars[S_GAPS], 0] = gap
                    gaps[scalars[S_GAPS], 1] = count
                    scalars[S_GAPS] += 1
                gap = since
                count = 1
        slots[slot, R_LAST_NS] = at
        if made >= slots[slot, R_OUTPUTS]:
            release(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot,
                static[request, W_PRIORITY], True,
            )  # fmt: skip
            rows[request, REQ_FINISH_NS] = at
            rows[request, REQ_STATUS] = STATUS_FINISHED
            scalars[S_FINISHED] += 1
            scalars[S_ADMITTED] -= 1
            scalars[S_DIRTY] = 1
            tell(scalars, static, completed, request, at)
            if slots[slot, R_GONE] == 1:
                slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
                scalars[S_FREE_SLOT] = slot
        elif prefill:
            checkpoint(
                scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, slot,
                slots[slot, R_EXTEND_END], static[request, W_PRIORITY], True,
            )  # fmt: skip
            slots[slot, R_PREFIX] = slots[slot, R_EXTEND_END]
    if count > 0:
        gaps[scalars[S_GAPS], 0] = gap
        gaps[scalars[S_GAPS], 1] = count
        scalars[S_GAPS] += 1
    scalars[S_LAST_END] = at


@lean_kernel
def advance(
    scalars, floats, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists, ratio,
    seen, weights, static, rows, extra, arrivals, coef, gemm_us, lm_head_us, timeline, gaps, completed, budget, left,
    row, until,
):  # fmt: skip
    """Runs iterations of the scheduler loop while the next schedule instant is before `until`. Returns a code of
    `state`: after GROW_* the caller enlarges that arena and calls again."""
    unit = scalars[S_STEP_CLOCK]
    while True:
        code = room_for_step(scalars, nodes, slots, lists, timeline, gaps, commits)
        if code != DONE:
            return code
        waiting = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
        busy = waiting + scalars[S_RUNNING] + scalars[S_LAST] + scalars[S_PENDING]
        if busy == 0 and scalars[S_CHUNKED] == NIL:
            if scalars[S_ARRIVED] == scalars[S_ARRIVALS]:
                return DONE
            ahead = arrivals[scalars[S_ARRIVED], 1] - scalars[S_NOW]
            if ahead > 0:
                if unit > 0:
                    scalars[S_STEPS] += ceil_pages(ahead, unit)
                    ahead = ceil_pages(ahead, unit) * unit
                scalars[S_NOW] += ahead
        if scalars[S_HELD] == 1:
            wake = nodes[scalars[S_RING_AT], N_RING_NS]
            if scalars[S_ARRIVED] < scalars[S_ARRIVALS]:
                wake = min(wake, arrivals[scalars[S_ARRIVED], 1])
            elif wake >= until:  # somebody may come before
                return DONE
            scalars[S_NOW] = max(scalars[S_NOW], wake)
            scalars[S_HELD] = 0
        if scalars[S_NOW] >= until:
            return DONE
        if not take_arrivals(scalars, slots, lists, static, rows, arrivals, completed):
            return GROW_SLOTS
        if room_for_step(scalars, nodes, slots, lists, timeline, gaps, commits) != DONE:
            continue
        if scalars[S_COMPLETED] > 0:
            return COMPLETED
        waiting = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
        if busy == 0 and waiting == 0 and scalars[S_CHUNKED] == NIL:
            continue  # all that arrived was refused
        if (
            scalars[S_STEADY] == 1
            and scalars[S_SINGLE_STEP] == 0
            and scalars[S_RING_N] == 0
            and scalars[S_WRITE_BACK] == 0
            and (waiting == 0 or scalars[S_FULL] == 1 or scalars[S_RUNNING] >= scalars[S_MAX_RUNNING])
            and steady_steps(
                scalars, floats, nodes, table, heap, slots, lists, arrivals, coef, gemm_us, lm_head_us, timeline, gaps,
                row, until,
            ) > 0
        ):  # fmt: skip
            continue
        if not iterate(
            scalars, floats, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists,
            ratio, seen, weights, static, rows, extra, coef, gemm_us, lm_head_us, timeline, gaps, completed, budget,
            left, row,
        ):  # fmt: skip
            return OUT_OF_MEMORY
        scalars[S_STEPS] += 1
        if scalars[S_COMPLETED] > 0:
            return COMPLETED
        if scalars[S_SINGLE_STEP] == 1:
            return DONE


@lean_kernel
def iterate(
    scalars, floats, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists, ratio,
    seen, weights, static, rows, extra, coef, gemm_us, lm_head_us, timeline, gaps, completed, budget, left, row,
):  # fmt: skip
    """One iteration. False: the engine would stop for want of memory."""
    unit = scalars[S_STEP_CLOCK]
    if scalars[S_TIER] == 1:
        finish_backups(scalars, nodes, heap, scalars[S_NOW])
    was_running = scalars[S_RUNNING] if scalars[S_LAST] == 0 else NIL
    was_pending = scalars[S_PENDING] if scalars[S_PENDING_PREFILL] == 0 else NIL
    scalars[S_STEADY] = 0
    scalars[S_INSERT_NS] = scalars[S_NOW]
    chunked = scalars[S_CHUNKED]
    if chunked != NIL and slots[chunked, R_EXTEND_END] > slots[chunked, R_PREFIX]:
        checkpoint(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, chunked,
            slots[chunked, R_EXTEND_END], static[slots[chunked, R_REQUEST], W_PRIORITY], True,
        )  # fmt: skip
        slots[chunked, R_PREFIX] = slots[chunked, R_EXTEND_END]
    merge_last(scalars, slots, lists)
    n = prefill_pass(
        scalars, floats, nodes, table, heap, run_offset, run_start, run_end, slots, lists, ratio, seen, weights, static,
        budget, left,
    )  # fmt: skip
    end = scalars[S_NOW]
    prefill = n > 0
    if prefill:
        if scalars[S_CHUNKED] != NIL:
            slots[scalars[S_CHUNKED], R_MIDDLE] += 1
        if not start_prefill(
            scalars, floats, nodes, table, heap, run_offset, run_end, heads, marks, slots, lists, static, rows, extra,
            coef, gemm_us, lm_head_us, n, row,
        ):  # fmt: skip
            return False
    elif scalars[S_RUNNING] > 0 or scalars[S_WAIT_TAIL] == scalars[S_WAIT_HEAD] or scalars[S_CHUNKED] != NIL:
        n, kv_tokens = decode_pass(scalars, floats, nodes, table, heap, slots, lists, static, rows, completed)
        if n < 0:
            return False
        if n > 0:
            scalars[S_DECODE_TOKENS] += n
            start, stop = launch(scalars, floats, coef, gemm_us, lm_head_us, n, 0, 0.0, 0.0, n, kv_tokens, n)
            row[TL_START_NS] = start
            row[TL_END_NS] = stop
            row[TL_SCHEDULED_TOKENS] = n
            row[TL_PREFILL_TOKENS] = 0
    elif scalars[S_RING_N] > 0:
        scalars[S_HELD] = 1 if scalars[S_PENDING] == 0 else 0
    else:
        # nothing runs, and still the first one does not fit
        slot = lists[L_WAITING, scalars[S_WAIT_HEAD]]
        scalars[S_WAIT_HEAD] += 1
        refuse(scalars, static, rows, completed, slots[slot, R_REQUEST], scalars[S_NOW])
        slots[slot, R_LOCK] = scalars[S_FREE_SLOT]
        scalars[S_FREE_SLOT] = slot
        scalars[S_PENDING] = 0  # results in flight are of requests that have ended
        scalars[S_NOW] += unit
        return True
    if n > 0:
        end = row[TL_END_NS]
        note_step(scalars, timeline, row)
    source = L_BATCH if prefill else L_RUNNING
    if scalars[S_OVERLAP] == 0:
        process(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists[source], n,
            prefill, static, rows, gaps, completed, end,
        )  # fmt: skip
        scalars[S_NOW] = max(end, scalars[S_NOW] + unit)
        if not prefill and n > 0 and scalars[S_DIRTY] == 0:
            scalars[S_STEADY] = 1
        return True
    before = scalars[S_PENDING]
    if before > 0:
        at = scalars[S_NOW] + unit if unit > 0 else max(scalars[S_PENDING_END], scalars[S_STALL_NS])
        process(
            scalars, nodes, table, heap, run_offset, run_start, run_end, heads, marks, commits, slots, lists[L_PENDING],
            before, scalars[S_PENDING_PREFILL] == 1, static, rows, gaps, completed, at,
        )  # fmt: skip
        scalars[S_NOW] = at
    else:
        scalars[S_NOW] += unit
    for i in range(n):
        lists[L_PENDING, i] = lists[source, i]
    scalars[S_PENDING] = n
    scalars[S_PENDING_PREFILL] = 1 if prefill else 0
    scalars[S_PENDING_END] = end
    if not prefill and n > 0 and n == was_running and n == was_pending and scalars[S_DIRTY] == 0:
        scalars[S_STEADY] = 1
    return True
