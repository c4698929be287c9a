# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The block pool, compiled. Twin: `twin_pool.TwinPool`, method by method. Arrays: see `state`.

A request keeps no block table: its hits are `where[chain]` of its first blocks (the copy that was found is in use, so it
stays the oldest), and the blocks it took itself are linked backwards through B_OWN.
"""

from __future__ import annotations

from prefixsim.engines.vllm.state import (
    B_CHAIN,
    B_COPY_NEXT,
    B_COPY_PREV,
    B_NEXT,
    B_OWN,
    B_PREV,
    B_REF,
    GONE,
    I_CACHING,
    I_EVICTED,
    I_FREE,
    I_KEEP_COMMITS,
    I_SPLIT,
    NEVER_COMMITTED,
)
from prefixsim.jit import lean_kernel


@lean_kernel
def reset_pool(state, blocks):
    """All blocks free, in id order; block 0 is the null block and the queue's sentinel."""
    n = blocks.shape[0]
    for b in range(n):
        blocks[b, B_NEXT] = b + 1 if b + 1 < n else 0
        blocks[b, B_PREV] = b - 1 if b > 0 else n - 1
        blocks[b, B_REF] = 0
        blocks[b, B_CHAIN] = -1
    state[I_FREE] = n - 1


@lean_kernel
def lookup(blocks, where, run_offset, run_start, run_end, request, limit):
    """Longest cached prefix of a request's row, `limit` blocks at most. Returns (blocks found, of them in use)."""
    k = 0
    used = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], limit)
        chain = run_start[j]
        while k < end:
            b = where[chain]
            if b <= 0:
                return k, used
            if blocks[b, B_REF] > 0:
                used += 1
            chain += 1
            k += 1
        if k >= limit:
            break
    return k, used


@lean_kernel
def known_blocks(where, run_offset, run_start, run_end, request, limit):
    """Longest prefix (blocks, at most `limit`) ever committed: a prefix-closed mark, so a binary search by run."""
    k = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], limit)
        low, high = 0, end - k  # blocks of this run that are known: between low and high
        while low < high:
            mid = (low + high + 1) // 2
            if where[run_start[j] + mid - 1] != NEVER_COMMITTED:
                low = mid
            else:
                high = mid - 1
        k += low
        if k < end or k >= limit:
            break
    return k


@lean_kernel
def touch(state, blocks, where, run_offset, run_start, run_end, request, count):
    """One more user of the first `count` blocks of a row, all cached; unused ones leave the free queue.

    What was freed together lies together in the queue, tail first: such a stretch is unlinked as one piece.
    """
    k = 0
    free = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], count)
        chain = run_start[j]
        while k < end:
            b = where[chain]
            chain += 1
            k += 1
            if blocks[b, B_REF] > 0:
                blocks[b, B_REF] += 1
                continue
            blocks[b, B_REF] = 1
            free += 1
            after = blocks[b, B_NEXT]
            before = blocks[b, B_PREV]
            while k < end and where[chain] == before:
                blocks[before, B_REF] = 1
                free += 1
                before = blocks[before, B_PREV]
                chain += 1
                k += 1
            blocks[before, B_NEXT] = after
            blocks[after, B_PREV] = before
        if k >= count:
            break
    state[I_FREE] -= free


@lean_kernel
def take(state, blocks, where, tail, count):
    """Pops `count` blocks from the front, evicting what they held; links them behind `tail`. Returns the new tail."""
    b = blocks[0, B_NEXT]
    evicted = 0
    for _ in range(count):
        chain = blocks[b, B_CHAIN]
        if chain >= 0:
            other = blocks[b, B_COPY_NEXT]
            if other == b:
                where[chain] = GONE
            else:
                before = blocks[b, B_COPY_PREV]
                blocks[before, B_COPY_NEXT] = other
                blocks[other, B_COPY_PREV] = before
                if where[chain] == b:
                    where[chain] = other
            blocks[b, B_CHAIN] = -1
            evicted += 1
        blocks[b, B_REF] = 1
        blocks[b, B_OWN] = tail
        tail = b
        b = blocks[b, B_NEXT]
    blocks[0, B_NEXT] = b
    blocks[b, B_PREV] = 0
    state[I_EVICTED] += evicted
    state[I_FREE] -= count
    return tail


