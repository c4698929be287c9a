# mypy: disable-error-code="no-untyped-call"
"""Arrays of one SGLang replica, made, grown and packed for the kernels. See `state` for their layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.engines.gaps import join_gaps
from prefixsim.engines.sglang.state import (
    LINK_SCALARS,
    N_DEVICE,
    N_FLOATS,
    N_HEAP,
    N_HOST,
    N_HOST_PLACE,
    N_LISTS,
    N_RING,
    N_RING_NS,
    N_SCALARS,
    N_TWICE_NEXT,
    N_TWICE_PREV,
    NIL,
    NODE_COLUMNS,
    ROOT,
    S_CHUNKED,
    S_FREE_NODE,
    S_FREE_SLOT,
    S_GAPS,
    S_HOST_PINNED,
    S_NEXT_NODE,
    S_RING_AT,
    S_RING_N,
    S_TIER,
    S_TIMELINE,
    S_TIMELINE_STRIDE,
    SLOT_COLUMNS,
    TIER_COLUMNS,
)
from prefixsim.engines.sglang.table_kernels import table_refill
from prefixsim.records import I64, TIMELINE_COLUMNS
from prefixsim.workload.intern import ChainIndex

MAX_TIMELINE_ROWS = 1 << 21
"""Above this many steps the timeline keeps every second row, then every fourth, and so on."""


class Arenas:
    """Arrays that kernels change. Sizes follow what is live: nodes never exceed the pool's pages, slots the requests in
    the engine."""

    def __init__(self, pages: int, chains: ChainIndex, *, dfs: bool, keep_commits: bool, tier: bool = False) -> None:
        self.pages, self.chains, self.dfs = pages, chains, dfs
        self.scalars: I64 = np.zeros(N_SCALARS + LINK_SCALARS, dtype=np.int64)
        self.floats: npt.NDArray[np.float64] = np.zeros(N_FLOATS, dtype=np.float64)
        self.scalars[[S_FREE_NODE, S_FREE_SLOT, S_CHUNKED, S_HOST_PINNED]] = NIL
        self.scalars[S_TIER] = tier
        self.scalars[S_NEXT_NODE] = 1
        self.scalars[S_TIMELINE_STRIDE] = 1
        self.nodes: I64 = np.zeros((0, TIER_COLUMNS if tier else NODE_COLUMNS), dtype=np.int64)
        self.heap: I64 = np.zeros(0, dtype=np.int64)
        self.slots: I64 = np.zeros((0, SLOT_COLUMNS), dtype=np.int64)
        self.lists: I64 = np.zeros((N_LISTS, 0), dtype=np.int64)
        self.timeline: I64 = np.zeros((1 << 12, len(TIMELINE_COLUMNS)), dtype=np.int64)
        self.gaps: I64 = np.zeros((1 << 13, 2), dtype=np.int64)
        self.commits: I64 = np.zeros(((1 << 12) if keep_commits else 0, 3), dtype=np.int64)
        self.seen: I64 = np.zeros(1, dtype=np.int64)
        self.heads, self.marks = run_marks(chains)
        self.grow_nodes(1 << 10)
        self.nodes[ROOT, N_HEAP] = NIL
        if tier:
            self.nodes[ROOT, [N_DEVICE, N_HOST, N_HOST_PLACE, N_TWICE_PREV, N_TWICE_NEXT]] = 1, 1, NIL, ROOT, ROOT
        self.grow_slots(64)

    def grow_nodes(self, at_least: int) -> None:
        """More nodes; the table of first pages is built again at twice to four times their number."""
        size = max(at_least, 2 * self.nodes.shape[0])
        ring = self._ring()
        self.nodes = enlarged(self.nodes, size)
        self.nodes[: ring.shape[0], N_RING : N_RING_NS + 1] = ring
        heap, had = np.zeros(4 * size, dtype=np.int64), self.heap.shape[0] // 4
        heap[: 3 * had], heap[3 * size : 3 * size + had] = self.heap[: 3 * had], self.heap[3 * had :]
        self.heap = heap
        old = getattr(self, "table", np.full((0, 2), NIL, dtype=np.int64))
        self.table: I64 = np.full((1 << (2 * size - 1).bit_length(), 2), NIL, dtype=np.int64)
        if old.shape[0]:
            table_refill(old, self.table)
        self.weights: I64 = np.zeros((size if self.dfs else 1, 3), dtype=np.int64)

    def _ring(self) -> I64:
        """Backups in progress, oldest first, which will stand at the ring's beginning."""
        rows, s = self.nodes.shape[0], self.scalars
        at = (int(s[S_RING_AT]) + np.arange(int(s[S_RING_N]))) % max(1, rows)
        s[S_RING_AT] = 0
        return self.nodes[at, N_RING : N_RING_NS + 1]

    def grow_slots(self, at_least: int) -> None:
        """More requests in the engine at once."""
        size = max(at_least, 2 * self.slots.shape[0])
        self.slots = enlarged(self.slots, size)
        lists = np.zeros((N_LISTS, 2 * size), dtype=np.int64)
        lists[:, : self.lists.shape[1]] = self.lists
        self.lists = lists
        self.ratio: npt.NDArray[np.float64] = np.zeros(2 * size, dtype=np.float64)

    def grow_timeline(self) -> None:
        """More steps, or every second of those there are."""
        rows = self.timeline.shape[0]
        if rows < MAX_TIMELINE_ROWS:
            self.timeline = enlarged(self.timeline, 2 * rows)
            return
        self.timeline[: rows // 2] = self.timeline[::2]
        self.scalars[S_TIMELINE] = rows // 2
        self.scalars[S_TIMELINE_STRIDE] *= 2

    def grow_gaps(self, at_least: int = 0) -> None:
        """Adds up equal gaps; makes room where that does not."""
        used = self.summed_gaps()
        if 2 * used.shape[0] + at_least > self.gaps.shape[0]:
            self.gaps = np.zeros((max(2 * self.gaps.shape[0], 4 * at_least), 2), dtype=np.int64)
        self.gaps[: used.shape[0]] = used
        self.scalars[S_GAPS] = used.shape[0]

    def summed_gaps(self) -> I64:
        """Pairs (gap, how often), each gap once, ascending."""
        return join_gaps(self.gaps[: self.scalars[S_GAPS]])

    def grow_commits(self, at_least: int) -> None:
        """More growths of marks to remember."""
        self.commits = enlarged(self.commits, max(at_least, 2 * self.commits.shape[0]))

    def tree_args(self) -> tuple[Any, ...]:
        """What every tree kernel starts with."""
        c = self.chains
        return (self.scalars, self.nodes, self.table, self.heap, c.run_offset, c.run_start, c.run_end)


def enlarged(array: I64, rows: int) -> I64:
    """The array with more rows, the new ones zero."""
    out = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    out[: array.shape[0]] = array
    return out


_last_heads: list[tuple[I64, I64, int]] = []


def run_marks(chains: ChainIndex) -> tuple[I64, I64]:
    """(heads, marks) for "how much of this run was ever inserted": heads int64 (R,) says which entry of marks a run counts
    in. A chain id begins runs or it never does, so what was inserted of a run is a length, kept once for all rows that
    have it, however many tokens that is."""
    starts = chains.run_start
    if chains.n_chains <= max(1 << 16, 4 * starts.shape[0]):
        return starts, np.zeros(max(1, chains.n_chains), dtype=np.int64)
    if not _last_heads or _last_heads[0][0] is not starts:
        distinct, inverse = np.unique(starts, return_inverse=True)
        _last_heads[:] = [(starts, inverse.reshape(-1).astype(np.int64), distinct.shape[0])]
    _, heads, n = _last_heads[0]
    return heads, np.zeros(max(1, n), dtype=np.int64)
