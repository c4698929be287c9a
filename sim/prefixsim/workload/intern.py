"""Interning: a workload becomes a trie of elements once; every granularity's chain ids follow from it without hashing.

1. Atoms of one content id that occur in several lengths are cut at those lengths: pieces are then equal or disjoint.
2. Pieces are interned on (parent element, piece), roots being namespaces. Element ids are dense, and a child created right
   after its parent has the parent's id + 1, so a row is a few *runs* of consecutive ids and only branches are hashed.
3. Chain ids of granularity g: element e ends at depth end[e], so it completes end[e]//g - (end[e]-tokens[e])//g blocks;
   a prefix sum over elements numbers all blocks densely. Two sequences have the same id for block k exactly when they agree
   on all tokens up to (k+1)*g, namespace included: they share the element holding token (k+1)*g - 1, hence the path to it.
   Runs of elements become runs of chain ids.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from prefixsim.workload.intern_kernels import chain_runs, cut_atoms, intern_rows
from prefixsim.workload.table import I32, I64, Workload

NamespaceRule = Literal["vllm", "sglang", "none"]


@dataclass(frozen=True, slots=True)
class Trie:
    """All sequences (prompt + output) of a workload, interned under one namespace rule.

    element_tokens int32 (E,): length of an element; element_end int64 (E,): its depth in tokens, itself included.
    parent int32 (E,): parent element, or -1 - namespace for first elements.
    run_offset int64 (n+1,), run_start int64 (R,), run_end int64 (R,): request r's elements are its runs
    j in [run_offset[r], run_offset[r+1]): ids run_start[j], run_start[j]+1, ...; run_end[j] counts the row's elements
    through run j. namespace int32 (n,): dense namespace of each request.
    created_end int64 (n,): elements existing after interning request r, so r created [created_end[r-1], created_end[r]).
    """

    element_tokens: I32
    element_end: I64
    parent: I32
    run_offset: I64
    run_start: I64
    run_end: I64
    namespace: I32
    created_end: I64

    @property
    def n_elements(self) -> int:
        """Number of distinct elements."""
        return int(self.element_tokens.shape[0])


@dataclass(frozen=True, slots=True)
class ChainIndex:
    """Chain ids of one granularity, as runs. Request r's full blocks (of prompt + output) are its runs
    j in [run_offset[r], run_offset[r+1]): ids run_start[j] + 0, 1, ...; run_end int64 counts the row's blocks through run j.

    n_chains: number of distinct ids (dense, 0..n_chains-1). granularity: tokens a block. first_chain int64 (E+1,): chains
    completed by elements before e. `row_blocks(r)` = (prompt + output tokens) // granularity.
    """

    granularity: int
    n_chains: int
    run_offset: I64
    run_start: I64
    run_end: I64
    first_chain: I64

    def expand(self) -> tuple[I64, I64]:
        """(offsets int64 (n+1,), chain ids int64): every row written out. For tests and small workloads."""
        n = self.run_offset.shape[0] - 1
        rows = []
        offsets = np.zeros(n + 1, dtype=np.int64)
        for r in range(n):
            before = 0
            row = []
            for j in range(self.run_offset[r], self.run_offset[r + 1]):
                start, end = int(self.run_start[j]), int(self.run_end[j])
                row.append(np.arange(start, start + end - before, dtype=np.int64))
                before = end
            offsets[r + 1] = offsets[r] + before
            rows.extend(row)
        return offsets, np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)


def namespaces(workload: Workload, rule: NamespaceRule) -> I32:
    """Dense namespace number of each request, int32 (n,). vllm: (cache_salt, LoRA); sglang: (extra_key + LoRA name as one
    string, cache_salt), as the engine concatenates them; none: all 0."""
    names = (workload.lora, workload.salt, workload.extra_key)
    if rule == "none" or not any(column.any() for column in names):  # nearly always: no need to sort them
        return np.zeros(workload.n, dtype=np.int32)
    if rule == "vllm":
        first, second = workload.lora.astype(np.int64), workload.salt
    else:
        pairs = np.stack([workload.extra_key, workload.lora])
        distinct, inverse = np.unique(pairs, axis=1, return_inverse=True)
        known: dict[str, int] = {"": 0}
        code = np.array(
            [known.setdefault(workload.extra_key_names[e] + workload.lora_names[a], len(known)) for e, a in distinct.T],
            dtype=np.int64,
        )
        first, second = code[inverse.reshape(-1)], workload.salt
    if not first.any() and not second.any():
        return np.zeros(workload.n, dtype=np.int32)
    _, dense = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    return dense.reshape(-1).astype(np.int32)


def build_trie(workload: Workload, rule: NamespaceRule) -> Trie:
    """Interns a workload in request order. A request whose output content is unknown gets a unique output element."""
    w = workload
    lengths = w.atom_tokens if w.atom_tokens is not None else np.ones(0, dtype=np.int32)
    piece_offset, piece_id, piece_tokens = cut_atoms(w.atom_offset, w.prompt_atoms, w.atom_id, lengths, w.output_tokens)
    space = namespaces(w, rule)
    tokens, end, parent, run_offset, run_start, run_end, created = intern_rows(
        piece_offset, piece_id, piece_tokens, space
    )
    return Trie(tokens, end, parent, run_offset, run_start, run_end, space, created)


def build_chains(trie: Trie, granularity: int) -> ChainIndex:
    """Chain ids of blocks of `granularity` tokens. O(elements + runs)."""
    end, tokens = trie.element_end, trie.element_tokens
    completed = end // granularity - (end - tokens) // granularity
    first = np.zeros(trie.n_elements + 1, dtype=np.int64)
    np.cumsum(completed, out=first[1:])
    run_offset, run_start, run_end = chain_runs(trie.run_offset, trie.run_start, trie.run_end, first)
    return ChainIndex(granularity, int(first[-1]), run_offset, run_start, run_end, first)
