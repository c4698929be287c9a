# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The engine's loop, compiled. Twin: `twin.TwinScheduler.run`. Arrays: see `state`.

`run_engine` runs steps until something outside could matter: it consumes arrivals by itself.
"""

from __future__ import annotations

from prefixsim.engines.tiers.layout import T_ENDED
from prefixsim.engines.vllm.admit_kernels import admit_waiting
from prefixsim.engines.vllm.offload_kernels import (
    admit_offloaded,
    next_transfer,
    note_ended,
    offer_blocks,
    settle_transfers,
)
from prefixsim.engines.vllm.process_kernels import process, roll_window, write_timeline
from prefixsim.engines.vllm.queue_kernels import push_waiting, waiting_count
from prefixsim.engines.vllm.schedule_kernels import close_batch, schedule_running
from prefixsim.engines.vllm.state import (
    H_END_NS,
    I_ADMISSIONS,
    I_BUDGET,
    I_DEPTH,
    I_DONE,
    I_FLIGHT,
    I_FOLLOWING,
    I_FREE,
    I_GAPS,
    I_HELD,
    I_KEEP_LOG,
    I_LOG,
    I_NOW,
    I_OFFLOAD,
    I_OLDEST,
    I_PRIORITY,
    I_RUNNING,
    I_SEEN_RUNNING,
    I_SEEN_USED,
    I_SEEN_WAITING,
    I_SINGLE_STEP,
    I_STEPS,
    I_STRIDE,
    I_STUCK,
    I_SUBMITTED,
    I_THRESHOLD,
    I_TURN_NS,
    I_USED_PEAK,
    Q_READY_NS,
    STOP_AWAITED,
    STOP_IDLE,
    STOP_ROOM,
    STOP_STEP,
    STOP_STUCK,
    STOP_UNTIL,
)
from prefixsim.jit import lean_kernel
from prefixsim.records import NEVER


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
    rows, done, gaps, timeline, log, admissions, coef, gemm_us, lm_head_us, tier, host, places, tracker, holds, until,
):  # fmt: skip
    """Schedules and processes steps while the next schedule instant is < until. Returns STOP_*."""
    state[I_DONE] = 0
    by_priority = state[I_PRIORITY] != 0
    offload = state[I_OFFLOAD] != 0
    room = slots.shape[0] + 2
    while True:
        following, submitted = state[I_FOLLOWING], state[I_SUBMITTED]
        waiting = waiting_count(state) + state[I_HELD]
        idle = state[I_FLIGHT] == 0 and state[I_RUNNING] == 0 and waiting == 0
        if idle or state[I_STUCK] != 0:
            arrived = following < submitted and queue[following, Q_READY_NS] <= state[I_NOW]
            if offload and tier[T_ENDED] > 0 and not arrived:
                if state[I_NOW] >= until:
                    return STOP_UNTIL
                offer_blocks(
                    state, run_offset, run_start, run_end, slots, queue, prompt_tokens, batches[0], 0, state[I_NOW],
                    tier, host, places, tracker, holds,
                )  # fmt: skip
            wake = next_transfer(tier, host, holds) if offload and not idle else NEVER
            if following == submitted and wake == NEVER:
                return STOP_IDLE if idle else STOP_STUCK
            if following < submitted:
                wake = min(wake, queue[following, Q_READY_NS])
            elif wake >= until:  # somebody may come before
                return STOP_UNTIL
            state[I_NOW] = max(state[I_NOW], wake)
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

        if offload:
            settle_transfers(tier, host, places, run_offset, run_start, run_end, queue, holds, now)
        threshold = state[I_THRESHOLD] if state[I_RUNNING] + waiting_count(state) + state[I_HELD] > 1 else 0
        young = (state[I_OLDEST] + state[I_FLIGHT]) % 2
        batch, head = batches[young], heads[young]
        entries, budget, preempted = schedule_running(
            state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
            batch, state[I_BUDGET], threshold, now,
        )  # fmt: skip
        if preempted == 0 and offload:
            entries, budget = admit_offloaded(
                state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority,
                rows, prompt_tokens, output_tokens, max_tokens, open_ended, skip, admissions, batch, entries, budget,
                threshold, now, tier, host, places, holds,
            )  # fmt: skip
        elif preempted == 0 and waiting_count(state) > 0:
            entries, budget = admit_waiting(
                state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority,
                rows, prompt_tokens, output_tokens, max_tokens, open_ended, skip, admissions, batch, entries, budget,
                threshold, now,
            )  # fmt: skip
        used = blocks.shape[0] - 1 - state[I_FREE]
        state[I_SEEN_RUNNING] = state[I_RUNNING]
        state[I_SEEN_WAITING] = waiting_count(state) + state[I_HELD]
        state[I_SEEN_USED] = used
        state[I_USED_PEAK] = max(state[I_USED_PEAK], used)
        tokens = close_batch(state, slots, rows, batch, head, entries, now, coef, gemm_us, lm_head_us)
        if offload:
            offer_blocks(
                state, run_offset, run_start, run_end, slots, queue, prompt_tokens, batch, entries, now, tier, host,
                places, tracker, holds,
            )  # fmt: skip
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
            if offload:
                note_ended(tier, slots, queue, batches[oldest], heads[oldest], holds)
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
