# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled shortcut: many decode steps of an unchanging batch at once, for what they cost one by one in `iterate`.
Compiled through `prefixsim.jit`. Twin: `loop_kernels.iterate` itself (tests run both: `single_step` takes no shortcut).

While nobody arrives who could be admitted, nobody ends and memory lasts, a step changes no request but by one token: the
batch's time, KV and records follow from counters, and the requests are brought up to date once at the end."""

from __future__ import annotations

from prefixsim.engines.sglang.launch_kernels import launch, note_step
from prefixsim.engines.sglang.state import (
    F_RATIO,
    F_RATIO_DECAY,
    F_RATIO_MIN,
    L_RUNNING,
    L_TEMP,
    R_COMMITTED,
    R_LAST_NS,
    R_MADE,
    R_OUTPUTS,
    R_STAMP,
    S_ADMITTED,
    S_ARRIVALS,
    S_ARRIVED,
    S_AVAILABLE,
    S_BATCHES,
    S_DECODE_TOKENS,
    S_DISABLED,
    S_EVICTABLE,
    S_GAPS,
    S_LAST_END,
    S_NOW,
    S_OVERLAP,
    S_PAGE,
    S_PAGES,
    S_PENDING_END,
    S_RUNNING,
    S_SEEN_ADMITTED,
    S_SEEN_AT,
    S_SEEN_USED,
    S_SEEN_WAITING,
    S_STEP_CLOCK,
    S_STEPS,
    S_TIMELINE,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
)
from prefixsim.engines.sglang.tree_kernels import make_room
from prefixsim.jit import lean_kernel
from prefixsim.records import TL_END_NS, TL_PREFILL_TOKENS, TL_SCHEDULED_TOKENS, TL_START_NS

LARGEST_PAGE = 256
"""Pages longer than this have no shortcut: the count of requests by place in their page would not be small."""


@lean_kernel
def steady_steps(
    scalars, floats, nodes, table, heap, slots, lists, arrivals, coef, gemm_us, lm_head_us, timeline, gaps, row, until
):
    """Runs as many such steps as it may; returns how many."""
    running = lists[L_RUNNING]
    n = scalars[S_RUNNING]
    page = scalars[S_PAGE]
    places = lists[L_TEMP]
    if page > LARGEST_PAGE or page > places.shape[0]:
        return 0
    for i in range(page):
        places[i] = 0
    most = slots[running[0], R_OUTPUTS]
    kv_tokens = 0
    for i in range(n):
        slot = running[i]
        most = min(most, slots[slot, R_OUTPUTS] - slots[slot, R_MADE])
        kv_tokens += slots[slot, R_COMMITTED]
        places[slots[slot, R_COMMITTED] % page] += 1
    most = min(most - 1, timeline.shape[0] - scalars[S_TIMELINE])
    next_arrival = until
    if scalars[S_ARRIVED] < scalars[S_ARRIVALS]:
        next_arrival = min(until, arrivals[scalars[S_ARRIVED], 1])
    unit = scalars[S_STEP_CLOCK]
    last = slots[running[0], R_LAST_NS]
    place = 0
    steps = 0
    while steps < most and scalars[S_NOW] < next_arrival and scalars[S_GAPS] + 2 < gaps.shape[0]:
        evictable = scalars[S_EVICTABLE] if scalars[S_DISABLED] == 0 else 0
        if scalars[S_AVAILABLE] + evictable < places[place]:
            break  # before any evict call: `iterate` makes this step's
        if scalars[S_AVAILABLE] < n and scalars[S_DISABLED] == 0:
            make_room(scalars, nodes, table, heap, n)
        scalars[S_AVAILABLE] -= places[place]
        place = place - 1 if place > 0 else page - 1
        floats[F_RATIO] = max(floats[F_RATIO] - floats[F_RATIO_DECAY], floats[F_RATIO_MIN])
        kv_tokens += n
        start, end = launch(scalars, floats, coef, gemm_us, lm_head_us, n, 0, 0.0, 0.0, n, kv_tokens, n)
        row[TL_START_NS] = start
        row[TL_END_NS] = end
        row[TL_SCHEDULED_TOKENS] = n
        row[TL_PREFILL_TOKENS] = 0
        note_step(scalars, timeline, row)
        if scalars[S_OVERLAP] == 0:
            at = end
            scalars[S_NOW] = max(end, scalars[S_NOW] + unit)
        else:
            at = scalars[S_NOW] + unit if unit > 0 else scalars[S_PENDING_END]
            scalars[S_NOW] = at
            scalars[S_PENDING_END] = end
        gap = at - last
        last = at
        used = scalars[S_GAPS]
        if used > 0 and gaps[used - 1, 0] == gap:
            gaps[used - 1, 1] += n
        else:
            gaps[used, 0] = gap
            gaps[used, 1] = n
            scalars[S_GAPS] = used + 1
        steps += 1
    if steps == 0:
        return 0
    stamp = scalars[S_BATCHES] - 1
    for i in range(n):
        slot = running[i]
        slots[slot, R_MADE] += steps
        slots[slot, R_COMMITTED] += steps
        slots[slot, R_LAST_NS] = last
        slots[slot, R_STAMP] = stamp
    scalars[S_DECODE_TOKENS] += n * steps
    scalars[S_STEPS] += steps
    scalars[S_LAST_END] = last
    scalars[S_SEEN_AT] = last
    scalars[S_SEEN_ADMITTED] = scalars[S_ADMITTED]
    scalars[S_SEEN_WAITING] = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
    scalars[S_SEEN_USED] = (scalars[S_PAGES] - scalars[S_AVAILABLE] - scalars[S_EVICTABLE]) * page
    return steps
