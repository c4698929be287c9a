# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled sliding-window and hybrid groups: sequential replay. Every verb has its twin in groups_twin.py.

State, C-contiguous, int64 (block, holder and table int32), made by `groups.new_state`:
block (7, num_gpu_blocks): one column a block, rows BLOCK_*. Column 0 is the null block and the ends of the free queue,
    which is circular: next[0] is evicted first, prev[0] last.
holder (2 * groups, n_chains): row 2g the oldest block that holds a chain in group g (0: none), row 2g + 1 the newest.
table (groups, blocks of the longest row): the live request's block table; held (groups,) its length;
    judged (groups,): full blocks already given a key or masked out.
rule (N_RULES,), count (N_COUNTS,).
"""

from __future__ import annotations

from prefixsim.jit import kernel

NIL = -1
NULL = 0
BLOCK_REFS, BLOCK_PREV, BLOCK_NEXT, BLOCK_CHAIN, BLOCK_GROUP, BLOCK_OLDER, BLOCK_NEWER = range(7)
RULE_BLOCK_SIZE, RULE_GROUPS, RULE_WINDOW, RULE_RETENTION, RULE_MAX_MODEL_LEN, RULE_ADMISSION_BLOCKS = range(6)
"""RULE_RETENTION: tokens, 0, or NIL (dense)."""
COUNT_FREE, COUNT_EVICTED = range(2)
OUT_CACHED, OUT_REJECTED, OUT_DECODED = range(3)


@kernel
def insert_after(block, at, new):
    """Links block `new` into the free queue behind `at` (0: as the first)."""
    behind = block[BLOCK_NEXT, at]
    block[BLOCK_NEXT, at] = new
    block[BLOCK_PREV, new] = at
    block[BLOCK_NEXT, new] = behind
    block[BLOCK_PREV, behind] = new


@kernel
def unlink(block, b):
    """Takes block `b` out of the free queue."""
    before, behind = block[BLOCK_PREV, b], block[BLOCK_NEXT, b]
    block[BLOCK_NEXT, before] = behind
    block[BLOCK_PREV, behind] = before


@kernel
def put_key(block, holder, b, group, chain):
    """Makes block `b` findable, behind earlier holders of the same chain."""
    block[BLOCK_CHAIN, b] = chain
    block[BLOCK_GROUP, b] = group
    newest = holder[2 * group + 1, chain]
    block[BLOCK_OLDER, b] = newest
    block[BLOCK_NEWER, b] = NULL
    if newest == NULL:
        holder[2 * group, chain] = b
    else:
        block[BLOCK_NEWER, newest] = b
    holder[2 * group + 1, chain] = b


@kernel
def drop_key(block, holder, b):
    """Takes block `b` out of the cache map."""
    group, chain = block[BLOCK_GROUP, b], block[BLOCK_CHAIN, b]
    older, newer = block[BLOCK_OLDER, b], block[BLOCK_NEWER, b]
    if older == NULL:
        holder[2 * group, chain] = newer
    else:
        block[BLOCK_NEWER, older] = newer
    if newer == NULL:
        holder[2 * group + 1, chain] = older
    else:
        block[BLOCK_OLDER, newer] = older
    block[BLOCK_CHAIN, b] = NIL


@kernel
def pop_block(block, holder, count):
    """The front of the free queue, with one reference; if it had a key it is evicted."""
    b = block[BLOCK_NEXT, NULL]
    unlink(block, b)
    count[COUNT_FREE] -= 1
    if block[BLOCK_CHAIN, b] != NIL:
        drop_key(block, holder, b)
        count[COUNT_EVICTED] += 1
    block[BLOCK_REFS, b] = 1
    return b


@kernel
def release(block, count, row, last, first):
    """Drops one reference of row[last], row[last-1], ..., row[first]. Freed ones without a key go to the front of the
    queue in this order, those with a key to its back."""
    at = NULL
    for k in range(last, first - 1, -1):
        b = row[k]
        if b == NULL:
            continue
        block[BLOCK_REFS, b] -= 1
        if block[BLOCK_REFS, b] > 0:
            continue
        count[COUNT_FREE] += 1
        if block[BLOCK_CHAIN, b] == NIL:
            insert_after(block, at, b)
            at = b
        else:
            insert_after(block, block[BLOCK_PREV, NULL], b)


@kernel
def list_free(block, queue):
    """Writes the free queue, first to be evicted first; returns its length."""
    count = 0
    b = block[BLOCK_NEXT, NULL]
    while b != NULL:
        queue[count] = b
        count += 1
        b = block[BLOCK_NEXT, b]
    return count


@kernel
def skipped_blocks(rule, computed):
    """Leading blocks that the next token's window no longer touches."""
    return max(0, computed - rule[RULE_WINDOW] + 1) // rule[RULE_BLOCK_SIZE]


