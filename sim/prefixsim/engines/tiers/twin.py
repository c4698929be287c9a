"""The host tier in plain Python: the twin of `link_kernels` and `pool_kernels`, written to be read beside docs/tiers.md."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Key = Hashable
"""Identity of a full block: equal keys <=> equal whole prefix, namespace included."""


@dataclass
class TwinLink:
    """One direction: transfers one after another, in order of submission. Durations in ps, times in ns."""

    per_block_ps: int
    latency_ps: int
    free_ns: int = 0
    busy_ns: int = 0
    wait_ns: int = 0
    blocks: int = 0

    def transfer(self, ready_ns: int, blocks: int) -> int:
        """When a transfer that can start at `ready_ns` is done."""
        took = -(-(self.latency_ps + blocks * self.per_block_ps) // 1000)
        start = max(ready_ns, self.free_ns)
        self.wait_ns += start - ready_ns
        self.busy_ns += took
        self.blocks += blocks
        self.free_ns = start + took
        return self.free_ns


@dataclass(eq=False)
class TwinBlock:
    """rank: eviction order, smallest first. readers: loads in progress. ready_ns: when it is written; None: it is."""

    rank: tuple[int, int]
    ready_ns: int | None
    readers: int = 0


class TwinHostPool:
    """vLLM's CPU pool under policy "lru". Requests are named by their rank, a number given at their first use."""

    def __init__(self, capacity: int, *, store_threshold: int = 0, max_tracker_size: int = 64_000) -> None:
        self.capacity = capacity
        self.threshold = store_threshold
        self.max_tracker_size = max_tracker_size
        self.blocks: dict[Key, TwinBlock] = {}
        self.offers: OrderedDict[Key, int] = OrderedDict()
        self.uses = 0
        self.evicted = self.failed = self.below = 0

    def new_rank(self) -> int:
        """A use later than all before."""
        self.uses += 1
        return self.uses

    def settle(self, now: int) -> None:
        """Blocks written by `now` can be read, and evicted."""
        for block in self.blocks.values():
            if block.ready_ns is not None and block.ready_ns <= now:
                block.ready_ns = None

    def find(self, keys: Sequence[Key]) -> tuple[int, bool]:
        """(how many keys in a row are here, whether any of them is being written or read by a load)."""
        count, wait = 0, False
        for key in keys:
            block = self.blocks.get(key)
            if block is None:
                break
            wait |= block.ready_ns is not None or block.readers > 0
            count += 1
        return count, wait

    def begin_load(self, keys: Sequence[Key], first: int, rank: int) -> None:
        """A load reads these blocks, the first of them being block `first` of its request."""
        for i, key in enumerate(keys):
            block = self.blocks[key]
            block.readers += 1
            block.rank = max(block.rank, (rank, -(first + i + 1)))

    def end_load(self, keys: Sequence[Key]) -> None:
        """The load is done."""
        for key in keys:
            self.blocks[key].readers -= 1

    def offer(self, keys: Sequence[Key], first: int, rank: int) -> list[Key] | None:
        """Keys that get a place (their `ready_ns` is to be set by the caller), or None: no room for all, nothing stored."""
        if self.threshold >= 2:
            self.count(keys)
        new = []
        for i, key in enumerate(keys):
            if key not in self.blocks:
                if self.threshold < 2 or self.offers.get(key, 0) >= self.threshold:
                    new.append((key, (rank, -(first + i + 1))))
                else:
                    self.below += 1
            elif self.blocks[key].ready_ns is None:
                self.blocks[key].rank = max(self.blocks[key].rank, (rank, -(first + i + 1)))
        need = len(new) - (self.capacity - len(self.blocks))
        if need > 0:
            idle = [k for k, b in self.blocks.items() if b.ready_ns is None and b.readers == 0 and k not in keys]
            if need > len(idle):
                self.failed += 1
                return None
            for key in sorted(idle, key=lambda k: self.blocks[k].rank)[:need]:
                del self.blocks[key]
                self.evicted += 1
        for key, place in new:
            self.blocks[key] = TwinBlock(place, ready_ns=-1)
        return [key for key, _ in new]

    def count(self, keys: Sequence[Key]) -> None:
        """Counts one offer of each key; the tracker forgets what was offered longest ago, but nothing of this offer."""
        known = [k for k in keys if k in self.offers]
        for key in known:
            self.offers.move_to_end(key)
            self.offers[key] += 1
        others = len(self.offers) - len(known)
        for key in keys:
            if key in self.offers:
                continue
            if len(self.offers) >= self.max_tracker_size:
                if others == 0:
                    continue
                self.offers.popitem(last=False)
                others -= 1
            self.offers[key] = 1

    def refresh(self, keys: Sequence[Key]) -> None:
        """A request ended: what it used becomes most recent, the last block the first to go."""
        for key in reversed(keys):
            if key in self.blocks:
                self.blocks[key].rank = (self.new_rank(), 0)

    def check(self) -> None:
        """Asserts what must hold between any two operations."""
        assert len(self.blocks) <= self.capacity
        assert len(self.offers) <= self.max_tracker_size
        assert all(b.readers >= 0 for b in self.blocks.values())
        ranks = [b.rank for b in self.blocks.values()]
        assert len(set(ranks)) == len(ranks)
