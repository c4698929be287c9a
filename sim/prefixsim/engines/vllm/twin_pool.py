"""vLLM's block pool in plain Python: the twin of `pool_kernels`, written to be read beside SPEC sections 2 to 5."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

Key = Hashable
"""Identity of a full block: equal keys <=> equal whole prefix, namespace included (vLLM: the block's chained hash)."""


class TwinPool:
    """Blocks 0..N-1 with a free queue; block 0 is the null block and never used.

    free: block ids in eviction order (front first). ref: users of each block. key: committed key of each block or None.
    copies: for each key its cached blocks, oldest first; vLLM never de-duplicates. ever: keys committed at any time.
    """

    def __init__(self, num_gpu_blocks: int, *, split_free_queue: bool = True) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.split_free_queue = split_free_queue
        self.free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(1, num_gpu_blocks))
        self.ref = [0] * num_gpu_blocks
        self.key: list[Key | None] = [None] * num_gpu_blocks
        self.copies: dict[Key, list[int]] = {}
        self.ever: set[Key] = set()
        self.evicted = 0

    def lookup(self, keys: Sequence[Key], limit: int) -> list[int]:
        """Cached blocks of the longest prefix: stop at the first key that is missing, after `limit` blocks at most."""
        hits: list[int] = []
        for key in keys[:limit]:
            if key not in self.copies:
                break
            hits.append(self.copies[key][0])  # the oldest copy
        return hits

    def evictable(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody uses: touching them lowers the free count."""
        return sum(self.ref[b] == 0 for b in blocks)

    def touch(self, blocks: Sequence[int]) -> None:
        """A hit: unlink from the middle of the free queue if unused; one more user. No other re-ordering."""
        for b in blocks:
            if self.ref[b] == 0:
                del self.free[b]
            self.ref[b] += 1

    def take(self, count: int) -> list[int]:
        """Pops blocks from the front of the free queue; a popped block that is cached is evicted by that."""
        taken = []
        for _ in range(count):
            b, _ = self.free.popitem(last=False)
            key = self.key[b]
            if key is not None:
                self.copies[key].remove(b)
                if not self.copies[key]:
                    del self.copies[key]
                self.key[b] = None
                self.evicted += 1
            self.ref[b] = 1
            taken.append(b)
        return taken

    def commit(self, block: int, key: Key) -> None:
        """A full block becomes findable; an equal key cached before stays ahead of it."""
        self.key[block] = key
        self.copies.setdefault(key, []).append(block)
        self.ever.add(key)

    def release(self, table: Sequence[int]) -> None:
        """Frees a request's blocks, tail first. Cached ones go to the back of the queue; the others, in that same order,
        to the front (`split_free_queue`; before 2026 everything went to the back)."""
        front: list[int] = []
        for b in reversed(table):
            self.ref[b] -= 1
            if self.ref[b] > 0:
                continue
            if self.split_free_queue and self.key[b] is None:
                front.append(b)
            else:
                self.free[b] = None
        for b in reversed(front):
            self.free[b] = None
            self.free.move_to_end(b, last=False)

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Asserts what must hold between any two operations, given the block tables of all requests that hold blocks."""
        used: dict[int, int] = {}
        for table in tables:
            assert len(set(table)) == len(table)
            for b in table:
                used[b] = used.get(b, 0) + 1
        assert all(self.ref[b] == used.get(b, 0) for b in range(1, self.num_gpu_blocks))
        assert set(self.free) == {b for b in range(1, self.num_gpu_blocks) if b not in used}
        assert 0 not in used
        for key, blocks in self.copies.items():
            assert blocks
            assert all(self.key[b] == key for b in blocks)
        assert sum(len(blocks) for blocks in self.copies.values()) == sum(k is not None for k in self.key)
