"""Plain-Python radix tree: SGLang 0.5.23's unified tree for a dense model, written for reading. Twin of `tree_kernels`.

A key is a row of page ids (chain ids): equal ids mean equal prefixes, namespace included, so the child of a node is found
by the id of its first page, and "how long do they agree" is the length of the common run of ids. Lengths are in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TICK = 100_000
"""One use of the logical clock. A match stamps its deepest node with the tick and each ancestor one unit less."""

Key = tuple[int, int]


@dataclass(eq=False, slots=True)
class Node:
    """A segment of pages below its parent. `end`: depth in pages, itself included. `history`: deepest end ever seen in
    its branch (tlru). `order`: when its first page became a key of its parent, for ties in dfs-weight."""

    parent: Node | None
    pages: list[int]
    end: int
    accessed: int = 0
    created: int = 0
    hits: int = 0
    priority: int = 0
    locks: int = 0
    history: int = 0
    order: int = 0
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Pages before this node."""
        return self.end - len(self.pages)


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """Eviction policy by SGLang's name, with its parameters (tokens for tlru)."""

    policy: str = "lru"
    protected_threshold: int = 2
    threshold: int = 0
    next_prompt_estimate: int = 0

    def key(self, node: Node, page_size: int) -> Key:
        """Sort key of a leaf: the smallest is evicted first, ties by older access."""
        match self.policy:
            case "lru":
                return (0, node.accessed)
            case "lfu":
                return (node.hits, node.accessed)
            case "fifo":
                return (node.created, node.accessed)
            case "mru":
                return (-node.accessed, node.accessed)
            case "filo":
                return (-node.created, node.accessed)
            case "priority":
                return (node.priority, node.accessed)
            case "slru":
                return (int(node.hits >= self.protected_threshold), node.accessed)
            case "tlru":
                budget = max(node.history * page_size + self.next_prompt_estimate - self.threshold, 0)
                return (-1 if node.start * page_size >= budget else 0, node.accessed)
        raise ValueError(self.policy)


