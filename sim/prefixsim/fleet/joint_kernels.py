# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Arrivals at several vLLM replicas behind `cache_aware`, compiled: what `Fleet._deliver`, `Fleet.loads` and
`CacheAware.route` do one call at a time (they are the twin), in one kernel. Arrays of replicas: theirs, stacked.
"""

from __future__ import annotations

from prefixsim.engines.vllm.queue_kernels import enqueue, waiting_count
from prefixsim.engines.vllm.run_kernels import run_engine
from prefixsim.engines.vllm.state import (
    I_FLIGHT,
    I_FOLLOWING,
    I_HELD,
    I_NOW,
    I_RUNNING,
    I_SEEN_RUNNING,
    I_SEEN_WAITING,
    I_STUCK,
    I_SUBMITTED,
    Q_READY_NS,
    STOP_ROOM,
)
from prefixsim.fleet.approx_tree_kernels import enter, longest_match
from prefixsim.jit import lean_kernel
from prefixsim.records import NEVER

(
    J_CURSOR,  # next pending arrival
    J_STOP,  # first arrival not to be handed out in this call
    J_TRIM_NS,  # when the tree is to be trimmed next
    J_SENT,  # sendings entered in the tree
    J_REPLICA,  # who needs room
    J_LONGEST,  # longest prompt that is not refused
    J_BALANCE_ABS,
    J_COLS,
) = range(8)
F_BALANCE_REL, F_CACHE, F_HASH_NS, F_COLS = range(4)
R_NEXT_NS, R_CAUGHT_UP_NS, R_UNTIL_NS, R_REFUSED, R_COLS = range(5)
"""control int64 (J_COLS,), floats float64 (F_COLS,), replicas int64 (R, R_COLS)."""
ALL_SENT, NEEDS_ROOM, NEEDS_TRIM = range(3)


@lean_kernel
def unfinished(state, until):
    """Running and waiting requests, as `VllmEngine.load` says."""
    coming = state[I_SUBMITTED] - state[I_FOLLOWING]
    if state[I_NOW] <= until:
        return state[I_RUNNING] + waiting_count(state) + state[I_HELD] + coming
    return state[I_SEEN_RUNNING] + state[I_SEEN_WAITING] + coming


@lean_kernel
def next_instant(state, queue):
    """When a replica without a host tier wants to act, as `VllmEngine.advance` says."""
    busy = state[I_FLIGHT] > 0 or state[I_RUNNING] > 0 or waiting_count(state) > 0
    if busy and state[I_STUCK] == 0:
        return state[I_NOW]
    if state[I_FOLLOWING] < state[I_SUBMITTED]:
        return max(state[I_NOW], queue[state[I_FOLLOWING], Q_READY_NS])
    return NEVER


@lean_kernel
def serve_arrivals(
    control, floats, replicas, times, requests,
    trie_offset, trie_start, trie_end, element_end, element_tokens, sent, last, size_tokens,
    state, blocks, where, commits, slots, lists, queue, heap, batches, heads, window,
    run_offset, run_start, run_end, prompt_tokens, output_tokens, max_tokens, open_ended, priority, skip, awaited,
    rows, done, gaps, timeline, log, admissions, coef, gemm_us, lm_head_us, tier, host, places, tracker, holds,
):  # fmt: skip
    """Hands out arrivals up to J_STOP. Returns ALL_SENT, NEEDS_ROOM (arrays of J_REPLICA) or NEEDS_TRIM; then call again."""
    n = replicas.shape[0]
    while control[J_CURSOR] < control[J_STOP]:
        c = control[J_CURSOR]
        at, request = times[c], requests[c]
        for i in range(n):
            if state[i, I_SUBMITTED] >= queue.shape[1]:
                control[J_REPLICA] = i
                return NEEDS_ROOM
        if at >= control[J_TRIM_NS]:
            return NEEDS_TRIM
        low, high, chosen = NEVER, -1, 0
        for i in range(n):
            if replicas[i, R_CAUGHT_UP_NS] < at:
                if replicas[i, R_NEXT_NS] <= at:
                    stop = run_engine(
                        state[i], blocks[i], where[i], commits[i], slots[i], lists[i], queue[i], heap[i], batches[i],
                        heads[i], window[i], run_offset, run_start, run_end, prompt_tokens, output_tokens, max_tokens,
                        open_ended, priority, skip, awaited, rows, done[i], gaps[i], timeline[i], log[i],
                        admissions[i], coef, gemm_us, lm_head_us, tier, host, places, tracker, holds, at,
                    )  # fmt: skip
                    if stop == STOP_ROOM:
                        control[J_REPLICA] = i
                        return NEEDS_ROOM
                    replicas[i, R_UNTIL_NS] = at
                    replicas[i, R_NEXT_NS] = next_instant(state[i], queue[i])
                replicas[i, R_CAUGHT_UP_NS] = at
            load = unfinished(state[i], replicas[i, R_UNTIL_NS])
            high = max(high, load)
            if load < low:
                low, chosen = load, i
        prompt = prompt_tokens[request]
        if high - low <= control[J_BALANCE_ABS] or high <= floats[F_BALANCE_REL] * low:
            matched, replica = longest_match(trie_offset, trie_start, trie_end, element_end, last, request, prompt)
            if replica >= 0 and matched > floats[F_CACHE] * prompt:
                chosen = replica
        control[J_SENT] += 1
        size_tokens[chosen] += enter(
            trie_offset, trie_start, trie_end, element_end, element_tokens, sent, last, request, prompt, chosen,
            control[J_SENT],
        )  # fmt: skip
        replicas[chosen, R_REFUSED] += enqueue(
            state[chosen], queue[chosen], rows, prompt_tokens, requests[c : c + 1], times[c : c + 1], chosen,
            floats[F_HASH_NS], control[J_LONGEST],
        )  # fmt: skip
        replicas[chosen, R_NEXT_NS] = min(replicas[chosen, R_NEXT_NS], at)
        control[J_CURSOR] = c + 1
    return ALL_SENT
