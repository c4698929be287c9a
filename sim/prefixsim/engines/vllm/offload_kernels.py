# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Admissions and stores with a host tier (vLLM's OffloadingConnector), compiled. Rules: docs/tiers.md. Twin: `twin_offload`.

A request whose prefix goes on in the host tier gets its blocks, is parked while they are loaded, and is admitted when they
are there; others go on meanwhile. What it computes is offered to the tier at the end of each schedule.
"""

from __future__ import annotations

from prefixsim.engines.tiers.layout import H_RING_NS as RING_NS
from prefixsim.engines.tiers.layout import (
    T_AGAIN_HITS,
    T_AGAIN_QUERIES,
    T_ASIDE,
    T_DEFERRED,
    T_ENDED,
    T_FIRST_CACHED,
    T_HITS,
    T_LOAD_WAIT,
    T_LOADS,
    T_PARKED,
    T_QUERIES,
    T_RING_AT,
    T_RING_N,
    T_SKIPPED,
)
from prefixsim.engines.tiers.link_kernels import transfer_in, transfer_out
from prefixsim.engines.tiers.pool_kernels import (
    find_run,
    new_rank,
    offer,
    refresh,
    settle_stores,
    stored_by,
    use_blocks,
)
from prefixsim.engines.vllm.admit_kernels import count_lookup, note_admission, note_lookup, seat
from prefixsim.engines.vllm.pool_kernels import commit_row, lookup, take, touch
from prefixsim.engines.vllm.queue_kernels import head_of_queue, pop_waiting, push_waiting, waiting_count
from prefixsim.engines.vllm.state import (
    E_NEW,
    E_POS,
    E_SLOT,
    H_ENTRIES,
    HELD_ENDED,
    HELD_LOADED,
    HELD_LOADING,
    HELD_NOT,
    HOLD_BUSY_NS,
    HOLD_ENDED,
    HOLD_FROM,
    HOLD_HITS,
    HOLD_LOADED,
    HOLD_OUTPUTS,
    HOLD_PARKED,
    HOLD_RANK,
    HOLD_READY_NS,
    HOLD_RUN,
    HOLD_SKIPPED,
    HOLD_STATE,
    HOLD_STORED,
    HOLD_TAIL,
    HOLD_TO,
    I_BLOCK_SIZE,
    I_CHUNKED,
    I_END,
    I_FREE,
    I_HELD,
    I_KEEP_LOG,
    I_LOOKUPS,
    I_MAX_SEQS,
    I_PRIORITY,
    I_RESERVE,
    I_RUNNING,
    I_STACK,
    I_WATERMARK,
    IS_DONE,
    IS_PREEMPTED,
    LIST_RUNNING,
    Q_OUTPUTS,
    Q_REQ,
    Q_STATE,
    S_BLOCKS,
    S_COMPUTED,
    S_OUTPUTS,
    S_PROMPT,
    S_REQ,
)
from prefixsim.jit import lean_kernel
from prefixsim.records import NEVER, REQ_CACHED_HOST_TOKENS, REQ_STATUS, STATUS_RUNNING


@lean_kernel
def settle_transfers(tier, host, places, run_offset, run_start, run_end, queue, holds, now):
    """Stores and loads that are done by `now`."""
    settle_stores(tier, host, now)
    while tier[T_LOADS] < tier[T_PARKED]:
        pos = holds[tier[T_LOADS], HOLD_PARKED]
        if holds[pos, HOLD_READY_NS] > now:
            break
        first = holds[pos, HOLD_HITS]
        upto = first + holds[pos, HOLD_LOADED]
        use_blocks(tier, host, places, run_offset, run_start, run_end, queue[pos, Q_REQ], first, upto, 0, -1)
        tier[T_LOADS] += 1


@lean_kernel
def next_transfer(tier, host, holds):
    """When the first transfer is done that somebody may wait for; NEVER where nobody waits for one."""
    when = NEVER
    if tier[T_LOADS] < tier[T_PARKED]:
        when = holds[holds[tier[T_LOADS], HOLD_PARKED], HOLD_READY_NS]
    if tier[T_ASIDE] > 0 and tier[T_RING_N] > 0:
        when = min(when, host[tier[T_RING_AT], RING_NS])
    return when


@lean_kernel
def blocks_promised(state, slots, lists, queue, prompt_tokens, tier, holds):
    """Blocks that prefills in progress, parked ones too, still need: a load may not take them."""
    block_size = state[I_BLOCK_SIZE]
    promised = 0
    for i in range(state[I_RUNNING]):
        slot = lists[LIST_RUNNING, i]
        tokens = slots[slot, S_PROMPT] + slots[slot, S_OUTPUTS]
        if slots[slot, S_COMPUTED] + 1 < tokens:
            promised += max(0, (tokens + block_size - 1) // block_size - slots[slot, S_BLOCKS])
    for i in range(tier[T_PARKED]):
        pos = holds[i, HOLD_PARKED]
        tokens = prompt_tokens[queue[pos, Q_REQ]] + queue[pos, Q_OUTPUTS]
        promised += (tokens + block_size - 1) // block_size - holds[pos, HOLD_HITS] - holds[pos, HOLD_LOADED]
    return promised


@lean_kernel
def resume_parked(
    state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, rows, prompt_tokens,
    output_tokens, max_tokens, open_ended, batch, entries, budget, threshold, now, tier, holds,
):  # fmt: skip
    """Parked requests whose KV is there, in order of their lookups. Returns (entries, budget left, whether the scan goes on)."""
    block_size = state[I_BLOCK_SIZE]
    i = 0
    while i < tier[T_LOADS]:
        if budget <= 0 or state[I_RUNNING] >= state[I_MAX_SEQS]:
            return entries, budget, False
        pos = holds[i, HOLD_PARKED]
        request = queue[pos, Q_REQ]
        outputs = queue[pos, Q_OUTPUTS]
        tokens = prompt_tokens[request] + outputs
        hits = holds[pos, HOLD_HITS]
        held = hits + holds[pos, HOLD_LOADED]
        tail = holds[pos, HOLD_TAIL]
        if holds[pos, HOLD_STATE] == HELD_LOADING:
            holds[pos, HOLD_RUN] = commit_row(
                state, blocks, where, commits, run_offset, run_start, run_end, request,
                run_offset[request], tail, held, hits, held, now,
            )  # fmt: skip
            holds[pos, HOLD_STATE] = HELD_LOADED
        computed = min(held * block_size, tokens - 1)
        new = tokens - computed
        if 0 < threshold < new:
            new = threshold
        if new > budget:
            if state[I_CHUNKED] == 0:
                return entries, budget, False
            new = budget
        spare = state[I_WATERMARK] if state[I_RUNNING] > 0 else 0
        if state[I_RESERVE] != 0 and (tokens + block_size - 1) // block_size - held + spare > state[I_FREE]:
            return entries, budget, False
        need = (computed + new + block_size - 1) // block_size - held
        if need + spare > state[I_FREE]:
            return entries, budget, False
        tail = take(state, blocks, where, tail, need)
        full = (computed + new) // block_size
        run = holds[pos, HOLD_RUN]
        if full > held:
            run = commit_row(
                state, blocks, where, commits, run_offset, run_start, run_end, request,
                run, tail, held + need, held, full, now,
            )  # fmt: skip
        for k in range(i, tier[T_PARKED] - 1):
            holds[k, HOLD_PARKED] = holds[k + 1, HOLD_PARKED]
        tier[T_PARKED] -= 1
        tier[T_LOADS] -= 1
        holds[pos, HOLD_STATE] = HELD_NOT
        again = queue[pos, Q_STATE] == IS_PREEMPTED
        rows[request, REQ_STATUS] = STATUS_RUNNING
        slot = seat(
            state, slots, lists, queue, output_tokens, max_tokens, open_ended, pos, request, prompt_tokens[request],
            outputs, computed, hits, held + need, tail, max(held, full), run, again, entries,
        )  # fmt: skip
        batch[entries, E_POS] = pos
        batch[entries, E_SLOT] = slot
        batch[entries, E_NEW] = new
        entries += 1
        budget -= new
    return entries, budget, True


@lean_kernel
def admit_offloaded(
    state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, heap, priority, rows,
    prompt_tokens, output_tokens, max_tokens, open_ended, skip, admissions, batch, entries, budget, threshold, now,
    tier, host, places, holds,
):  # fmt: skip
    """`admit_waiting` with a host tier. Returns (entries, budget left)."""
    entries, budget, go_on = resume_parked(
        state, blocks, where, commits, run_offset, run_start, run_end, slots, lists, queue, rows, prompt_tokens,
        output_tokens, max_tokens, open_ended, batch, entries, budget, threshold, now, tier, holds,
    )  # fmt: skip
    block_size = state[I_BLOCK_SIZE]
    by_priority = state[I_PRIORITY] != 0
    aside = 0  # skipped in this pass: at the far end of the list of skipped ones
    far = holds.shape[0] - 1
    while go_on and budget > 0 and state[I_RUNNING] < state[I_MAX_SEQS]:
        from_skipped = not by_priority and state[I_STACK] == 0 and tier[T_SKIPPED] > 0
        if from_skipped:
            pos = holds[tier[T_SKIPPED] - 1, HOLD_SKIPPED]
        elif waiting_count(state) > 0:
            pos = head_of_queue(state, lists, heap)
        else:
            break
        request = queue[pos, Q_REQ]
        prompt = prompt_tokens[request]
        again = queue[pos, Q_STATE] == IS_PREEMPTED
        outputs = queue[pos, Q_OUTPUTS]
        tokens = prompt + outputs
        found, in_use = lookup(blocks, where, run_offset, run_start, run_end, request, (tokens - 1) // block_size)
        state[I_LOOKUPS] += 1
        holds[pos, HOLD_STORED] = 0
        hits, loaded, wait = found, 0, 0
        if holds[pos, HOLD_BUSY_NS] > now:
            wait = 1
        elif skip[request]:
            hits, in_use = 0, 0
        else:
            loaded, wait = find_run(
                host, places, run_offset, run_start, run_end, request, hits, tokens // block_size
            )  # fmt: skip
        if wait != 0:
            tier[T_DEFERRED] += 1
            _pop(state, lists, queue, heap, priority, tier, from_skipped)
            holds[far - aside, HOLD_SKIPPED] = pos
            aside += 1
            continue
        leaving = hits - in_use + (state[I_WATERMARK] if state[I_RUNNING] > 0 else 0)
        computed = (hits + loaded) * block_size
        if state[I_RESERVE] != 0 and (tokens + block_size - 1) // block_size - hits + leaving > state[I_FREE]:
            break
        if loaded > 0:
            promised = blocks_promised(state, slots, lists, queue, prompt_tokens, tier, holds)
            if loaded + leaving > state[I_FREE] - promised:
                break
        else:
            new = tokens - computed
            if 0 < threshold < new:
                new = threshold
            if new > budget:
                if state[I_CHUNKED] == 0:
                    break
                new = budget
            need = (computed + new + block_size - 1) // block_size - hits
            if need + leaving > state[I_FREE]:
                break
        # What is reported leaves out a last token that is loaded and computed again.
        cached = min(computed, (tokens - 1) // block_size * block_size)
        note_lookup(
            state, where, run_offset, run_start, run_end, queue, rows, pos, request, prompt, tokens, again, found,
            min(computed, tokens - 1), cached, now,
        )  # fmt: skip
        if not again:
            rows[request, REQ_CACHED_HOST_TOKENS] = cached - hits * block_size
            tier[T_FIRST_CACHED] += cached - hits * block_size
        if not skip[request]:
            count_lookup(state, again, tokens, hits * block_size)
        if again:
            tier[T_AGAIN_QUERIES] += tokens - hits * block_size
            tier[T_AGAIN_HITS] += loaded * block_size
        else:
            tier[T_QUERIES] += tokens - hits * block_size
            tier[T_HITS] += loaded * block_size
        if hits > 0:
            touch(state, blocks, where, run_offset, run_start, run_end, request, hits)
        if state[I_KEEP_LOG] != 0:
            note_admission(state, admissions, request, now, computed, tokens)
        _pop(state, lists, queue, heap, priority, tier, from_skipped)
        if loaded > 0:
            park(
                state, blocks, where, run_offset, run_start, run_end, request, pos, hits, loaded, now,
                tier, host, places, holds,
            )  # fmt: skip
            continue
        tail = take(state, blocks, where, 0, need)
        run = run_offset[request]
        full = (computed + new) // block_size
        if full > hits:
            run = commit_row(
                state, blocks, where, commits, run_offset, run_start, run_end, request,
                run, tail, hits + need, hits, full, now,
            )  # fmt: skip
        rows[request, REQ_STATUS] = STATUS_RUNNING
        slot = seat(
            state, slots, lists, queue, output_tokens, max_tokens, open_ended, pos, request, prompt, outputs, computed,
            hits, hits + need, tail, max(hits, full), run, again, entries,
        )  # fmt: skip
        batch[entries, E_POS] = pos
        batch[entries, E_SLOT] = slot
        batch[entries, E_NEW] = new
        entries += 1
        budget -= new
    tier[T_ASIDE] = aside
    for i in range(aside):  # the skipped ones wait in front of the others, in their order
        pos = holds[far - aside + 1 + i, HOLD_SKIPPED]
        if by_priority:
            push_waiting(state, lists, queue, heap, priority, pos)
        else:
            holds[tier[T_SKIPPED], HOLD_SKIPPED] = pos
            tier[T_SKIPPED] += 1
    state[I_HELD] = tier[T_PARKED] + tier[T_SKIPPED]
    return entries, budget


@lean_kernel
def _pop(state, lists, queue, heap, priority, tier, from_skipped):
    """Takes the head of the queue away."""
    if from_skipped:
        tier[T_SKIPPED] -= 1
    else:
        pop_waiting(state, lists, queue, heap, priority)


@lean_kernel
def park(
    state, blocks, where, run_offset, run_start, run_end, request, pos, hits, loaded, now, tier, host, places, holds
):
    """Blocks for what is loaded, and the load: it starts when the GPU has done what it has been given so far."""
    holds[pos, HOLD_TAIL] = take(state, blocks, where, 0, loaded)
    holds[pos, HOLD_HITS] = hits
    holds[pos, HOLD_LOADED] = loaded
    holds[pos, HOLD_STORED] = hits + loaded
    holds[pos, HOLD_STATE] = HELD_LOADING
    note_use(tier, holds, pos, hits, hits + loaded)
    use_blocks(
        tier, host, places, run_offset, run_start, run_end, request, hits, hits + loaded, holds[pos, HOLD_RANK], 1
    )
    ready = transfer_in(tier, max(now, state[I_END]), loaded)
    holds[pos, HOLD_READY_NS] = ready
    tier[T_LOAD_WAIT] += ready - now
    holds[tier[T_PARKED], HOLD_PARKED] = pos
    tier[T_PARKED] += 1


@lean_kernel
def note_use(tier, holds, pos, first, upto):
    """A request uses these blocks of the tier."""
    if holds[pos, HOLD_RANK] == 0:
        holds[pos, HOLD_RANK] = new_rank(tier)
        holds[pos, HOLD_FROM] = first
        holds[pos, HOLD_TO] = upto
    else:
        holds[pos, HOLD_FROM] = min(holds[pos, HOLD_FROM], first)
        holds[pos, HOLD_TO] = max(holds[pos, HOLD_TO], upto)


@lean_kernel
def note_ended(tier, slots, queue, batch, head, holds):
    """Requests of a processed batch that have ended by it: their last blocks are offered at the next schedule."""
    for e in range(head[H_ENTRIES]):
        pos = batch[e, E_POS]
        if batch[e, E_NEW] == 0 or queue[pos, Q_STATE] != IS_DONE or holds[pos, HOLD_STATE] == HELD_ENDED:
            continue
        slot = batch[e, E_SLOT]
        outputs = queue[pos, Q_OUTPUTS]
        if slots[slot, S_REQ] == queue[pos, Q_REQ]:
            outputs = max(outputs, slots[slot, S_OUTPUTS])
        holds[pos, HOLD_OUTPUTS] = outputs
        holds[pos, HOLD_STATE] = HELD_ENDED
        holds[tier[T_ENDED], HOLD_ENDED] = pos
        tier[T_ENDED] += 1


@lean_kernel
def offer_blocks(
    state, run_offset, run_start, run_end, slots, queue, prompt_tokens, batch, entries, now, tier, host, places,
    tracker, holds,
):  # fmt: skip
    """End of a schedule: full blocks of scheduled requests, then those of ended ones, are offered to the tier. A store
    starts when the step that fills its blocks is done."""
    block_size = state[I_BLOCK_SIZE]
    ready = max(now, state[I_END])
    for e in range(entries):
        if batch[e, E_NEW] > 0:
            slot = batch[e, E_SLOT]
            tokens = min(slots[slot, S_COMPUTED], slots[slot, S_PROMPT] + slots[slot, S_OUTPUTS])
            store_upto(
                run_offset, run_start, run_end, batch[e, E_POS], slots[slot, S_REQ], tokens // block_size, ready,
                tier, host, places, tracker, holds,
            )  # fmt: skip
    for i in range(tier[T_ENDED]):
        pos = holds[i, HOLD_ENDED]
        request = queue[pos, Q_REQ]
        tokens = max(prompt_tokens[request], prompt_tokens[request] + holds[pos, HOLD_OUTPUTS] - 1)
        store_upto(
            run_offset, run_start, run_end, pos, request, tokens // block_size, ready, tier, host, places, tracker,
            holds,
        )  # fmt: skip
    for i in range(tier[T_ENDED]):
        pos = holds[i, HOLD_ENDED]
        refresh(
            tier, host, places, run_offset, run_start, run_end, queue[pos, Q_REQ],
            holds[pos, HOLD_FROM], holds[pos, HOLD_TO],
        )  # fmt: skip
    tier[T_ENDED] = 0


@lean_kernel
def store_upto(run_offset, run_start, run_end, pos, request, upto, ready, tier, host, places, tracker, holds):
    """Offers a request's blocks that were not offered yet, and queues the store of those that get a place."""
    first = holds[pos, HOLD_STORED]
    if upto <= first:
        return
    note_use(tier, holds, pos, first, upto)
    count = offer(
        tier, host, places, tracker, run_offset, run_start, run_end, request, first, upto, holds[pos, HOLD_RANK]
    )
    if count < 0:
        return  # no room: offered again at the next schedule
    holds[pos, HOLD_STORED] = upto
    if count > 0:
        when = transfer_out(tier, ready, count)
        stored_by(tier, host, count, when)
        holds[pos, HOLD_BUSY_NS] = when