@lean_kernel
def commit_row(
    state, blocks, where, commits, run_offset, run_start, run_end, request, run, tail, held, done, upto, now
):
    """Blocks [done, upto) of a request that holds `held` blocks, the last one being `tail`, become findable; behind equal
    ones where such are cached already.

    run: a run of the row not behind block `done`. Returns the run of block upto - 1. Order within one request does not
    matter: its chains differ from each other.
    """
    block = tail
    for _ in range(held - upto):
        block = blocks[block, B_OWN]
    while run_end[run] < upto:
        run += 1
    first = run_offset[request]
    j = run
    k = upto
    while k > done:
        before = run_end[j - 1] if j > first else 0
        chain = run_start[j] + k - before - 1
        for _ in range(k - max(before, done)):
            oldest = where[chain]
            if oldest > 0:
                newest = blocks[oldest, B_COPY_PREV]
                blocks[newest, B_COPY_NEXT] = block
                blocks[oldest, B_COPY_PREV] = block
                blocks[block, B_COPY_NEXT] = oldest
                blocks[block, B_COPY_PREV] = newest
            else:
                if oldest == NEVER_COMMITTED and state[I_KEEP_COMMITS] != 0:
                    commits[chain] = now
                where[chain] = block
                blocks[block, B_COPY_NEXT] = block
                blocks[block, B_COPY_PREV] = block
            blocks[block, B_CHAIN] = chain
            block = blocks[block, B_OWN]
            chain -= 1
        k = before
        j -= 1
    return run


@lean_kernel
def release(state, blocks, where, run_offset, run_start, run_end, request, hits, tail, own):
    """Frees a request's blocks, tail first: `own` blocks it took itself from `tail` backwards, then its `hits`.

    Cached blocks go to the back of the queue; others to the front in that same order (when the queue is split).
    """
    last = blocks[0, B_PREV]
    front = 0
    freed = 0
    split = state[I_SPLIT] != 0
    b = tail
    for _ in range(own):
        following = blocks[b, B_OWN]
        left = blocks[b, B_REF] - 1
        blocks[b, B_REF] = left
        if left == 0:
            freed += 1
            if split and blocks[b, B_CHAIN] < 0:
                after = blocks[front, B_NEXT] if front != last else 0
                blocks[front, B_NEXT] = b
                blocks[b, B_PREV] = front
                blocks[b, B_NEXT] = after
                blocks[after, B_PREV] = b
                if after == 0:
                    last = b
                front = b
            else:
                blocks[last, B_NEXT] = b
                blocks[b, B_PREV] = last
                last = b
        b = following
    if hits > 0:
        first = run_offset[request]
        j = first
        while run_end[j] < hits:
            j += 1
        k = hits
        while k > 0:
            before = run_end[j - 1] if j > first else 0
            chain = run_start[j] + k - before - 1
            for _ in range(k - before):
                b = where[chain]
                left = blocks[b, B_REF] - 1
                blocks[b, B_REF] = left
                if left == 0:
                    freed += 1
                    blocks[last, B_NEXT] = b
                    blocks[b, B_PREV] = last
                    last = b
                chain -= 1
            k = before
            j -= 1
    blocks[last, B_NEXT] = 0
    blocks[0, B_PREV] = last
    state[I_FREE] += freed


@lean_kernel
def sequential(
    state, blocks, where, commits, run_offset, run_start, run_end, prompt_tokens, output_tokens, skip, block_size, out
):
    """One request at a time, to its end. out: int64 (n, 2), cached tokens of the lookup and 1 where it can never fit."""
    caching = state[I_CACHING] != 0
    usable = blocks.shape[0] - 1
    for r in range(prompt_tokens.shape[0]):
        tokens = prompt_tokens[r]
        hits = 0
        if caching and not skip[r]:
            hits, _ = lookup(blocks, where, run_offset, run_start, run_end, r, (tokens - 1) // block_size)
        out[r, 0] = hits * block_size
        held = (tokens + block_size - 1) // block_size
        if held > usable:  # nothing else holds blocks, so this is the whole admission test
            out[r, 1] = 1
            continue
        touch(state, blocks, where, run_offset, run_start, run_end, r, hits)
        tail = take(state, blocks, where, 0, held - hits)
        run = run_offset[r]
        full = tokens // block_size
        if caching and full > hits:
            run = commit_row(
                state, blocks, where, commits, run_offset, run_start, run_end, r, run, tail, held, hits, full, r
            )
        kv = tokens + output_tokens[r] - 1  # the last output token never gets KV
        k = full  # the block being filled
        while k * block_size < kv:
            if k == held:
                if state[I_FREE] == 0:
                    break
                tail = take(state, blocks, where, tail, 1)
                held += 1
            if caching and (k + 1) * block_size <= kv:
                run = commit_row(
                    state, blocks, where, commits, run_offset, run_start, run_end, r, run, tail, held, k, k + 1, r
                )
            k += 1
        release(state, blocks, where, run_offset, run_start, run_end, r, hits, tail, held - hits)
