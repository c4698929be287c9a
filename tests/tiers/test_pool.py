"""vLLM's host pool: the compiled one against its twin, operation by operation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from prefixsim.engines.tiers import layout as lt
from prefixsim.engines.tiers import pool_kernels as pk
from prefixsim.engines.tiers.arrays import HostTier, TierArrays
from prefixsim.engines.tiers.link_kernels import transfer_in, transfer_out
from prefixsim.engines.tiers.twin import TwinHostPool, TwinLink

LINK = HostTier(bytes_per_token=1000, in_bytes_per_s=1e12, out_bytes_per_s=5e11, per_block_s=1e-9, latency_s=3e-9)

# Rows of a small prefix tree: chain ids by row, as runs of consecutive ids.
ROWS = [
    [0, 1, 2, 3, 4, 5],
    [0, 1, 2, 6, 7],
    [0, 1, 8, 9, 10, 11, 12],
    [13, 14],
    [13, 15, 16, 17],
    [0, 1, 2, 3, 18, 19],
]
N_CHAINS = 20


def runs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """run_offset, run_start, run_end of ROWS."""
    offset, start, end = [0], [], []
    for row in ROWS:
        for k, chain in enumerate(row):
            if k and chain == row[k - 1] + 1:
                end[-1] = k + 1
            else:
                start.append(chain)
                end.append(k + 1)
        offset.append(len(start))
    return tuple(np.array(x, dtype=np.int64) for x in (offset, start, end))  # type: ignore[return-value]


RUNS = runs()


class Both:
    """Does each operation on both pools and compares them."""

    def __init__(self, capacity: int, threshold: int, tracked: int) -> None:
        self.twin = TwinHostPool(capacity, store_threshold=threshold, max_tracker_size=tracked)
        self.a = TierArrays.of_blocks(LINK, capacity, 10, N_CHAINS, threshold, tracked)
        self.ranks: dict[int, int] = {}
        self.loads: list[tuple[int, int, int]] = []
        self.link = TwinLink(LINK.out_ps(10), LINK.latency_ps)
        self.link_in = TwinLink(LINK.in_ps(10), LINK.latency_ps)
        self.jobs = [0, 0]
        self.peak = 0

    def rank(self, row: int) -> int:
        if row not in self.ranks:
            self.ranks[row] = self.twin.new_rank()
            assert pk.new_rank(self.a.tier) == self.ranks[row]
        return self.ranks[row]

    def args(self) -> tuple[Any, ...]:
        return (self.a.tier, self.a.host, self.a.places)

    def offer(self, row: int, first: int, upto: int, now: int) -> int | None:
        rank = self.rank(row)
        keys = ROWS[row][first:upto]
        got = self.twin.offer(keys, first, rank)
        count = pk.offer(*self.args(), self.a.tracker, *RUNS, row, first, upto, rank)
        assert count == (-1 if got is None else len(got))
        if got:
            when = self.link.transfer(now, len(got))
            assert transfer_out(self.a.tier, now, len(got)) == when
            self.jobs[1] += 1
            for key in got:
                self.twin.blocks[key].ready_ns = when
            pk.stored_by(self.a.tier, self.a.host, count, when)
        return None if got is None else len(got)

    def load(self, row: int, first: int, upto: int, now: int = 0) -> None:
        keys = ROWS[row][first:upto]
        count, wait = self.twin.find(keys)
        assert pk.find_run(self.a.host, self.a.places, *RUNS, row, first, upto) == (count, wait)
        if count and not wait:
            rank = self.rank(row)
            self.twin.begin_load(keys[:count], first, rank)
            pk.use_blocks(*self.args(), *RUNS, row, first, first + count, rank, 1)
            self.loads.append((row, first, first + count))
            assert transfer_in(self.a.tier, now, count) == self.link_in.transfer(now, count)
            self.jobs[0] += 1

    def end_load(self, which: int = 0) -> None:
        if self.loads:
            row, first, upto = self.loads.pop(which % len(self.loads))
            self.twin.end_load(ROWS[row][first:upto])
            pk.use_blocks(*self.args(), *RUNS, row, first, upto, 0, -1)

    def finish(self, row: int, first: int, upto: int) -> None:
        self.twin.refresh(ROWS[row][first:upto])
        pk.refresh(*self.args(), *RUNS, row, first, upto)
        self.ranks.pop(row, None)

    def settle(self, now: int) -> None:
        self.twin.settle(now)
        pk.settle_stores(self.a.tier, self.a.host, now)

    def same(self) -> None:
        self.twin.check()
        t, host, places = self.a.tier, self.a.host, self.a.places
        here = {c: int(places[lt.PLACE_HOST, c]) - 1 for c in range(N_CHAINS) if places[lt.PLACE_HOST, c]}
        assert here.keys() == self.twin.blocks.keys()
        assert t[lt.T_USED] == len(here)
        for chain, row in here.items():
            block = self.twin.blocks[chain]
            assert host[row, lt.H_CHAIN] == chain
            assert host[row, lt.H_USERS] == (-1 if block.ready_ns is not None else block.readers)
            assert host[row, lt.H_RANK] == (block.rank[0] << lt.RANK_SHIFT) + block.rank[1]
            assert (host[row, lt.H_PLACE] >= 0) == (host[row, lt.H_USERS] == 0)
        n = int(t[lt.T_EVICTABLE])
        heap = host[:n, lt.H_HEAP]
        assert sorted(heap) == sorted(r for r in here.values() if host[r, lt.H_USERS] == 0)
        assert all(host[heap[i], lt.H_PLACE] == i for i in range(n))
        assert all(host[heap[(i - 1) // 2], lt.H_RANK] <= host[heap[i], lt.H_RANK] for i in range(1, n))
        counts = {c: int(self.a.tracker[places[1, c], lt.K_COUNT]) for c in range(N_CHAINS) if places[1, c]}
        assert counts == dict(self.twin.offers)
        assert (t[lt.T_EVICTED], t[lt.T_FAILED], t[lt.T_BELOW]) == (
            self.twin.evicted,
            self.twin.failed,
            self.twin.below,
        )
        self.peak = max(self.peak, len(here))
        assert t[lt.T_PEAK] == self.peak
        ring = [(t[lt.T_RING_AT] + i) % host.shape[0] for i in range(t[lt.T_RING_N])]
        writing = [(key, b.ready_ns) for key, b in self.twin.blocks.items() if b.ready_ns is not None]
        assert [(host[host[at, lt.H_RING_ROW], lt.H_CHAIN], host[at, lt.H_RING_NS]) for at in ring] == writing
        columns = (lt.T_IN_FREE, lt.T_IN_BUSY, lt.T_IN_WAIT, lt.T_IN_BLOCKS, lt.T_IN_JOBS)
        for link, jobs, after in ((self.link_in, self.jobs[0], 0), (self.link, self.jobs[1], 1)):
            got = [int(t[c + after]) for c in columns]
            assert got == [link.free_ns, link.busy_ns, link.wait_ns, link.blocks, jobs]


@given(hs.integers(0, 2**32 - 1), hs.integers(1, 12), hs.sampled_from([0, 1, 2, 3]), hs.integers(1, 20), hs.booleans())
@settings(max_examples=120)
def test_pool_equals_twin(seed: int, capacity: int, threshold: int, tracked: int, quick: bool) -> None:
    """Long random walks. quick: stores are mostly done before the next operation."""
    both = Both(capacity, threshold, tracked if threshold >= 2 else 64_000)
    rng = random.Random(seed)
    now = 0
    for _ in range(60):
        now += rng.choice([0, 1, 7, 100])
        row = rng.randrange(len(ROWS))
        first, upto = sorted(rng.choices(range(len(ROWS[row]) + 1), k=2))
        if rng.random() < 0.5:
            first = 0
        what = rng.choice(["offer", "offer", "offer", "load", "load", "end", "finish", "settle"])
        if quick or what == "settle":
            writing = [b.ready_ns for b in both.twin.blocks.values() if b.ready_ns is not None]
            if writing and rng.random() < 0.7:
                now = max(now, rng.choice(writing))  # at the very moment when a store is done
            both.settle(now)
        if what == "offer" and upto > first:
            both.offer(row, first, upto, now)
        elif what == "load" and upto > first:
            both.load(row, first, upto, now)
        elif what == "end":
            both.end_load(rng.randrange(9))
        elif what == "finish":
            both.finish(row, first, upto)
        both.same()


def test_pool_cases_reach_every_outcome() -> None:
    """The cases above are not vacuous: each outcome happens in this short one."""
    both = Both(6, 0, 64_000)
    assert both.offer(0, 0, 6, 0) == 6
    assert both.offer(3, 0, 2, 0) is None  # everything is being written
    assert both.twin.find(ROWS[0]) == (6, True)
    both.settle(10**6)
    assert both.twin.find(ROWS[0]) == (6, False)
    both.load(0, 0, 2)
    assert both.offer(3, 0, 2, 10**6) == 2
    assert both.twin.evicted == 2
    assert 5 not in both.twin.blocks, "tails go first"
    assert 4 not in both.twin.blocks
    both.settle(10**7)
    both.finish(0, 0, 4)
    both.end_load()
    assert both.offer(2, 0, 7, 10**7) is None, "two of its blocks are there, five do not fit beside them"
    both.same()
    few = Both(6, 2, 3)
    assert few.offer(3, 0, 2, 0) == 0
    assert few.offer(4, 0, 4, 0) == 1, "only the block offered twice is stored"
    assert len(few.twin.offers) == 3
    few.same()


def test_link_is_serial_and_exact() -> None:
    a = TierArrays.of_blocks(LINK, 4, 10, 4, 0, 0)
    assert LINK.in_ps(10) == 11_000  # 10 kB at 1 TB/s, and 1 ns
    assert LINK.out_ps(10) == 21_000
    assert transfer_in(a.tier, 100, 2) == 100 + 25
    assert transfer_in(a.tier, 100, 1) == 125 + 14, "the second waits for the first"
    assert transfer_out(a.tier, 100, 1) == 100 + 24, "the other direction does not"
    assert a.tier[lt.T_IN_WAIT] == 25
    assert a.tier[lt.T_IN_BUSY] == 39
    assert a.tier[lt.T_OUT_WAIT] == 0


@pytest.mark.parametrize("blocks", [1, 1000, 1_000_000])
def test_link_durations_do_not_drift(blocks: int) -> None:
    """Durations are rounded once a transfer, not once a block."""
    slow = HostTier(bytes_per_token=1, in_bytes_per_s=3e9, out_bytes_per_s=3e9)
    a = TierArrays.of_blocks(slow, 1, 1, 1, 0, 0)
    assert transfer_in(a.tier, 0, blocks) == TwinLink(slow.in_ps(1), 0).transfer(0, blocks) == -(-blocks * 333 // 1000)
