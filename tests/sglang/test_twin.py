"""Kernels against the plain-Python twin on random workloads, and invariants of both at every step."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as hs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.reference_cache import OutOfMemoryError
from prefixsim.engines.sglang.reference_replay import replay_reference
from prefixsim.engines.sglang.reference_tree import EvictionRule, Tree
from prefixsim.engines.sglang.replay import checked, golden_engine, replay_workload
from prefixsim.engines.sglang.state import (
    N_END,
    NIL,
    POLICIES,
    ROOT,
    S_AVAILABLE,
    S_EVICTABLE,
    S_EVICTED,
    S_MERGE,
    S_NODES,
    S_PAGE,
    S_PAGES,
    S_POLICY,
    S_PROTECTED,
    S_PROTECTED_THRESHOLD,
)
from prefixsim.engines.sglang.tree_kernels import insert, lock, make_room, match, peek, settle, unlock
from prefixsim.errors import DoesNotFitError
from prefixsim.records import NEVER
from prefixsim.workload.intern import build_chains, build_trie

from .cases import check_arrays, golden_configs, native_rows, workload_of


@given(hs.data())
@settings(max_examples=60)
def test_equal_to_twin(data: hs.DataObject) -> None:
    rows = data.draw(native_rows())
    config = data.draw(golden_configs(rows))
    workload = workload_of(rows)
    try:
        want: dict[str, Any] | None = replay_reference(workload, config)
    except OutOfMemoryError:
        want = None
    if want is None:
        with pytest.raises(DoesNotFitError, match="out of memory"):
            replay_workload(workload, config)
    else:
        assert replay_workload(workload, config) == want


@given(hs.data())
@settings(max_examples=25)
def test_twin_invariants(data: hs.DataObject) -> None:
    rows = data.draw(native_rows(most=8))
    config = data.draw(golden_configs(rows))
    steps = []

    def on_step(cache: Any) -> None:
        cache.check()
        steps.append(cache.tree.available)

    try:
        replay_reference(workload_of(rows), config, on_step)
    except OutOfMemoryError:
        return
    assert steps


@given(hs.data())
@settings(max_examples=25)
def test_kernel_invariants(data: hs.DataObject) -> None:
    """After every single iteration of the compiled loop."""
    rows = data.draw(native_rows(most=8))
    config = data.draw(golden_configs(rows)) | {"mode": "scheduler"}
    workload = workload_of(rows)
    engine = golden_engine(workload, checked({k: v for k, v in config.items() if k != "width"}))
    order = np.argsort(workload.step, kind="stable")
    engine.submit(order, workload.step[order])
    for until in range(1, 2000):
        try:
            progress = engine.advance(until)
        except DoesNotFitError:
            return
        check_arrays(engine)
        if progress.next_ns == NEVER:
            break
    else:
        pytest.fail("does not end")


class TreeMachine(RuleBasedStateMachine):
    """Tree operations in any order on kernels and twin side by side. Keys are tokens of {0, 1} at page size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = "lru"
        self.locked: list[tuple[int, int, Any]] = []
        self.start(0)

    def start(self, policy: int) -> None:
        name = POLICIES[policy]
        rng = np.random.default_rng(policy)
        rows = [
            {"id": str(i), "step": 0, "tokens": rng.integers(0, 2, 24).tolist(), "output_tokens": [0], "priority": 0}
            for i in range(24)
        ]
        self.workload = workload_of(rows)
        chains = build_chains(build_trie(self.workload, "sglang"), 1)
        self.n_pages = 150
        self.arenas = Arenas(self.n_pages, chains, dfs=False, keep_commits=False)
        s = self.arenas.scalars
        s[[S_PAGE, S_PROTECTED_THRESHOLD]] = 1, 2
        s[S_POLICY] = policy
        s[[S_PAGES, S_AVAILABLE]] = self.n_pages
        offsets, ids = chains.expand()
        self.rows = [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(24)]
        self.tree = Tree(self.n_pages, 1, EvictionRule(name))
        self.locked = []

    @precondition(lambda self: self.tree.clock == 0)
    @rule(policy=hs.integers(0, len(POLICIES) - 1), merge=hs.booleans())
    def choose(self, policy: int, merge: bool) -> None:
        self.start(policy)
        self.tree.merge = merge
        self.arenas.scalars[S_MERGE] = merge

    @rule(row=hs.integers(0, 23), n=hs.integers(0, 25))
    def look_up(self, row: int, n: int) -> None:
        assert peek(self.arenas.nodes, self.arenas.table, *self.arenas.tree_args()[4:], row, n) == self.known(row, n)
        node = match(*self.arenas.tree_args(), row, n)
        assert self.arenas.nodes[node, N_END] == self.tree.match(self.rows[row], n)[0]

    def known(self, row: int, n: int) -> int:
        """Pages of a row that are resident, found without touching the tree."""
        node, at = self.tree.root, 0
        while at < n and (child := node.children.get(self.rows[row][at])) is not None:
            same = 0
            while same < len(child.pages) and at + same < n and child.pages[same] == self.rows[row][at + same]:
                same += 1
            at += same
            node = child
            if same < len(child.pages):
                break
        return at

    @rule(row=hs.integers(0, 23), n=hs.integers(1, 25), priority=hs.integers(0, 2), counted=hs.integers(0, 30))
    def put(self, row: int, n: int, priority: int, counted: int) -> None:
        """Inserts, the new pages taken from the pool first, as a request would."""
        a = self.arenas
        make_room(*a.tree_args()[:4], n)
        self.tree.make_room(n)
        if self.tree.available < n:
            return
        matched, node = insert(*a.tree_args(), ROOT, row, n, priority, counted)
        settle(a.scalars, a.nodes, a.heap, node)
        a.scalars[S_AVAILABLE] -= n - matched
        want, _ = self.tree.insert(self.rows[row], n, priority, counted)
        self.tree.available -= n - want
        assert matched == want

    @rule(row=hs.integers(0, 23), n=hs.integers(1, 25))
    def hold(self, row: int, n: int) -> None:
        a = self.arenas
        node = match(*a.tree_args(), row, n)
        _, twin = self.tree.match(self.rows[row], n)
        lock(a.scalars, a.nodes, a.heap, node, ROOT)
        self.tree.lock(twin)
        self.locked.append((node, row, twin))

    @precondition(lambda self: self.locked)
    @rule(data=hs.data())
    def let_go(self, data: hs.DataObject) -> None:
        a = self.arenas
        node, _, twin = self.locked.pop(data.draw(hs.integers(0, len(self.locked) - 1)))
        unlock(a.scalars, a.nodes, a.heap, node)
        self.tree.unlock(twin)

    @rule(pages=hs.integers(0, 150))
    def evict(self, pages: int) -> None:
        make_room(*self.arenas.tree_args()[:4], pages)
        self.tree.make_room(pages)

    @invariant()
    def same(self) -> None:
        s = self.arenas.scalars
        t = self.tree
        assert (s[S_NODES], s[S_AVAILABLE], s[S_EVICTABLE], s[S_PROTECTED], s[S_EVICTED]) == (
            t.n_nodes,
            t.available,
            t.evictable,
            t.protected,
            t.evicted_pages,
        )
        t.check(0)
        ends = sorted(int(self.arenas.nodes[x, N_END]) for x in self.arenas.table[:, 1].tolist() if x != NIL)
        assert ends == sorted(x.end for x in t.nodes())


TreeMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=30)
TestTree = TreeMachine.TestCase
