"""Sliding-window and hybrid KV-cache groups of vLLM 0.33 in plain Python, to be read beside docs/vllm_groups.md.

One pool of blocks serves all groups. A group has its own block table for each request and its own keys in the cache map:
a full-attention group keeps a request's blocks to its end, a window group gives back what its attention no longer reaches.
Blocks are named by dense chain ids (equal id, equal whole prefix), which stand for the engine's chained hashes.

This is the definition that the compiled kernels (groups_kernels.py) are tested against.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NULL = 0
"""Block 0: stands in tables for blocks that left the window; never allocated, never free."""
FULL, WINDOW = "full", "window"
Find = Callable[[int, int], int]
MAX_MODEL_LEN = 1 << 20


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What decides the cache's behaviour.

    num_gpu_blocks counts the null block. retention: tokens between kept window tails; 0: none but replay boundary and
    junctions; None: dense. max_in_flight_tokens: tokens scheduled but not yet processed, at most (None: no bound); with
    the window it bounds the blocks an admission test asks for.
    """

    layout: str
    block_size: int
    num_gpu_blocks: int
    sliding_window: int
    retention: int | None = 0
    max_model_len: int = MAX_MODEL_LEN
    max_in_flight_tokens: int | None = None
    watermark_blocks: int = 0

    @property
    def groups(self) -> tuple[str, ...]:
        """Kinds of the groups, in the order in which they allocate and free."""
        return (WINDOW,) if self.layout == "swa" else (FULL, WINDOW)

    @property
    def window_blocks(self) -> int:
        """Adjacent cached blocks that a window group needs for a hit."""
        return -(-(self.sliding_window - 1) // self.block_size)

    @property
    def window_admission_blocks(self) -> int:
        """Blocks of a window group that one request can hold at a time, at most."""
        in_flight = self.max_model_len if self.max_in_flight_tokens is None else self.max_in_flight_tokens
        tokens = min(self.sliding_window - 1 + in_flight, self.max_model_len)
        return -(-tokens // self.block_size) + 1


@dataclass(slots=True)
class GroupRequest:
    """One request as the cache sees it. chain: ids of the full blocks of prompt + outputs; `tokens` of it are known now."""

    number: int
    prompt_tokens: int
    tokens: int
    chain: Sequence[int]
    computed: int = 0
    in_flight: int = 0
    junction: int = 0
    """End of a prefix that another group still has and the window group lost or never kept (0: none)."""


@dataclass(slots=True)
class Hit:
    """A lookup's result: blocks a group (NULL where the window does not reach), tokens, junction."""

    blocks: tuple[list[int], ...]
    tokens: int
    junction: int


class Pool:
    """Blocks 1..n-1: the free queue in eviction order, reference counts, and the map from (group, chain) to blocks.

    What goes to the front of the queue has no key and what goes to the back has one, so the queue is three parts:
    a stack of blocks without a key, the blocks never used yet in id order, and the keyed blocks, longest unused first.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.n = num_gpu_blocks
        self.stack: list[int] = []
        self.fresh = 1
        self.keyed: OrderedDict[int, None] = OrderedDict()
        self.refs: defaultdict[int, int] = defaultdict(int)
        self.key: dict[int, tuple[int, int]] = {}
        self.holders: dict[tuple[int, int], dict[int, None]] = {}
        self.evicted = 0

    @property
    def free(self) -> int:
        """Number of free blocks, cached ones included."""
        return len(self.stack) + self.n - self.fresh + len(self.keyed)

    def free_queue(self) -> list[int]:
        """Ids of free blocks in eviction order."""
        return [*reversed(self.stack), *range(self.fresh, self.n), *self.keyed]

    def cached_flags(self) -> str:
        """The free queue in eviction order, 1 = holds a cached block."""
        return "0" * (self.free - len(self.keyed)) + "1" * len(self.keyed)

    def find(self, group: int, chain: int) -> int:
        """The oldest block that holds a chain in a group, or NULL."""
        return next(iter(self.holders.get((group, chain), ())), NULL)

    def pop(self, count: int) -> list[int]:
        """Takes `count` blocks from the front of the free queue; one that still had a key is evicted by that."""
        taken = []
        for _ in range(count):
            if self.stack:
                block = self.stack.pop()
            elif self.fresh < self.n:
                block = self.fresh
                self.fresh += 1
            else:
                block, _ = self.keyed.popitem(last=False)
                key = self.key.pop(block)
                del self.holders[key][block]
                if not self.holders[key]:
                    del self.holders[key]
                self.evicted += 1
            self.refs[block] = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """A hit: one reference more; a free block leaves the queue."""
        for block in blocks:
            if block != NULL:
                if self.refs[block] == 0:
                    del self.keyed[block]
                self.refs[block] += 1

    def put_key(self, block: int, group: int, chain: int) -> None:
        """Makes a block findable; earlier holders of the same key stay in front of it."""
        self.key[block] = (group, chain)
        self.holders.setdefault((group, chain), {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Drops one reference each. Of those that reach 0, blocks without a key go to the front of the queue in this
        order, then blocks with a key to the back in this order."""
        front = []
        for block in blocks:
            if block != NULL:
                self.refs[block] -= 1
                if self.refs[block] == 0:
                    if block in self.key:
                        self.keyed[block] = None
                    else:
                        front.append(block)
        self.stack += reversed(front)


@dataclass(slots=True)
class GroupCache:
    """The cache of one engine: lookup, allocate (with window freeing and commit), free."""

    rules: GroupRules
    pool: Pool = field(init=False)
    tables: tuple[dict[int, list[int]], ...] = field(init=False)
    """Per group: request number -> its blocks, NULL where the window has passed."""
    committed: tuple[dict[int, int], ...] = field(init=False)
    """Per group: request number -> full blocks already judged (given a key, or masked out for good)."""

    def __post_init__(self) -> None:
        self.pool = Pool(self.rules.num_gpu_blocks)
        self.tables = tuple({} for _ in self.rules.groups)
        self.committed = tuple({} for _ in self.rules.groups)

    # ---- lookup

    def lookup(self, request: GroupRequest) -> Hit:
        """The longest prefix that every group can serve, at most tokens - 1; whole blocks.

        Full attention is walked left to right; what it finds bounds the window group, which is searched right to left.
        (With one full group and one window group the fixed point is reached in this one pass: full attention can serve
        every shorter prefix too.)
        """
        bs = self.rules.block_size
        blocks, longest = self.reach(request, (request.tokens - 1) // bs, self.pool.find)
        limit = len(blocks[0])
        return Hit(tuple(blocks), limit * bs, longest * bs if longest > limit else 0)

    def reach(self, request: GroupRequest, limit: int, find: Find) -> tuple[list[list[int]], int]:
        """(blocks a group, all cut to what every group can serve; the most that any group found), of the first `limit`
        blocks. find: a block by group and chain, or NULL."""
        blocks: list[list[int]] = []
        longest = 0
        for group, kind in enumerate(self.rules.groups):
            run = self._full_run if kind == FULL else self._window_run
            found = run(group, request, limit, find)
            blocks.append(found)
            limit = len(found)
            longest = max(longest, limit)
        for found in blocks:
            del found[limit:]
        return blocks, longest

    def _full_run(self, group: int, request: GroupRequest, limit: int, find: Find) -> list[int]:
        """Cached blocks 0, 1, 2, ... up to the first missing one."""
        found = []
        for k in range(limit):
            block = find(group, request.chain[k])
            if block == NULL:
                break
            found.append(block)
        return found

    def _window_run(self, group: int, request: GroupRequest, limit: int, find: Find) -> list[int]:
        """The rightmost run of `window_blocks` adjacent cached blocks below `limit`, NULL before it; where there is
        none, the run of cached blocks that starts at block 0, shorter than the window."""
        need = max(self.rules.window_blocks, 1)
        run = 0
        for k in range(limit - 1, -1, -1):
            run = run + 1 if find(group, request.chain[k]) != NULL else 0
            if run == need:
                break
        first = k if run == need else 0
        return [NULL] * first + [find(group, request.chain[k]) for k in range(first, first + run)]

    # ---- allocation

    def skipped_blocks(self, computed: int) -> int:
        """Leading blocks that the window of the next token no longer touches when `computed` tokens are computed."""
        return max(0, computed - self.rules.sliding_window + 1) // self.rules.block_size

    def allocate(
        self,
        request: GroupRequest,
        new_tokens: int,
        hit: Hit | None = None,
        *,
        whole_sequence: bool = False,
        watermark: bool = False,
    ) -> bool:
        """Room for `new_tokens` after the computed and hit tokens; False (and nothing taken) if there is not enough.

        Order: test for the whole sequence (admissions only), blocks behind the window are freed (even if the next test
        fails), test for this chunk, hits touched, new blocks popped group by group, full blocks committed.
        """
        rules = self.rules
        hit_tokens = hit.tokens if hit else 0
        computed = min(request.computed + hit_tokens, rules.max_model_len)
        spare = self.pool.free - (rules.watermark_blocks if watermark else 0)
        if whole_sequence:
            sequence = min(request.tokens, rules.max_model_len)
            if self._blocks_needed(request, sequence, hit, admission=True) > spare:
                return False
        slots = min(computed + new_tokens, rules.max_model_len)
        self._free_behind_window(request, max(0, computed - request.in_flight))
        spare = self.pool.free - (rules.watermark_blocks if watermark else 0)
        if self._blocks_needed(request, slots, hit, admission=False) > spare:
            return False
        if hit is not None and hit.tokens:
            self._adopt(request, hit)
        for table in self.tables:
            blocks = table.setdefault(request.number, [])
            blocks += self.pool.pop(max(0, -(-slots // rules.block_size) - len(blocks)))
        self.commit(request, min(computed + new_tokens, request.tokens))
        return True

    def _blocks_needed(self, request: GroupRequest, tokens: int, hit: Hit | None, admission: bool) -> int:
        """Blocks to take from the free queue so that `tokens` have a slot, hit blocks that are free now included.

        What an admission asks for a window group is capped by what it can hold at a time; it gives blocks back before
        each later chunk.
        """
        total = 0
        for group, kind in enumerate(self.rules.groups):
            required = -(-tokens // self.rules.block_size)
            if kind == WINDOW and admission:
                required = min(required, self.rules.window_admission_blocks)
            hits = hit.blocks[group] if hit else []
            total += max(0, required - len(self.tables[group].get(request.number, ())) - len(hits))
            total += sum(block != NULL and self.pool.refs[block] == 0 for block in hits)
        return total

    def _free_behind_window(self, request: GroupRequest, processed: int) -> None:
        """Window groups give back blocks behind the window of the next token, nearest first, and put NULL for them."""
        for group, kind in enumerate(self.rules.groups):
            blocks = self.tables[group].get(request.number)
            if kind == FULL or not blocks:
                continue
            passed = []
            for k in range(min(self.skipped_blocks(processed), len(blocks)) - 1, -1, -1):
                if blocks[k] == NULL:
                    break
                passed.append(blocks[k])
                blocks[k] = NULL
            self.pool.release(passed)

    def _adopt(self, request: GroupRequest, hit: Hit) -> None:
        """Hit blocks become the request's table. (A window group's hit has just the blocks that its window needs.)"""
        for group, blocks in enumerate(hit.blocks):
            self.pool.touch(blocks)
            self.tables[group][request.number] = list(blocks)
            self.committed[group][request.number] = len(blocks)

    # ---- commit

    def commit(self, request: GroupRequest, tokens: int) -> None:
        """Gives keys to full blocks up to `tokens`: all of a full group's, those a hit can reach of a window group's."""
        full = min(tokens, request.tokens) // self.rules.block_size
        for group, kind in enumerate(self.rules.groups):
            first = self.committed[group].get(request.number, 0)
            blocks = self.tables[group].get(request.number, [])
            for k in range(first, full):
                if blocks[k] != NULL and (kind == FULL or self.retained(request, k)):
                    self.pool.put_key(blocks[k], group, request.chain[k])
            if full > first:
                self.committed[group][request.number] = full

    def retained(self, request: GroupRequest, k: int) -> bool:
        """Whether a window group keeps block k: it lies in the tail that a hit at some boundary needs.

        Dense: every block (a boundary after each). Else boundaries are the last position a resend of the prompt can
        resume at (prompt - 1), the junction found by the lookup, and every multiple of a positive interval.
        """
        need, bs, interval = self.rules.window_blocks, self.rules.block_size, self.rules.retention
        period = 1 if interval is None else interval // bs
        if period and k % period >= period - need:
            return True
        if interval is None:
            return False
        boundaries = [request.prompt_tokens - 1] + ([request.junction] if request.junction else [])
        return any(b // bs - need <= k < b // bs for b in boundaries)

    # ---- end

    def free(self, request: GroupRequest) -> None:
        """The request's blocks are released group by group, tail first."""
        for table, committed in zip(self.tables, self.committed, strict=True):
            self.pool.release(table.pop(request.number, [])[::-1])
            committed.pop(request.number, None)