class Tree:
    """The radix tree and its share of the pool. `available` counts free pages of the whole pool; callers move it for pages
    that requests own. `evictable` and `protected` are pages in unlocked and locked nodes."""

    make_node: type[Node] = Node

    def __init__(self, n_pages: int, page_size: int, rule: EvictionRule, *, merge: bool = False) -> None:
        self.page_size = page_size
        self.rule = rule
        self.merge = merge
        self.root = Node(parent=None, pages=[], end=0)
        self.n_pages = self.available = n_pages
        self.evictable = self.protected = 0
        self.evicted_pages = 0
        self.n_nodes = self.peak_nodes = 0
        self.clock = 0
        self.work = dict.fromkeys(("match", "insert", "split", "evict", "merge"), 0)
        """Nodes touched by each kind of operation: what host cost is charged for."""

    def tick(self) -> int:
        """One use of the logical clock."""
        self.clock += TICK
        return self.clock

    def match(self, row: Sequence[int], n: int) -> tuple[int, Node]:
        """Longest resident prefix of row[:n]: (pages, deepest node). Splits a node where the match ends inside it, and
        refreshes the path; an empty key changes nothing."""
        node, at = self.root, 0
        if n == 0:
            return 0, node
        while at < n and (child := node.children.get(row[at])) is not None:
            self.work["match"] += 1
            agreed = common_pages(child.pages, row, at, n)
            at += agreed
            if agreed < len(child.pages):
                node = self.split(child, agreed)
                break
            node = child
        stamp, up = self.tick(), node
        while True:
            up.accessed = stamp
            if up.parent is None:
                return at, node
            stamp -= 1
            up = up.parent

    def insert(self, row: Sequence[int], n: int, priority: int, counted: int) -> tuple[int, Node]:
        """Makes row[:n] resident: (pages that already were, the node it ends on). Nodes on the way are refreshed root
        first, their priority raised, and their hits counted where they end beyond `counted` pages."""
        node, at = self.root, 0
        while at < n and (child := node.children.get(row[at])) is not None:
            self.work["insert"] += 1
            child.accessed = self.tick()
            agreed = common_pages(child.pages, row, at, n)
            if agreed < len(child.pages):
                child = self.split(child, agreed)
            child.priority = max(child.priority, priority)
            at += agreed
            if at > counted:
                child.hits += 1
            node = child
        matched = at
        if at < n:
            self.work["insert"] += 1
            node = self.new_leaf(node, row, at, n, priority, counted)
        return matched, node

    def new_leaf(self, parent: Node, row: Sequence[int], at: int, n: int, priority: int, counted: int) -> Node:
        """row[at:n] becomes resident as a leaf below `parent`."""
        leaf = self.make_node(
            parent=parent,
            pages=list(row[at:n]),
            end=n,
            accessed=self.tick(),
            created=self.tick(),
            hits=int(n > counted),
            priority=priority,
            history=n,
        )
        leaf.order = leaf.created
        parent.children[row[at]] = leaf
        self.evictable += n - at
        self.n_nodes += 1
        self.peak_nodes = max(self.peak_nodes, self.n_nodes)
        up: Node | None = parent
        while up is not None and up.history < n:
            up.history = n
            up = up.parent
        return leaf

    def split(self, child: Node, pages: int) -> Node:
        """Cuts `child` after `pages` pages: a new upper node takes its place, `child` stays the lower part."""
        self.work["split"] += 1
        assert child.parent is not None
        upper = Node(
            parent=child.parent,
            pages=child.pages[:pages],
            end=child.start + pages,
            accessed=self.tick(),
            created=child.created,
            hits=child.hits,
            priority=child.priority,
            locks=child.locks,
            history=child.history,
            order=child.order,
        )
        child.parent.children[child.pages[0]] = upper
        child.pages = child.pages[pages:]
        child.parent = upper
        upper.children[child.pages[0]] = child
        child.accessed = child.order = self.tick()
        self.n_nodes += 1
        self.peak_nodes = max(self.peak_nodes, self.n_nodes)
        return upper

    def lock(self, node: Node) -> None:
        """Protects a node and its ancestors."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.pages)
                self.protected += len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Reverses `lock`."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.pages)
                self.protected -= len(node.pages)
            node = node.parent

    def make_room(self, pages: int) -> None:
        """Evicts whole leaves, best victim first, until `pages` are free or no unlocked leaf is left."""
        while self.available < pages:
            leaves = [x for x in self.nodes() if not x.children and x.locks == 0]
            if not leaves:
                return
            victim = min(leaves, key=lambda x: self.rule.key(x, self.page_size))
            self.work["evict"] += 1
            parent = victim.parent
            assert parent is not None
            del parent.children[victim.pages[0]]
            self.available += len(victim.pages)
            self.evictable -= len(victim.pages)
            self.evicted_pages += len(victim.pages)
            self.n_nodes -= 1
            if self.merge:
                self.merge_into_child(parent)

    def merge_into_child(self, parent: Node) -> None:
        """What-if: a parent left with one child becomes one node with it, unless some request is locked at the parent."""
        if parent.parent is None or len(parent.children) != 1:
            return
        (child,) = parent.children.values()
        if child.locks != parent.locks:
            return
        self.work["merge"] += 1
        parent.parent.children[parent.pages[0]] = child
        child.pages = parent.pages + child.pages
        child.parent = parent.parent
        child.order = parent.order
        child.created = parent.created
        child.accessed = max(child.accessed, parent.accessed)
        child.hits = max(child.hits, parent.hits)
        child.priority = max(child.priority, parent.priority)
        child.history = max(child.history, parent.history)
        self.n_nodes -= 1

    def nodes(self) -> list[Node]:
        """All nodes but the root."""
        out, stack = [], list(self.root.children.values())
        while stack:
            node = stack.pop()
            out.append(node)
            stack.extend(node.children.values())
        return out

    def check(self, owned: int, ends: Callable[[Node], bool] | None = None) -> None:
        """Raises AssertionError where an invariant is broken; `owned`: pages requests hold outside the tree."""
        nodes = self.nodes()
        free, held = self.evictable, self.protected
        assert len(nodes) == self.n_nodes
        assert self.available >= 0
        assert owned >= 0
        assert self.available + free + held + owned == self.n_pages
        assert free == sum(len(x.pages) for x in nodes if x.locks == 0)
        assert held == sum(len(x.pages) for x in nodes if x.locks > 0)
        for x in nodes:
            assert x.parent is not None
            assert x.pages, "a node has at least one page"
            assert x.start == x.parent.end
            assert x.parent.children[x.pages[0]] is x, "found by its first page, so siblings differ in it"
            assert x.parent is self.root or x.locks <= x.parent.locks, "a lock holds all ancestors"
            assert x.accessed <= self.clock
            assert x.history >= x.end


def common_pages(pages: Sequence[int], row: Sequence[int], at: int, n: int) -> int:
    """How many of `pages` row[at:n] agrees with, from the start."""
    agreed = 0
    while agreed < len(pages) and at + agreed < n and pages[agreed] == row[at + agreed]:
        agreed += 1
    return agreed


def dfs_weight_order(root: Node, last: Sequence[Node]) -> list[int]:
    """Order of waiting requests under dfs-weight: depth first, heavier subtrees first, a node's own requests after those
    below it. `last`: the node each request's match ends on."""
    weight: dict[Node, int] = {}
    own: dict[Node, list[int]] = {}
    for index, node in enumerate(last):
        own.setdefault(node, []).append(index)
        up: Node | None = node
        while up is not None:
            weight[up] = weight.get(up, 0) + 1
            up = up.parent
    order: list[int] = []
    stack = [(root, False)]
    while stack:
        node, below_done = stack.pop()
        if below_done:
            order.extend(own.get(node, ()))
            continue
        stack.append((node, True))
        heavy = [c for c in node.children.values() if c in weight]
        heavy.sort(key=lambda c: (-weight[c], c.order))
        stack.extend((c, False) for c in reversed(heavy))
    return order
