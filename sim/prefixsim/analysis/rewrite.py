# mypy: disable-error-code="no-untyped-call"
"""Edited workloads: pieces of prompts removed, moved, put in. What an advice promises is measured on such a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prefixsim.analysis.divergence_kernels import atom_positions, move_atoms
from prefixsim.workload.table import I32, I64, Workload


@dataclass(frozen=True, slots=True)
class Keep:
    """Tokens [begin, end) of the original row (end -1: to its end)."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Put:
    """`tokens` tokens of new content; equal `content` (>= 0) means equal tokens."""

    content: int
    tokens: int


Plan = Sequence[Keep | Put]


def rewrite(workload: Workload, plans: Mapping[int, Plan]) -> Workload:
    """A copy of the workload in which row r is what plans[r] says, counted in tokens of prompt + output. Output is kept by
    a last `Keep(_, -1)`; prompt tokens change by what was put in or left out. Sessions' later turns are rows of their own."""
    w = workload
    tails = _Tails(int(w.atom_id.max(initial=0)) + 1)
    ids: list[I32] = []
    lengths: list[I32] = []
    counts = np.diff(w.atom_offset)
    prompt_tokens, prompt_atoms = w.prompt_tokens.copy(), w.prompt_atoms.copy()
    done = 0
    for r in sorted(plans):
        a = int(w.atom_offset[r])
        _copy(w, done, a, ids, lengths)
        done = a + int(counts[r])
        new_ids, new_lengths = _row(w, r, plans[r], tails)
        after = int(counts[r] - w.prompt_atoms[r])  # atoms of the output stay whole
        change = int(new_lengths.sum()) - int(_lengths(w, a, done).sum())
        prompt_tokens[r] += change
        prompt_atoms[r] = new_ids.shape[0] - after
        counts[r] = new_ids.shape[0]
        ids.append(new_ids)
        lengths.append(new_lengths)
    _copy(w, done, int(w.atom_offset[-1]), ids, lengths)
    offset = np.zeros(w.n + 1, dtype=np.int64)
    np.cumsum(counts, out=offset[1:])
    atom_tokens = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int32)
    single = w.atom_tokens is None and bool((atom_tokens == 1).all())
    return replace(
        w,
        atom_id=np.concatenate(ids) if ids else w.atom_id,
        atom_tokens=None if single else atom_tokens,
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        prompt_tokens=prompt_tokens,
    )


def move(workload: Workload, rows: I64, begin: I64, end: I64, to: I64 | None) -> Workload:
    """A copy in which each of the rows (int64 (k,), distinct) has its tokens [begin, end) moved to just before its token `to`
    (>= end), or left out where `to` is None; all inside the prompt. Compiled; rows whose pieces cut an atom go the slow way."""
    w = workload
    target = end if to is None else to
    if w.atom_tokens is None:
        places = [begin, end, target]
    else:
        places = [atom_positions(rows, tokens, w.atom_offset, w.atom_tokens) for tokens in (begin, end, target)]
    whole = (places[0] >= 0) & (places[1] >= 0) & (places[2] >= 0)
    spread = [np.full(w.n, -1, dtype=np.int64) for _ in places]
    for column, values in zip(spread, places, strict=True):
        column[rows[whole]] = values[whole]
    lengths = w.atom_tokens if w.atom_tokens is not None else np.zeros(0, dtype=np.int32)
    offset, ids, tokens = move_atoms(w.atom_offset, w.atom_id, lengths, spread[0], spread[1], spread[2], to is None)
    prompt_tokens, prompt_atoms = w.prompt_tokens.copy(), w.prompt_atoms.copy()
    if to is None:
        prompt_tokens[rows[whole]] -= (end - begin)[whole]
        prompt_atoms[rows[whole]] -= (places[1] - places[0])[whole]
    moved = replace(
        w,
        atom_offset=offset,
        atom_id=ids,
        atom_tokens=None if w.atom_tokens is None else tokens,
        prompt_tokens=prompt_tokens,
        prompt_atoms=prompt_atoms,
    )
    plans: dict[int, Plan] = {}
    for i in np.flatnonzero(~whole).tolist():
        b, e, t = int(begin[i]), int(end[i]), int(target[i])
        kept = () if to is None else (Keep(b, e),)
        plans[int(rows[i])] = (Keep(0, b), Keep(e, t), *kept, Keep(t, -1))
    return rewrite(moved, plans) if plans else moved


class _Tails:
    """Ids for what is new: put-in content, and the rest of an atom whose beginning was left out."""

    def __init__(self, first_free: int) -> None:
        self.free = first_free
        self.known: dict[tuple[str, int, int], int] = {}

    def id(self, kind: str, content: int, offset: int = 0) -> int:
        key = (kind, content, offset)
        if key not in self.known:
            self.known[key] = self.free
            self.free += 1
        return self.known[key]


def _lengths(w: Workload, a: int, b: int) -> I32:
    return np.ones(b - a, dtype=np.int32) if w.atom_tokens is None else w.atom_tokens[a:b]


def _copy(w: Workload, a: int, b: int, ids: list[I32], lengths: list[I32]) -> None:
    if b > a:
        ids.append(w.atom_id[a:b])
        lengths.append(_lengths(w, a, b))


def _row(w: Workload, r: int, plan: Plan, tails: _Tails) -> tuple[I32, I32]:
    a, b = int(w.atom_offset[r]), int(w.atom_offset[r + 1])
    lengths = _lengths(w, a, b)
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if b > a else 0
    ids: list[I32] = []
    sizes: list[I32] = []
    for part in plan:
        if isinstance(part, Put):
            size = 1 if w.atom_tokens is None else part.tokens
            for i in range(part.tokens // size if size else 0):
                ids.append(np.array([tails.id("put", part.content, i)], dtype=np.int32))
                sizes.append(np.array([size], dtype=np.int32))
            continue
        begin, end = part.begin, total if part.end < 0 else min(part.end, total)
        if end <= begin:
            continue
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(ends, end, side="left"))
        got, size_of = w.atom_id[a + first : a + last + 1].copy(), lengths[first : last + 1].copy()
        if size_of.shape[0]:
            size_of[-1] -= int(ends[last]) - end
            skipped = begin - (int(ends[first]) - int(lengths[first]))
            if skipped:
                got[0] = tails.id("tail", int(got[0]), skipped)
                size_of[0] -= skipped
        ids.append(got)
        sizes.append(size_of)
    if not ids:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    return np.concatenate(ids), np.concatenate(sizes)


def only(workload: Workload, rows: I64) -> Workload:
    """The given rows, in ascending order."""
    from prefixsim.workload.edit import take

    return take(workload, np.sort(rows))
