"""Plain-Python twins of the workload's kernels. They read like the definitions and are only for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixsim.workload.table import Workload

Atom = tuple[int, int]


def copy_ranges(flat: Sequence[int], start: Sequence[int], count: Sequence[int]) -> list[int]:
    """Twin of `ragged_kernels.copy_ranges`."""
    return [x for a, n in zip(start, count, strict=True) for x in flat[a : a + n]]


def atoms_of(w: Workload, r: int) -> tuple[list[Atom], list[Atom]]:
    """(prompt atoms, output atoms) of a request, each (content id, tokens); an unknown output has an id of its own."""
    a, b = int(w.atom_offset[r]), int(w.atom_offset[r + 1])
    lengths = [1] * (b - a) if w.atom_tokens is None else w.atom_tokens[a:b].tolist()
    atoms = list(zip(w.atom_id[a:b].tolist(), lengths, strict=True))
    m = int(w.prompt_atoms[r])
    outputs = atoms[m:] or [(-1 - r, int(w.output_tokens[r]))]
    return atoms[:m], outputs


def tokens_of(w: Workload, r: int) -> list[tuple[int, int]]:
    """The whole sequence, token by token: token j of content i is (i, j). Equal pairs mean equal tokens."""
    prompt, output = atoms_of(w, r)
    return [(i, j) for i, n in prompt + output for j in range(n)]


def chain_rows(w: Workload, namespace: Sequence[int], granularity: int) -> list[list[int]]:
    """Chain ids by definition: a number for each distinct (namespace, tokens up to the block's end), by first appearance."""
    known: dict[Any, int] = {}
    rows = []
    for r in range(w.n):
        tokens = tokens_of(w, r)
        row = []
        for k in range(len(tokens) // granularity):
            key = (int(namespace[r]), tuple(tokens[: (k + 1) * granularity]))
            row.append(known.setdefault(key, len(known)))
        rows.append(row)
    return rows


def cut_atoms(rows: Sequence[Sequence[Atom]]) -> list[list[tuple[Any, int]]]:
    """Twin of `intern_kernels.cut_atoms`: pieces ((content id, first token), tokens) that are equal or disjoint."""
    lengths: dict[int, set[int]] = {}
    for row in rows:
        for i, n in row:
            lengths.setdefault(i, set()).add(n)
    out = []
    for row in rows:
        pieces: list[tuple[Any, int]] = []
        for i, n in row:
            ends = sorted(e for e in lengths[i] if e <= n)
            begin = 0
            for end in ends:
                pieces.append(((i, begin), end - begin))
                begin = end
        out.append(pieces)
    return out


def intern_rows(rows: Sequence[Sequence[tuple[Any, int]]], namespace: Sequence[int]) -> dict[str, list[Any]]:
    """Twin of `intern_kernels.intern_rows`: elements in order of creation, and each row's elements written out."""
    child: dict[Any, int] = {}
    tokens: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    elements: list[list[int]] = []
    created: list[int] = []
    for row, space in zip(rows, namespace, strict=True):
        above, mine = -1 - int(space), []
        for piece, n in row:
            e = child.setdefault((above, piece), len(tokens))
            if e == len(tokens):
                tokens.append(n)
                ends.append(n + (ends[above] if above >= 0 else 0))
                parents.append(above)
            mine.append(e)
            above = e
        elements.append(mine)
        created.append(len(tokens))
    return {"tokens": tokens, "end": ends, "parent": parents, "rows": elements, "created_end": created}


def assemble(p: Any) -> list[tuple[list[Atom], list[Atom]]]:
    """Twin of `generators.assemble.assemble`: (prompt atoms, output atoms) of every request."""
    out: list[tuple[list[Atom], list[Atom]]] = []
    head = tail = 0
    for r in range(len(p.parent)):
        h, t = int(p.head_count[r]), int(p.tail_count[r])
        prompt = list(zip(p.head_id[head : head + h].tolist(), p.head_tokens[head : head + h].tolist(), strict=True))
        head += h
        above = int(p.parent[r])
        if above >= 0:
            before, answer = out[above]
            prompt += before[int(p.skip[r]) :]
            prompt += answer if p.keep_thinking else answer[-1:]
        prompt += list(zip(p.tail_id[tail : tail + t].tolist(), p.tail_tokens[tail : tail + t].tolist(), strict=True))
        tail += t
        thinking = int(p.thinking_tokens[r])
        answer = [(int(p.thinking_id[r]), thinking)] if thinking else []
        answer.append((int(p.output_id[r]), int(p.output_tokens[r]) - thinking))
        out.append((prompt, answer))
    return out


def nominal_arrivals(
    after: Sequence[int], delay: Sequence[int], arrival: Sequence[int], given: Sequence[bool]
) -> list[int]:
    """Twin of `ragged_kernels.nominal_arrivals` for links without circles."""
    out = list(arrival)

    def resolve(r: int) -> int:
        if after[r] >= 0 and not given[r]:
            out[r] = min(resolve(after[r]) + delay[r], 9_000_000_000_000_000_000)
        return out[r]

    for r in range(len(out)):
        resolve(r)
    return out


def rows_written_out(trie: Any) -> list[list[int]]:
    """Element ids of every row of a `Trie`, from its runs."""
    rows = []
    for r in range(trie.run_offset.shape[0] - 1):
        before, row = 0, []
        for j in range(int(trie.run_offset[r]), int(trie.run_offset[r + 1])):
            n = int(trie.run_end[j]) - before
            row += list(range(int(trie.run_start[j]), int(trie.run_start[j]) + n))
            before = int(trie.run_end[j])
        rows.append(row)
    return rows


def same_partition(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """True when equal entries of `a` are at the places of equal entries of `b`, and the other way round."""
    return len(a) == len(b) and len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def choose_sources(
    length: Sequence[int], prompts: Sequence[int], shared: Sequence[int], back: Sequence[int], around: int
) -> tuple[list[int], list[int]]:
    """Twin of `generators.reuse_kernels.choose_sources`: (source, taken tokens) of every request."""
    source: list[int] = []
    taken: list[int] = []
    claimed = [0] * len(length)
    for r in range(len(length)):
        want = min(shared[r], prompts[r])
        middle = max(0, r - max(1, back[r]))
        steps = [(k + 1) // 2 if k % 2 else -(k // 2) for k in range(2 * around)]
        looked = [s for s in (middle + d for d in steps) if 0 <= s < r]
        if want == 0 or r == 0:
            source.append(-1)
            taken.append(0)
            continue
        long = [s for s in looked if length[s] - 1 >= want]
        own = [s for s in long if taken[s] < want and claimed[s] < want]
        sure = [s for s in range(r) if length[s] - 1 >= 1 << (want - 1).bit_length()]
        if own or long:
            best = (own or long)[0]
        elif length[r - 1] - 1 < want and sure:
            best = sure[-1]
        else:
            best = max([r - 1, *looked], key=lambda s: length[s])
            if length[best] - 1 < want:
                best = max(range(r), key=lambda s: length[s])
        source.append(best)
        taken.append(min(want, length[best] - 1))
        claimed[best] = max(claimed[best], taken[r])
    return source, taken


def reuse_profile(w: Workload, namespace: Sequence[int]) -> tuple[list[int], list[int]]:
    """Twin of `profile_kernels.reuse_profile`, token by token: (shared tokens, requests since their last use)."""
    used: dict[Any, int] = {}
    shared, back = [], []
    for r in range(w.n):
        tokens = [(int(namespace[r]), *t) for t in tokens_of(w, r)]
        prefixes = [tuple(tokens[: k + 1]) for k in range(len(tokens))]
        known = 0
        while known < int(w.prompt_tokens[r]) and prefixes[known] in used:
            known += 1
        shared.append(known)
        back.append(r - used[prefixes[known - 1]] if known else 0)
        for prefix in prefixes[:-1]:
            used[prefix] = r
    return shared, back
