# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled parts of finding divergence points and of editing rows. Twins: the plain way
in `rewrite.rewrite` and `anchors.row_anchors`; `tests/analysis/test_divergence.py`."""

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

MOST_POINTS_A_ROW = 4096
HASH_MASK = (1 << 42) - 1
HASH_FACTOR = 1_000_003
INSIDE = -2
"""A position lies inside an atom."""


@kernel
def point_bounds(
    visit_offset, visit_segment, visit_end, prompt, creator, depth, point_offset, point_depth, root_of, window
):
    """int64 (points,): for each point, tokens that rows diverging there or up to `window` tokens behind it have not shared:
    an upper bound on what equal branches could share. Points of segment s are point_offset[s] .. point_offset[s+1], by
    depth; those of roots (depth 0) come after all segments: root_of[r] is row r's. creator, depth: each diverging row and
    where."""
    out = np.zeros(point_depth.shape[0], np.int64)
    for i in range(creator.shape[0]):
        r, d = creator[i], depth[i]
        gain = prompt[r] - d
        if gain <= 0:
            continue
        if d <= window:
            out[root_of[r]] += gain
        budget = MOST_POINTS_A_ROW
        begin = 0
        for v in range(visit_offset[r], visit_offset[r + 1]):
            s, end = visit_segment[v], visit_end[v]
            if begin >= d:
                break
            if end >= d - window:
                low, high = point_offset[s], point_offset[s + 1]
                while low < high:  # first point at or behind d - window
                    middle = (low + high) // 2
                    if point_depth[middle] < d - window:
                        low = middle + 1
                    else:
                        high = middle
                while low < point_offset[s + 1] and point_depth[low] <= min(d, end) and budget > 0:
                    out[low] += gain
                    low += 1
                    budget -= 1
            begin = end
    return out


@kernel
def _count_of(values, branches, value):
    """Branches that share an anchor (values ascending), 0 if it is not shared."""
    low, high = 0, values.shape[0]
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return branches[low] if low < values.shape[0] and values[low] == value else 0


@kernel
def token_anchor(ids, start, stop, window):
    """Hash of the window of tokens that begins at each position of ids[start:stop], int64 (max(0, stop-start-window+1),)."""
    m = max(0, stop - start - window + 1)
    out = np.zeros(m, np.int64)
    for i in range(m):
        h = np.int64(0)
        for j in range(window):
            h = ((h * HASH_FACTOR) ^ (np.int64(ids[start + i + j]) + 1)) & HASH_MASK
            h ^= h >> 19
        out[i] = h
    return out


@kernel
def atom_anchor(content, skipped):
    """Hash of one atom, or of its rest when `skipped` tokens of it are left out."""
    h = ((np.int64(skipped) * HASH_FACTOR) ^ (np.int64(content) + 1)) & HASH_MASK
    h = ((h * HASH_FACTOR) ^ (h >> 21)) & HASH_MASK
    return h ^ (h >> 19)


@kernel
def first_token_anchor(rows, depth, limit, atom_offset, prompt_tokens, atom_id, values, branches, window):
    """int64 (k,): tokens between `depth` and the first shared window of each row; -1: none within `limit` tokens. Of the
    windows that overlap the first shared one, the first that is common (above 0.6 of their most branches) counts."""
    out = np.full(rows.shape[0], -1, np.int64)
    counts = np.zeros(window, np.int64)
    for i in range(rows.shape[0]):
        r = rows[i]
        start = atom_offset[r] + depth
        stop = min(atom_offset[r] + prompt_tokens[r], start + limit)
        at = -1
        most = 0
        for w in range(stop - start - window + 1):
            h = np.int64(0)
            for j in range(window):
                h = ((h * HASH_FACTOR) ^ (np.int64(atom_id[start + w + j]) + 1)) & HASH_MASK
                h ^= h >> 19
            count = _count_of(values, branches, h)
            if at < 0 and count > 0:
                at = w
                counts[:] = 0
            if at >= 0:
                counts[w - at] = count
                most = max(most, count)
                if w - at == window - 1:
                    break
        if at >= 0:
            for j in range(window):
                if counts[j] > 0.6 * most:
                    out[i] = at + j
                    break
    return out


@kernel
def first_atom_anchor(rows, depth, limit, atom_offset, prompt_atoms, atom_id, atom_tokens, values, branches, least):
    """The same where rows are atoms: tokens before the first shared atom of at least `least` tokens, within `limit` atoms."""
    out = np.full(rows.shape[0], -1, np.int64)
    for i in range(rows.shape[0]):
        r = rows[i]
        begin = 0
        seen = 0
        for a in range(atom_offset[r], atom_offset[r] + prompt_atoms[r]):
            end = begin + atom_tokens[a]
            if end > depth:
                skipped = max(0, depth - begin)
                long = end - max(begin, depth) >= least
                if long and _count_of(values, branches, atom_anchor(atom_id[a], skipped)) > 0:
                    out[i] = max(begin, depth) - depth
                    break
                seen += 1
                if seen >= limit:
                    break
            begin = end
    return out


@kernel
def atom_positions(rows, tokens, atom_offset, atom_tokens):
    """int64 (k,): number of whole atoms in the first `tokens[i]` tokens of each row; INSIDE where that cuts an atom."""
    out = np.empty(rows.shape[0], np.int64)
    for i in range(rows.shape[0]):
        a, end = atom_offset[rows[i]], atom_offset[rows[i] + 1]
        total = 0
        count = 0
        while total < tokens[i] and a + count < end:
            total += atom_tokens[a + count]
            count += 1
        out[i] = count if total == tokens[i] else INSIDE
    return out


@kernel
def move_atoms(atom_offset, atom_id, atom_tokens, begin, end, to, drop):
    """Rows with atoms [begin, end) moved to just before atom `to` (>= end), or dropped; begin -1: unchanged. int64 (n,) each.
    Returns (offset, ids, tokens); tokens is empty where atom_tokens is."""
    n = atom_offset.shape[0] - 1
    offset = np.zeros(n + 1, np.int64)
    for r in range(n):
        size = atom_offset[r + 1] - atom_offset[r]
        if drop and begin[r] >= 0:
            size -= end[r] - begin[r]
        offset[r + 1] = offset[r] + size
    ids = np.empty(offset[n], np.int32)
    tokens = np.empty(offset[n] if atom_tokens.shape[0] else 0, np.int32)
    for r in range(n):
        a, stop = atom_offset[r], atom_offset[r + 1]
        p = offset[r]
        b, e, t = stop - a, stop - a, stop - a
        if begin[r] >= 0:
            b, e, t = begin[r], end[r], to[r]
        for part in range(4):
            low, high = 0, b
            if part == 1:
                low, high = e, t
            elif part == 2:
                low, high = b, e
                if drop:
                    continue
            elif part == 3:
                low, high = t, stop - a
            for k in range(a + low, a + high):
                ids[p] = atom_id[k]
                if atom_tokens.shape[0]:
                    tokens[p] = atom_tokens[k]
                p += 1
    return offset, ids, tokens
