"""Plain-Python SGLang 0.5.23: requests and the pool they hold, written for reading.

Lengths of prefixes and KV are tokens, of tree keys pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixsim.engines.sglang.reference_tree import EvictionRule, Node, Tree


class OutOfMemoryError(Exception):
    """The real engine would stop here: an allocation it had promised does not fit."""


@dataclass(eq=False, slots=True)
class Request:
    """One request. row: page ids of prompt + output. rank: place of its id among all ids, as text. head: identity of its
    first 32 tokens, -1 where it has fewer in all."""

    index: int
    row: Sequence[int]
    prompt: int
    outputs: int
    max_new: int
    priority: int = 0
    step: int = 0
    rank: int = 0
    head: int = -1
    stop: bool = False
    # state
    made: int = 0
    prefix: int = 0
    extend_end: int = 0
    committed: int = 0
    protected: int = 0
    inserted: int = 0
    matched: int = 0
    middle_chunks: int = 0
    holds_kv: bool = False
    retracted_now: bool = False
    node: Node | None = None
    locked: Node | None = None
    # results
    first_hit: int | None = None
    retractions: int = 0
    chunks: int = 0
    evicted: int = 0
    admitted: bool = True

    @property
    def length(self) -> int:
        """Prompt and outputs so far."""
        return self.prompt + self.made

    @property
    def finished(self) -> bool:
        """All outputs are there."""
        return self.made >= self.outputs


class Cache:
    """Pool and tree, and what requests do to them."""

    def __init__(
        self, capacity: int, page: int, rule: EvictionRule, *, merge: bool = False, disabled: bool = False
    ) -> None:
        self.page = page
        self.disabled = disabled
        self.tree = Tree(capacity // page, page, rule, merge=merge)
        self.holders: set[Request] = set()

    @property
    def available(self) -> int:
        """Free tokens."""
        return self.tree.available * self.page

    @property
    def evictable(self) -> int:
        """Tokens in unlocked nodes."""
        return self.tree.evictable * self.page

    def owned_pages(self, r: Request) -> int:
        """Pages a request holds outside the tree."""
        return ceil_div(r.committed, self.page) - r.protected if r.holds_kv else 0

    def match(self, r: Request, limit: int | None = None) -> None:
        """Looks a request up and adopts the hit; `limit` caps the key in tokens."""
        length = r.length if limit is None else min(limit, r.length)
        if self.disabled:
            r.prefix, r.node = 0, self.tree.root
        else:
            pages, r.node = self.tree.match(r.row, length // self.page)
            r.prefix = pages * self.page
        r.matched = min(r.prefix, r.length - 1)

    def next_round(self, r: Request) -> None:
        """The lookup before admission: all but the last token."""
        self.match(r, r.length - 1)
        r.protected = r.prefix // self.page

    def evict_for(self, tokens: int) -> None:
        """Makes `tokens` allocatable if eviction can."""
        if not self.disabled:
            self.tree.make_room(ceil_div(tokens, self.page))

    def take(self, pages: int) -> None:
        """Allocates; the engine stops where it cannot."""
        if pages > self.tree.available:
            raise OutOfMemoryError
        self.tree.available -= pages

    def extend(self, batch: Sequence[Request]) -> None:
        """KV for a prefill batch: each request from its prefix to `extend_end`."""
        tokens = sum(r.extend_end - r.prefix for r in batch)
        self.evict_for(tokens if self.page == 1 else tokens + len(batch) * self.page)
        self.take(sum(ceil_div(r.extend_end, self.page) - ceil_div(r.prefix, self.page) for r in batch))
        for r in batch:
            r.holds_kv = True
            self.holders.add(r)
            r.committed = r.extend_end
            r.chunks += 1
            r.retracted_now = False

    def decode_need(self, running: Sequence[Request]) -> int:
        """Tokens the next decode step really takes."""
        return sum(r.committed % self.page == 0 for r in running) * self.page

    def can_decode(self, running: Sequence[Request]) -> bool:
        """Whether the next decode fits, after evicting for it."""
        need = self.decode_need(running)
        self.evict_for(need)
        return self.available >= need

    def decode(self, running: Sequence[Request]) -> None:
        """KV for one more token each; asks for a page each, whether needed or not."""
        self.evict_for(len(running) * self.page)
        self.take(self.decode_need(running) // self.page)
        for r in running:
            r.committed += 1

    def checkpoint(self, r: Request, up_to: int) -> None:
        """Inserts what a request has computed and moves its lock to where the insert ended."""
        n = up_to // self.page
        if self.disabled or up_to <= 0:
            return
        tree = self.tree
        matched, node = tree.insert(r.row, n, r.priority, r.inserted)
        tree.available += max(0, matched - r.protected)  # duplicates of what the tree holds
        r.inserted = max(r.inserted, n)
        prompt_pages = r.prompt // self.page
        if 0 < prompt_pages < n:
            tree.insert(r.row, prompt_pages, r.priority + 1, prompt_pages)
        if r.locked is not None:
            tree.unlock(r.locked)
        tree.lock(node)
        r.locked = r.node = node
        r.protected = n

    def release(self, r: Request, *, keep: bool) -> None:
        """Gives a request's KV back, after inserting it where `keep`."""
        if keep:
            self.checkpoint(r, r.committed)
        self.tree.available += ceil_div(r.committed, self.page) - r.protected
        if r.locked is not None:
            self.tree.unlock(r.locked)
            r.locked = None
        r.holds_kv = False
        self.holders.discard(r)

    def emit(self, r: Request) -> None:
        """One more output token of a running request is known."""
        r.made += 1
        if r.finished:
            self.release(r, keep=True)

    def emit_first(self, r: Request) -> None:
        """A prefill that ended the input gave a token; the input is inserted."""
        r.made += 1
        if r.finished:
            self.release(r, keep=True)
        else:
            self.checkpoint(r, r.extend_end)
            r.prefix = r.extend_end

    def check(self) -> None:
        """Invariants; see `Tree.check`."""
        self.tree.check(sum(self.owned_pages(r) for r in self.holders))
        locks: dict[Node, int] = {}
        for r in self.holders:
            up = r.locked
            while up is not None and up.parent is not None:
                locks[up] = locks.get(up, 0) + 1
                up = up.parent
        for node in self.tree.nodes():
            assert node.locks == locks.get(node, 0)


def ceil_div(a: int, b: int) -> int:
    """Smallest integer >= a / b."""
    return -(-a // b)
