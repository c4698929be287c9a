"""Plain-Python radix tree with host copies: SGLang's HiCache, written for reading.
Twin of `host_kernels` and `hicache_kernels`, and of `tree_kernels` where there is a host tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from prefixsim.engines.sglang.reference_tree import EvictionRule, Node, Tree, common_pages
from prefixsim.engines.tiers.twin import TwinLink


@dataclass(eq=False, slots=True)
class HostNode(Node):
    """`device`: its KV is on the GPU; `host`: there is a copy in host memory. At least one of them holds."""

    device: bool = True
    host: bool = False


class HostTree(Tree):
    """`Tree` whose nodes may be in host memory, too, or only there."""

    make_node = HostNode

    def __init__(
        self,
        n_pages: int,
        page_size: int,
        rule: EvictionRule,
        *,
        host_pages: int,
        uses: int,
        link: TwinLink,
        write_back: bool = False,
    ) -> None:
        super().__init__(n_pages, page_size, rule)
        self.root = HostNode(parent=None, pages=[], end=0, host=True)
        self.host_pages = self.host_free = host_pages
        self.uses = uses
        self.link = link
        self.writing: deque[tuple[HostNode, int]] = deque()
        self.host_evicted = self.failed = 0
        self.write_back = write_back
        self.twice: dict[HostNode, None] = {}
        """Under write_back: nodes both on the GPU and in host memory, oldest first."""
        self.now = self.stalled_until = self.stalled = self.given_up = 0

    def hit(self, node: Node) -> tuple[HostNode, int]:
        """(deepest node on the GPU at or above `node`, pages below it)."""
        last = node
        while last is not self.root and not last.device:  # type: ignore[attr-defined]
            assert last.parent is not None
            last = last.parent
        return last, node.end - last.end  # type: ignore[return-value]

    def split(self, child: Node, pages: int) -> Node:
        upper = super().split(child, pages)
        lower: HostNode = child  # type: ignore[assignment]
        new = HostNode(
            upper.parent, upper.pages, upper.end, upper.accessed, upper.created, upper.hits, upper.priority, upper.locks,
            upper.history, upper.order, upper.children, device=lower.device, host=lower.host,
        )  # fmt: skip
        assert new.parent is not None
        new.parent.children[new.pages[0]] = new
        lower.parent = new
        if lower in self.twice:
            self.twice[new] = None
        return new

    def insert(self, row: Sequence[int], n: int, priority: int, counted: int) -> tuple[int, Node]:
        """As `Tree.insert`; nodes in host memory only come back with the fresh KV and are not among the pages that were
        there. Then the deepest counted node that was used often enough is backed up, with all above it."""
        node, at, there = self.root, 0, 0
        while at < n and (child := node.children.get(row[at])) is not None:
            child.accessed = self.tick()
            agreed = common_pages(child.pages, row, at, n)
            if agreed < len(child.pages):
                child = self.split(child, agreed)
            child.priority = max(child.priority, priority)
            at += agreed
            if at > counted:
                child.hits += 1
            if child.device:  # type: ignore[attr-defined]
                there = at
            else:
                child.device = True  # type: ignore[attr-defined]
                self.evictable += len(child.pages)
                self.now_twice(child)
            node = child
        if at < n:
            node = self.new_leaf(node, row, at, n, priority, counted)
        return there, node

    def back_up(self, node: Node, counted: int, now: int) -> None:
        """After an insert that ended on `node`."""
        path: list[HostNode] = []
        while node is not self.root:
            path.insert(0, node)  # type: ignore[arg-type]
            assert node.parent is not None
            node = node.parent
        wanted = [i for i, x in enumerate(path) if not x.host and x.end > counted and x.hits >= self.uses]
        for x in path[: wanted[-1] + 1 if wanted else 0]:
            if x.host:
                continue
            if not self.make_host_room(len(x.pages)):
                self.failed += 1
                return
            self.host_free -= len(x.pages)
            x.host = True
            self.lock(x)
            self.writing.append((x, self.link.transfer(now, len(x.pages))))

    def now_twice(self, node: Node) -> None:
        """A node in host memory is on the GPU again."""
        if self.write_back and node.host:  # type: ignore[attr-defined]
            self.twice.setdefault(node, None)  # type: ignore[call-overload]

    def give_up_copies(self, pages: int) -> None:
        """Frees host pages of nodes that are on the GPU, too: first those that will stay there."""
        for spare_leaves in (True, False):
            for x in list(self.twice):
                leaf = x.locks == 0 and not any(c.device for c in x.children.values())  # type: ignore[attr-defined]
                if self.host_free < pages and not (spare_leaves and leaf):
                    x.host = False
                    del self.twice[x]
                    self.given_up += 1
                    self.host_free += len(x.pages)
                    self.host_evicted += len(x.pages)

    def finish(self, now: int) -> None:
        """Backups that are done: their nodes may leave the GPU."""
        while self.writing and self.writing[0][1] <= now:
            self.unlock(self.writing.popleft()[0])

    def make_host_room(self, pages: int, pinned: Node | None = None) -> bool:
        """Drops whole host leaves, best victim first, until `pages` host pages are free."""
        if self.write_back:
            self.give_up_copies(pages)
        while self.host_free < pages:
            leaves = [x for x in self.nodes() if not x.device and not x.children and x is not pinned]  # type: ignore[attr-defined]
            if not leaves:
                return False
            victim = min(leaves, key=lambda x: self.rule.key(x, self.page_size))
            assert victim.parent is not None
            del victim.parent.children[victim.pages[0]]
            self.host_free += len(victim.pages)
            self.host_evicted += len(victim.pages)
            self.n_nodes -= 1
        return True

    def make_room(self, pages: int, pinned: Node | None = None) -> None:
        """Evicts whole nodes without children on the GPU, best victim first; those with a host copy stay there, and under
        write_back those for which there is room get one now, while the scheduler waits."""
        while self.available < pages:
            leaves = [
                x
                for x in self.nodes()
                if x.device and x.locks == 0 and not any(c.device for c in x.children.values())  # type: ignore[attr-defined]
            ]
            if not leaves:
                return
            victim = min(leaves, key=lambda x: self.rule.key(x, self.page_size))
            self.available += len(victim.pages)
            self.evictable -= len(victim.pages)
            self.evicted_pages += len(victim.pages)
            if self.write_back and not victim.host:  # type: ignore[attr-defined]
                if self.make_host_room(len(victim.pages), pinned):
                    self.host_free -= len(victim.pages)
                    victim.host = True  # type: ignore[attr-defined]
                    since = max(self.now, self.stalled_until)
                    self.stalled_until = self.link.transfer(since, len(victim.pages))
                    self.stalled += self.stalled_until - since
                else:
                    self.failed += 1
            if victim.host:  # type: ignore[attr-defined]
                victim.device = False  # type: ignore[attr-defined]
                self.twice.pop(victim, None)  # type: ignore[call-overload]
                continue
            assert victim.parent is not None
            assert not victim.children
            del victim.parent.children[victim.pages[0]]
            self.n_nodes -= 1

    def load_back(self, node: Node, floor: int) -> int:
        """Loads what is below the last node on the GPU (locked) down to `node`, and locks it. Returns the pages; 0: too
        few to be worth it, or no room."""
        last, pages = self.hit(node)
        if pages * self.page_size < floor:
            return 0
        self.make_room(pages, node)
        if self.available < pages:
            return 0
        self.available -= pages
        up = node
        while up is not last:
            up.device = True  # type: ignore[attr-defined]
            self.now_twice(up)
            up.locks += 1
            self.protected += len(up.pages)
            assert up.parent is not None
            up = up.parent
        return pages

    def lock(self, node: Node) -> None:
        assert self.hit(node)[1] == 0
        super().lock(node)

    def check_tiers(self) -> None:
        """Raises AssertionError where an invariant is broken, no request holding pages outside the tree."""
        nodes: list[HostNode] = self.nodes()  # type: ignore[assignment]
        assert len(nodes) == self.n_nodes
        assert self.available >= 0
        assert self.host_free >= 0
        assert self.available + self.evictable + self.protected == self.n_pages
        assert self.evictable == sum(len(x.pages) for x in nodes if x.device and x.locks == 0)
        assert self.protected == sum(len(x.pages) for x in nodes if x.locks > 0)
        assert self.host_free + sum(len(x.pages) for x in nodes if x.host) == self.host_pages
        for x in nodes:
            above: HostNode = x.parent  # type: ignore[assignment]
            assert x.start == above.end
            assert above.children[x.pages[0]] is x
            assert x.device or x.host
            assert x.device or x.locks == 0
            assert above.device or not x.device, "what is above a node on the GPU is on the GPU"
            assert above.host or not x.host or self.write_back, "what is above a copy has a copy"
            assert (x in self.twice) == (self.write_back and x.device and x.host)
            assert above is self.root or x.locks <= above.locks
            assert x.accessed <= self.clock
