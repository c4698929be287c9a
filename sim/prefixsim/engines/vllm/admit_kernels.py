# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Admissions, compiled. Twin: second half of `twin.TwinScheduler.schedule`. Arrays: see `state`."""

from __future__ import annotations

from prefixsim.engines.vllm.pool_kernels import commit_row, known_blocks, lookup, take, touch
from prefixsim.engines.vllm.queue_kernels import head_of_queue, pop_waiting, waiting_count
from prefixsim.engines.vllm.state import (
    E_NEW,
    E_POS,
    E_SLOT,
    I_ADMISSIONS,
    I_AGAIN_HITS,
    I_AGAIN_QUERIES,
    I_BLOCK_SIZE,
    I_CACHING,
    I_CHUNKED,
    I_COUNT_RETRIES,
    I_FIRST_CACHED,
    I_FIRST_LOOKUP,
    I_FREE,
    I_HITS,
    I_KEEP_LOG,
    I_LOOKUPS,
    I_MAX_SEQS,
    I_QUERIES,
    I_RESERVE,
    I_RUNNING,
    I_UPDATE_HITS,
    I_UPDATE_QUERIES,
    I_UPDATE_REQUESTS,
    I_WATERMARK,
    IN_SLOT,
    IS_PREEMPTED,
    LIST_FREE,
    LIST_RUNNING,
    Q_BEFORE,
    Q_LAST_NS,
    Q_OUTPUTS,
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
)
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_RECOMPUTED_TOKENS,
    REQ_STATUS,
    STATUS_RUNNING,
)


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
def note_lookup(
    state, where, run_offset, run_start, run_end, queue, rows, pos, request, prompt, tokens, again, found, computed,
    cached, now,
):  # fmt: skip
    """Writes what an admission's lookup found: `computed` tokens are not computed again, of which `cached` are reported;
    `found` blocks were on the GPU."""
    if not again:
        rows[request, REQ_ADMITTED_NS] = now
        rows[request, REQ_CACHED_TOKENS] = cached
        rows[request, REQ_DEVICE_TOKENS] = found * state[I_BLOCK_SIZE]
        rows[request, REQ_LOOKUP_TOKENS] = tokens
        if state[I_CACHING] != 0:
            rows[request, REQ_KNOWN_TOKENS] = state[I_BLOCK_SIZE] * known_blocks(
                where, run_offset, run_start, run_end, request, prompt // state[I_BLOCK_SIZE]
            )
        state[I_FIRST_LOOKUP] += tokens
        state[I_FIRST_CACHED] += cached
    else:
        rows[request, REQ_RECOMPUTED_TOKENS] += max(0, queue[pos, Q_BEFORE] - computed)


@lean_kernel
def seat(
    state, slots, lists, queue, output_tokens, max_tokens, open_ended, pos, request, prompt, outputs, computed, hits,
    held, tail, committed, run, again, entry,
):  # fmt: skip
    """A request becomes a running one, the last of the list. Returns its slot."""
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
    slots[slot, S_BLOCKS] = held
    slots[slot, S_TAIL] = tail
    slots[slot, S_COMMITTED] = committed
    slots[slot, S_RUN] = run
    slots[slot, S_STOP] = min(output_tokens[request], max_tokens[request])
    limit = max_tokens[request]
    if open_ended[request]:  # it stops by itself: vLLM can't know that no further slot is needed
        limit = max(limit, output_tokens[request] + 1)
    slots[slot, S_LIMIT] = prompt + limit
    slots[slot, S_LAST_NS] = queue[pos, Q_LAST_NS]
    slots[slot, S_AGAIN] = 1 if again else 0
    slots[slot, S_ENTRY] = entry
    return slot


@lean_kernel
def note_admission(state, admissions, request, now, computed, tokens):
    """One row of the golden cases' admissions."""
    k = state[I_ADMISSIONS]
    admissions[k, 0] = request
    admissions[k, 1] = now
    admissions[k, 2] = computed
    admissions[k, 3] = tokens
    state[I_ADMISSIONS] = k + 1


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
        note_lookup(
            state, where, run_offset, run_start, run_end, queue, rows, pos, request, prompt, tokens, again, found,
            computed, computed, now,
        )  # fmt: skip
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
        slot = seat(
            state, slots, lists, queue, output_tokens, max_tokens, open_ended, pos, request, prompt, outputs, computed,
            hits, hits + need, tail, max(hits, full) if caching else 0, run, again, entries,
        )  # fmt: skip
        batch[entries, E_POS] = pos
        batch[entries, E_SLOT] = slot
        batch[entries, E_NEW] = new
        entries += 1
        budget -= new
        if state[I_KEEP_LOG] != 0:
            note_admission(state, admissions, request, now, computed, tokens)
    return entries, budget
