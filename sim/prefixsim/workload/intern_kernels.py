"""Compiled interning. Twins: `workload.reference`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

STATE_ROW, STATE_ELEMENTS, STATE_RUNS = range(3)


def cut_atoms(atom_offset, prompt_atoms, atom_id, atom_tokens, output_tokens):
    """Atoms to pieces that are equal or disjoint; unknown outputs get a unique piece.

    atom_tokens may be empty: every atom is one token. Returns (piece_offset int64 (n+1,), piece_id int32 (P,),
    piece_tokens int32 (P,) or empty when all are one token). Raises OverflowError past 2^31 distinct pieces.
    """
    n = atom_offset.shape[0] - 1
    known = (atom_offset[1:] - atom_offset[:-1]) > prompt_atoms
    missing = ~known & (output_tokens > 0)
    if atom_tokens.shape[0] == 0 and not missing.any():
        return atom_offset, atom_id, atom_tokens
    top = int(atom_id.max()) + 1 if atom_id.shape[0] else 0
    if top > 4 * atom_id.shape[0] + 65_536:  # sparse ids: the tables below are as long as the largest id
        atom_id = np.unique(atom_id, return_inverse=True)[1].reshape(-1).astype(np.int32)
        top = int(atom_id.max()) + 1
    lengths = atom_tokens if atom_tokens.shape[0] else np.ones(atom_id.shape[0], dtype=np.int32)
    cut_start = np.full(top, -1, dtype=np.int64)
    cut_len = np.zeros(0, dtype=np.int64)
    if atom_tokens.shape[0]:
        low, high = np.zeros(top, dtype=np.int32), np.zeros(top, dtype=np.int32)
        _length_range(atom_id, lengths, low, high)
        varied = low < high  # ids that occur in several lengths
        if varied.any():
            some = varied[atom_id]
            keys = np.unique((atom_id[some].astype(np.int64) << 32) | lengths[some])
            ids, first = np.unique(keys >> 32, return_index=True)
            cut_start[ids] = first
            cut_len = keys & 0xFFFFFFFF
    if top + cut_len.shape[0] + n >= 1 << 31:
        raise OverflowError("more than 2^31 distinct pieces of content")
    return _cut(atom_offset, atom_id, lengths, missing, output_tokens, cut_start, cut_len, top, n)


@kernel
def _length_range(atom_id, lengths, low, high):
    """Shortest (0: unused) and longest length of every id."""
    for a in range(atom_id.shape[0]):
        i = atom_id[a]
        t = lengths[a]
        if low[i] == 0 or t < low[i]:
            low[i] = t
        high[i] = max(high[i], t)


@kernel
def _cut(atom_offset, atom_id, lengths, missing, output_tokens, cut_start, cut_len, top, n):
    total = 0
    for r in range(n):
        for a in range(atom_offset[r], atom_offset[r + 1]):
            c = cut_start[atom_id[a]]
            if c < 0:
                total += 1
            else:
                while cut_len[c] < lengths[a]:
                    c += 1
                    total += 1
                total += 1
        if missing[r]:
            total += 1
    offset = np.zeros(n + 1, np.int64)
    piece = np.empty(total, np.int32)
    tokens = np.empty(total, np.int32)
    p = 0
    pieces_base = top  # ids of cut pieces: top + position in cut_len; unknown outputs after them
    unique = top + cut_len.shape[0]
    for r in range(n):
        for a in range(atom_offset[r], atom_offset[r + 1]):
            c = cut_start[atom_id[a]]
            if c < 0:
                piece[p] = atom_id[a]
                tokens[p] = lengths[a]
                p += 1
            else:
                before = 0
                while True:
                    piece[p] = pieces_base + c
                    tokens[p] = cut_len[c] - before
                    p += 1
                    before = cut_len[c]
                    if before >= lengths[a]:
                        break
                    c += 1
        if missing[r]:
            piece[p] = unique
            unique += 1
            tokens[p] = output_tokens[r]
            p += 1
        offset[r + 1] = p
    return offset, piece, tokens


@kernel
def _slot(table, parent, element_piece, above, piece):
    """Slot of the child `piece` of `above` in an open-addressing table of elements: its entry, or the first free slot."""
    mask = table.shape[0] - 1
    h = (np.int64(above) * 7919 + np.int64(piece) * 104729) & 0x7FFFFFFFFFFF
    h ^= h >> 17
    s = (h * 31 + (h >> 7)) & mask
    while table[s] >= 0 and (parent[table[s]] != above or element_piece[table[s]] != piece):
        s = (s + 1) & mask
    return s


@kernel
def intern_some(
    state, piece_offset, piece_id, piece_tokens, namespace, table, element_piece, element_tokens, element_end, parent,
    run_offset, run_start, run_end, created_end,
):  # fmt: skip
    """Interns rows from state[ROW] on, as long as runs are sure to fit. state int64 (3,): next row, elements, runs.

    A row follows the tree as far as it can (a child made right after its parent has the next id; other children are in
    the table), then all the rest of it is new: one table entry a row at most. piece_tokens empty: all one token.
    """
    n = namespace.shape[0]
    single = piece_tokens.shape[0] == 0
    n_elements = state[STATE_ELEMENTS]
    n_runs = state[STATE_RUNS]
    r = state[STATE_ROW]
    while r < n:
        p = piece_offset[r]
        stop = piece_offset[r + 1]
        if n_runs + (stop - p) + 1 > run_start.shape[0]:
            break
        first_piece = p
        cur = np.int64(-1 - namespace[r])
        while p < stop:
            c = piece_id[p]
            follow = cur + 1
            if cur >= 0 and follow < n_elements and parent[follow] == cur and element_piece[follow] == c:
                # on the run: go as far as it agrees
                p += 1
                cur = follow
                while (
                    p < stop
                    and cur + 1 < n_elements
                    and parent[cur + 1] == cur
                    and element_piece[cur + 1] == piece_id[p]
                ):
                    cur += 1
                    p += 1
                run_end[n_runs - 1] = p - first_piece
                continue
            appended = cur >= 0 and follow == n_elements
            child = np.int64(-1)
            if not appended:
                s = _slot(table, parent, element_piece, cur, c)
                child = np.int64(table[s])
                if child < 0:
                    table[s] = n_elements
            if child >= 0:
                cur = child
                run_start[n_runs] = child
                p += 1
                run_end[n_runs] = p - first_piece
                n_runs += 1
                continue
            # new from here to the end of the row
            if not appended:
                run_start[n_runs] = n_elements
                n_runs += 1
            depth = element_end[cur] if cur >= 0 else np.int64(0)
            while p < stop:
                t = 1 if single else piece_tokens[p]
                depth += t
                element_piece[n_elements] = piece_id[p]
                element_tokens[n_elements] = t
                element_end[n_elements] = depth
                parent[n_elements] = cur
                cur = n_elements
                n_elements += 1
                p += 1
            run_end[n_runs - 1] = p - first_piece
        r += 1
        run_offset[r] = n_runs
        created_end[r - 1] = n_elements
    state[STATE_ROW] = r
    state[STATE_ELEMENTS] = n_elements
    state[STATE_RUNS] = n_runs


def intern_rows(piece_offset, piece_id, piece_tokens, namespace):
    """Interns rows in order. piece_id int32; piece_tokens int32, empty: all one token. Memory is only touched as used.

    Returns element_tokens int32, element_end int64, parent int32, run_offset, run_start, run_end int64, created_end int64.
    """
    n, total = namespace.shape[0], int(piece_offset[-1])
    size = 1 << max(10, int(3 * n).bit_length())
    table = np.full(size, -1, np.int32)
    element_piece, element_tokens = np.empty(total, np.int32), np.empty(total, np.int32)
    element_end, parent = np.empty(total, np.int64), np.empty(total, np.int32)
    run_offset, created_end = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    longest = int((piece_offset[1:] - piece_offset[:-1]).max()) if n else 0
    run_start, run_end = np.empty(4 * n + longest + 16, np.int64), np.empty(4 * n + longest + 16, np.int64)
    state = np.zeros(3, np.int64)
    while True:
        intern_some(
            state, piece_offset, piece_id, piece_tokens, namespace, table, element_piece, element_tokens, element_end,
            parent, run_offset, run_start, run_end, created_end,
        )  # fmt: skip
        if state[STATE_ROW] == n:
            break
        more = run_start.shape[0] + longest
        run_start = np.concatenate([run_start, np.empty(more, np.int64)])
        run_end = np.concatenate([run_end, np.empty(more, np.int64)])
    e, k = int(state[STATE_ELEMENTS]), int(state[STATE_RUNS])
    return element_tokens[:e], element_end[:e], parent[:e], run_offset, run_start[:k], run_end[:k], created_end


@kernel
def chain_runs(run_offset, run_start, run_end, first):
    """Runs of elements to runs of chain ids; adjacent runs that continue each other are joined, empty ones dropped."""
    n = run_offset.shape[0] - 1
    offset = np.zeros(n + 1, np.int64)
    start = np.empty(run_start.shape[0], np.int64)
    end = np.empty(run_start.shape[0], np.int64)
    k = 0
    for r in range(n):
        elements = 0
        blocks = 0
        for j in range(run_offset[r], run_offset[r + 1]):
            length = run_end[j] - elements
            elements = run_end[j]
            a = first[run_start[j]]
            b = first[run_start[j] + length]
            if b > a:
                if k > offset[r] and start[k - 1] + (blocks - (end[k - 2] if k - 1 > offset[r] else 0)) == a:
                    blocks += b - a
                    end[k - 1] = blocks
                else:
                    start[k] = a
                    blocks += b - a
                    end[k] = blocks
                    k += 1
        offset[r + 1] = k
    return offset, start[:k].copy(), end[:k].copy()
