# mypy: disable-error-code="no-untyped-call"
"""Comparing what follows behind a branch point: anchors are content that occurs in several branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.divergence_kernels import atom_anchor, first_atom_anchor, first_token_anchor, token_anchor
from prefixsim.analysis.rewrite import Keep, Plan
from prefixsim.workload.table import I64, Workload

ANCHOR_TOKENS = 8
"""So many equal tokens in two branches are taken as the same content."""
SAMPLE, SCAN = 64, 4096


def row_anchors(workload: Workload, r: int, depth: int, limit: int) -> I64:
    """Hashes of what follows in row r's prompt behind `depth`, in order. Token rows: each window of ANCHOR_TOKENS tokens; atoms:
    each atom at least that long (the first may be a rest)."""
    a = int(workload.atom_offset[r])
    if workload.atom_tokens is None:
        stop = min(a + int(workload.prompt_tokens[r]), a + depth + limit)
        found: I64 = token_anchor(workload.atom_id, a + depth, stop, ANCHOR_TOKENS)
        return found
    out = []
    begin = 0
    for i in range(a, a + int(workload.prompt_atoms[r])):
        end = begin + int(workload.atom_tokens[i])
        if end - max(begin, depth) >= ANCHOR_TOKENS:
            out.append(atom_anchor(int(workload.atom_id[i]), max(0, depth - begin)))
            if len(out) >= limit:
                break
        begin = end
    return np.array(out, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Shared:
    """Anchors that occur in at least two branches: values int64 ascending, and in how many of the sampled branches."""

    values: I64
    branches: I64

    def first(self, workload: Workload, rows: I64, depth: int, limit: int) -> I64:
        """int64 (k,): tokens before the first shared anchor of each row; -1: none. A window that straddles the end of the
        piece may be shared by chance by the branches whose pieces end alike: of the windows that overlap it, the first common
        one counts."""
        w, found = workload, (self.values, self.branches, ANCHOR_TOKENS)
        if not self.values.shape[0]:
            return np.full(rows.shape[0], -1, dtype=np.int64)
        out: I64
        if w.atom_tokens is None:
            out = first_token_anchor(rows, depth, limit, w.atom_offset, w.prompt_tokens, w.atom_id, *found)
        else:
            out = first_atom_anchor(rows, depth, limit, w.atom_offset, w.prompt_atoms, w.atom_id, w.atom_tokens, *found)
        return out


def shared_anchors(workload: Workload, rows: I64, child: I64, depth: int) -> tuple[Shared, I64, list[I64]]:
    """What is shared between branches, seen in one row each of up to SAMPLE branches; those rows, and their anchors."""
    _, first, size = np.unique(child, return_index=True, return_counts=True)
    by_size = np.argsort(-size, kind="stable")
    chosen = by_size[: SAMPLE // 2]
    rest = by_size[SAMPLE // 2 :]
    if rest.shape[0]:
        spread = np.linspace(0, rest.shape[0] - 1, min(rest.shape[0], SAMPLE // 2)).round().astype(np.int64)
        chosen = np.concatenate([chosen, rest[np.unique(spread)]])
    seen = rows[first[chosen]]
    sampled = [row_anchors(workload, int(r), depth, SCAN) for r in seen]
    values, counts = np.unique(np.concatenate([np.unique(s) for s in sampled]), return_counts=True)
    return Shared(values[counts >= 2], counts[counts >= 2].astype(np.int64)), seen, sampled


# ---- the same parts in other orders ------------------------------------------------------------------------------


def reordered(sampled: list[I64]) -> bool:
    """True where two branches often hold each other's beginning further back."""
    some = [a for a in sampled[:24] if a.shape[0]]
    pairs = swapped = 0
    for i, left in enumerate(some):
        for right in some[i + 1 :]:
            pairs += 1
            swapped += bool((right[1:] == left[0]).any() and (left[1:] == right[0]).any())
    return pairs > 0 and swapped * 5 >= pairs


def common_order(workload: Workload, rows: I64, depth: int) -> dict[int, Plan]:
    """Plans (by row) that put the parts behind `depth` in one order, commonest first: of each row the leading run of atoms
    that several rows have."""
    assert workload.atom_tokens is not None
    parts: dict[int, list[tuple[int, int, int]]] = {}
    count: dict[int, int] = {}
    for r in rows.tolist():
        a, b = int(workload.atom_offset[r]), int(workload.atom_offset[r]) + int(workload.prompt_atoms[r])
        ends = np.cumsum(workload.atom_tokens[a:b], dtype=np.int64)
        first = int(np.searchsorted(ends, depth, side="right"))
        begin = depth
        parts[r] = []
        for i in range(first, b - a):
            parts[r].append((int(workload.atom_id[a + i]), begin, int(ends[i])))
            begin = int(ends[i])
        for content in {p[0] for p in parts[r]}:
            count[content] = count.get(content, 0) + 1
    plans: dict[int, Plan] = {}
    for r, row in parts.items():
        run = 0
        while run < len(row) and count[row[run][0]] > 1:
            run += 1
        ordered = sorted(row[:run], key=lambda p: (-count[p[0]], p[0]))
        if run > 1 and ordered != row[:run]:
            plans[r] = (Keep(0, depth), *(Keep(b, e) for _, b, e in ordered), Keep(row[run - 1][2], -1))
    return plans