@kernel
def lookup(block, holder, rule, chain, tokens, table):
    """Longest prefix all groups can serve: fills `table`, returns (hit blocks, junction in tokens)."""
    size, groups = rule[RULE_BLOCK_SIZE], rule[RULE_GROUPS]
    limit = (tokens - 1) // size
    longest = 0
    if groups == 2:
        k = 0
        while k < limit and holder[0, chain[k]] != NULL:
            table[0, k] = holder[0, chain[k]]
            k += 1
        limit = k
        longest = k
    window = groups - 1
    need = max(1, -(-(rule[RULE_WINDOW] - 1) // size))
    run = 0
    k = limit
    while k > 0 and run < need:
        k -= 1
        run = run + 1 if holder[2 * window, chain[k]] != NULL else 0
    first = k if run == need else 0
    hit = first + run
    for k in range(hit):
        table[window, k] = holder[2 * window, chain[k]] if k >= first else NULL
    longest = max(longest, hit)
    return hit, longest * size if longest > hit else 0


@kernel
def blocks_needed(block, rule, table, held, tokens, hit, admission):
    """Blocks to take from the free queue for `tokens` slots, free hit blocks included. hit: hit blocks in `table`."""
    groups = rule[RULE_GROUPS]
    total = 0
    for group in range(groups):
        required = -(-tokens // rule[RULE_BLOCK_SIZE])
        if group == groups - 1 and admission:
            required = min(required, rule[RULE_ADMISSION_BLOCKS])
        total += max(0, required - held[group] - hit)
        for k in range(hit):
            if table[group, k] != NULL and block[BLOCK_REFS, table[group, k]] == 0:
                total += 1
    return total


@kernel
def free_behind_window(block, count, rule, table, held, processed):
    """The window group gives back blocks behind the next token's window, nearest first; NULL takes their place."""
    window = rule[RULE_GROUPS] - 1
    last = min(skipped_blocks(rule, processed), held[window]) - 1
    first = last
    while first >= 0 and table[window, first] != NULL:
        first -= 1
    release(block, count, table[window], last, first + 1)
    for k in range(first + 1, last + 1):
        table[window, k] = NULL


@kernel
def adopt(block, count, rule, table, held, judged, hit):
    """The hit blocks in `table` become the request's."""
    for group in range(rule[RULE_GROUPS]):
        for k in range(hit):
            b = table[group, k]
            if b != NULL:
                if block[BLOCK_REFS, b] == 0:
                    unlink(block, b)
                    count[COUNT_FREE] -= 1
                block[BLOCK_REFS, b] += 1
        held[group] = hit
        judged[group] = hit


@kernel
def retained(rule, k, replay_block, junction_block):
    """Whether the window group keeps block k, see the twin. Boundaries are given in whole blocks (0: none)."""
    size, interval = rule[RULE_BLOCK_SIZE], rule[RULE_RETENTION]
    need = -(-(rule[RULE_WINDOW] - 1) // size)
    period = 1 if interval == NIL else interval // size
    if period > 0 and k % period >= period - need:
        return True
    if interval == NIL:
        return False
    return replay_block - need <= k < replay_block or junction_block - need <= k < junction_block


@kernel
def commit(block, holder, rule, chain, table, judged, full, replay_block, junction_block):
    """Gives keys to full blocks not judged yet, below `full`."""
    groups = rule[RULE_GROUPS]
    for group in range(groups):
        for k in range(judged[group], full):
            b = table[group, k]
            if b != NULL and (group < groups - 1 or retained(rule, k, replay_block, junction_block)):
                put_key(block, holder, b, group, chain[k])
        judged[group] = max(judged[group], full)


@kernel
def allocate(
    block, holder, count, rule, chain, table, held, judged, computed, new, hit, known, prompt, junction, admission
):
    """Room for `new` tokens after `computed` (hits included); False if there is not enough. known: tokens known now."""
    size, longest = rule[RULE_BLOCK_SIZE], rule[RULE_MAX_MODEL_LEN]
    computed = min(computed, longest)
    if admission and blocks_needed(block, rule, table, held, min(known, longest), hit, True) > count[COUNT_FREE]:
        return False
    slots = min(computed + new, longest)
    free_behind_window(block, count, rule, table, held, computed)
    if blocks_needed(block, rule, table, held, slots, hit, False) > count[COUNT_FREE]:
        return False
    if hit > 0:
        adopt(block, count, rule, table, held, judged, hit)
    for group in range(rule[RULE_GROUPS]):
        for k in range(held[group], -(-slots // size)):
            table[group, k] = pop_block(block, holder, count)
            held[group] = k + 1
    full = min(computed + new, known) // size
    commit(block, holder, rule, chain, table, judged, full, (prompt - 1) // size, junction // size)
    return True


@kernel
def expand_row(run_offset, run_start, run_end, r, chain):
    """Chain ids of request r's full blocks, written out."""
    k = 0
    for j in range(run_offset[r], run_offset[r + 1]):
        first = k
        while k < run_end[j]:
            chain[k] = run_start[j] + k - first
            k += 1


@kernel
def replay_rows(
    first, last, run_offset, run_start, run_end, request, block, holder, table, held, judged, rule, count, chain, out
):
    """Requests first..last-1, one after another to the end. request (3, n): prompt tokens, outputs, skip lookup.
    out (n, 3): cached tokens, rejected, output tokens computed."""
    size = rule[RULE_BLOCK_SIZE]
    for r in range(first, last):
        prompt, outputs, skip = request[0, r], request[1, r], request[2, r]
        expand_row(run_offset, run_start, run_end, r, chain)
        hit, junction = 0, 0
        if skip == 0:
            hit, junction = lookup(block, holder, rule, chain, prompt, table)
        out[r, OUT_CACHED] = hit * size
        new = prompt - hit * size
        if not allocate(
            block, holder, count, rule, chain, table, held, judged, hit * size, new, hit, prompt, prompt, junction, True
        ):
            out[r, OUT_REJECTED] = 1
            continue
        computed = prompt
        while computed < prompt + outputs - 1:
            if not allocate(
                block,
                holder,
                count,
                rule,
                chain,
                table,
                held,
                judged,
                computed,
                1,
                0,
                computed + 1,
                prompt,
                junction,
                False,
            ):
                break
            computed += 1
        out[r, OUT_DECODED] = computed - prompt
        for group in range(rule[RULE_GROUPS]):
            release(block, count, table[group], held[group] - 1, 0)
            held[group] = 0
            judged[group] = 0
