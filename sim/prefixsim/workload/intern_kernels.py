"""Compiled interning. Twins: `workload.reference`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel


def cut_atoms(atom_offset, prompt_atoms, atom_id, atom_tokens, output_tokens):
    """Atoms to pieces that are equal or disjoint; unknown outputs get a unique piece.

    atom_tokens may be empty: every atom is one token. Returns (piece_offset int64 (n+1,), piece_id int64 (P,),
    piece_tokens int32 (P,) or empty when all are one token).
    """
    n = atom_offset.shape[0] - 1
    known = (atom_offset[1:] - atom_offset[:-1]) > prompt_atoms
    missing = ~known & (output_tokens > 0)
    if atom_tokens.shape[0] == 0 and not missing.any():
        return atom_offset, atom_id.astype(np.int64), atom_tokens
    lengths = atom_tokens if atom_tokens.shape[0] else np.ones(atom_id.shape[0], dtype=np.int32)
    top = int(atom_id.max()) + 1 if atom_id.shape[0] else 0
    low = np.full(top, np.iinfo(np.int32).max, dtype=np.int32)
    high = np.zeros(top, dtype=np.int32)
    np.minimum.at(low, atom_id, lengths)
    np.maximum.at(high, atom_id, lengths)
    varied = low < high  # ids that occur in several lengths (never for ids unused)
    if varied.any():
        pairs = np.unique(
            np.stack([atom_id[varied[atom_id]].astype(np.int64), lengths[varied[atom_id]].astype(np.int64)]),
            axis=1,
        )
        ids, first = np.unique(pairs[0], return_index=True)
        cut_start = np.full(top, -1, dtype=np.int64)
        cut_start[ids] = first
        cut_len = pairs[1]
    else:
        cut_start = np.full(top, -1, dtype=np.int64)
        cut_len = np.zeros(0, dtype=np.int64)
    return _cut(atom_offset, atom_id, lengths, missing, output_tokens, cut_start, cut_len, top, n)


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
    piece = np.empty(total, np.int64)
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
def _slot(keys_parent, keys_piece, mask, parent, piece):
    """Slot of (parent, piece) in an open-addressing table: its entry, or the first free slot."""
    h = (parent * 7919 + piece * 104729) & 0x7FFFFFFFFFFF
    h ^= h >> 17
    s = (h * 31 + (h >> 7)) & mask
    while keys_piece[s] != -1 and (keys_parent[s] != parent or keys_piece[s] != piece):
        s = (s + 1) & mask
    return s


@kernel
def intern_rows(piece_offset, piece_id, piece_tokens, namespace):
    """Interns rows in order. piece_tokens empty: all one token.

    Returns element_tokens int32, element_end int64, parent int32, run_offset, run_start, run_end int64, created_end int64.
    """
    n = piece_offset.shape[0] - 1
    total = piece_offset[n]
    single = piece_tokens.shape[0] == 0
    element_piece = np.empty(total, np.int64)
    element_tokens = np.empty(total, np.int32)
    element_end = np.empty(total, np.int64)
    parent = np.empty(total, np.int32)
    run_offset = np.zeros(n + 1, np.int64)
    created_end = np.zeros(n, np.int64)
    cap_runs = max(16, 4 * n)
    run_start = np.empty(cap_runs, np.int64)
    run_end = np.empty(cap_runs, np.int64)
    size = 1024
    keys_parent = np.empty(size, np.int64)
    keys_piece = np.full(size, -1, np.int64)
    values = np.empty(size, np.int64)
    used = 0
    n_elements = 0
    n_runs = 0
    for r in range(n):
        cur = -1 - namespace[r]
        previous = -2 - n_elements  # never the id before a first element
        count = 0
        for p in range(piece_offset[r], piece_offset[r + 1]):
            c = piece_id[p]
            follow = cur + 1
            child = -1
            if cur >= 0 and follow < n_elements and parent[follow] == cur and element_piece[follow] == c:
                child = follow
            else:
                implicit = cur >= 0 and follow == n_elements
                if not implicit:
                    s = _slot(keys_parent, keys_piece, size - 1, cur, c)
                    if keys_piece[s] != -1:
                        child = values[s]
                    else:
                        keys_parent[s] = cur
                        keys_piece[s] = c
                        values[s] = n_elements
                        used += 1
                if child < 0:
                    child = n_elements
                    element_piece[child] = c
                    t = 1 if single else piece_tokens[p]
                    element_tokens[child] = t
                    element_end[child] = t + (element_end[cur] if cur >= 0 else 0)
                    parent[child] = cur
                    n_elements += 1
                    if used * 2 > size:
                        old_parent, old_piece, old_values = keys_parent, keys_piece, values
                        size *= 4
                        keys_parent = np.empty(size, np.int64)
                        keys_piece = np.full(size, -1, np.int64)
                        values = np.empty(size, np.int64)
                        for i in range(old_piece.shape[0]):
                            if old_piece[i] != -1:
                                s = _slot(keys_parent, keys_piece, size - 1, old_parent[i], old_piece[i])
                                keys_parent[s] = old_parent[i]
                                keys_piece[s] = old_piece[i]
                                values[s] = old_values[i]
            count += 1
            if child == previous + 1 and n_runs > run_offset[r]:
                run_end[n_runs - 1] = count
            else:
                if n_runs == run_start.shape[0]:
                    bigger = np.empty(2 * n_runs, np.int64)
                    bigger[:n_runs] = run_start
                    run_start = bigger
                    bigger2 = np.empty(2 * n_runs, np.int64)
                    bigger2[:n_runs] = run_end
                    run_end = bigger2
                run_start[n_runs] = child
                run_end[n_runs] = count
                n_runs += 1
            previous = child
            cur = child
        run_offset[r + 1] = n_runs
        created_end[r] = n_elements
    return (
        element_tokens[:n_elements].copy(),
        element_end[:n_elements].copy(),
        parent[:n_elements].copy(),
        run_offset,
        run_start[:n_runs].copy(),
        run_end[:n_runs].copy(),
        created_end,
    )


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
