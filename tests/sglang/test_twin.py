"""Kernels against the plain-Python twin on random workloads, and invariants of both at every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as hs
import numpy as np
import pytest
from hypothesis import example, given, settings

from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.reference_cache import OutOfMemoryError
from prefixsim.engines.sglang.reference_replay import replay_reference
from prefixsim.engines.sglang.reference_tree import EvictionRule, Tree
from prefixsim.engines.sglang.replay import checked, golden_engine, replay_workload
from prefixsim.engines.sglang.state import (
    N_ACCESS,
    N_CHILDREN,
    N_CREATED,
    N_END,
    N_FIRST,
    N_HISTORY,
    N_HITS,
    N_LOCKS,
    N_ORDER,
    N_PARENT,
    N_PRIORITY,
    NIL,
    POLICIES,
    ROOT,
    S_AVAILABLE,
    S_EVICTABLE,
    S_EVICTED,
    S_MERGE,
    S_NEXT_NODE,
    S_NODES,
    S_PAGE,
    S_PAGES,
    S_PEAK_NODES,
    S_POLICY,
    S_PROTECTED,
    S_PROTECTED_THRESHOLD,
    S_TLRU_ESTIMATE,
    S_TLRU_THRESHOLD,
    S_W_EVICT,
    S_W_EVICT_CALLS,
    S_W_EVICT_LEAVES,
    S_W_INSERT,
    S_W_MATCH,
    S_W_MERGE,
    S_W_SPLIT,
)
from prefixsim.engines.sglang.tree_kernels import insert, lock, make_room, match, peek, settle, unlock
from prefixsim.errors import DoesNotFitError
from prefixsim.records import NEVER
from prefixsim.workload.intern import build_chains, build_trie

from .cases import check_arrays, check_heap, random_case, workload_of


def outcome(run: Callable[..., dict[str, Any]], seed: int) -> dict[str, Any] | str:
    """Result of a random case; or that the engine would stop."""
    rows, config = random_case(seed)
    try:
        return run(workload_of(rows), config)
    except (OutOfMemoryError, DoesNotFitError):
        return "out of memory"


@given(hs.integers(0, 2**32 - 1))
@settings(max_examples=150)
@example(1)  # a window, and a request alone, that outgrow the pool
@example(53)
def test_equal_to_twin(seed: int) -> None:
    assert outcome(replay_workload, seed) == outcome(replay_reference, seed)


@pytest.mark.parametrize("seed", [1, 53])
def test_a_request_that_outgrows_the_pool_stops_the_engine(seed: int) -> None:
    rows, config = random_case(seed)
    with pytest.raises(DoesNotFitError, match="out of memory"):
        replay_workload(workload_of(rows), config)


@pytest.mark.parametrize("seed", [206, 1514])
def test_crowds_are_served_in_order_of_arrival(seed: int) -> None:
    """lpm and hrrn are fcfs above 128 waiting requests."""
    rows, config = random_case(seed)
    assert len(rows) > 128
    assert config["schedule_policy"] in {"lpm", "hrrn"}
    workload = workload_of(rows)
    assert replay_workload(workload, config) == replay_reference(workload, config)


@pytest.mark.parametrize("seed", [1863, 2004])
def test_a_last_request_that_outgrows_the_pool_is_aborted(seed: int) -> None:
    rows, config = random_case(seed)
    workload = workload_of(rows)
    got = replay_workload(workload, config)
    assert any(not r["admitted"] and r["chunks"] for r in got["requests"])
    assert got == replay_reference(workload, config)


@given(hs.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_twin_invariants(seed: int) -> None:
    rows, config = random_case(seed)
    steps = []

    def on_step(cache: Any) -> None:
        cache.check()
        steps.append(cache.tree.available)

    try:
        replay_reference(workload_of(rows), config, on_step)
    except OutOfMemoryError:
        return
    assert steps


@given(hs.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_kernel_invariants(seed: int) -> None:
    """After every single iteration of the compiled loop."""
    rows, config = random_case(seed)
    workload = workload_of(rows)
    config = {k: v for k, v in config.items() if k != "width"} | {"mode": "scheduler"}
    engine = golden_engine(workload, checked(config))
    order = np.argsort(workload.step, kind="stable")
    engine.submit(order, workload.step[order])
    for until in range(1, 5000):
        progress = engine.advance(until)
        check_arrays(engine)
        if progress.next_ns == NEVER:
            return
    pytest.fail("does not end")


class Both:
    """Each tree operation on kernels and twin. Keys are tokens of {0, 1, 2} at page size 1, rows share stems of any length."""

    def __init__(self, policy: str, rng: random.Random) -> None:
        tokens: list[list[int]] = []
        for _ in range(24):
            stem = rng.choice(tokens)[: rng.randint(0, 22)] if tokens else []
            tokens.append(stem + [rng.randrange(3) for _ in range(24 - len(stem))])
        rows = [
            {"id": str(i), "step": 0, "tokens": row, "output_tokens": [0], "priority": 0}
            for i, row in enumerate(tokens)
        ]
        chains = build_chains(build_trie(workload_of(rows), "sglang"), 1)
        pages, merge = rng.choice([30, 60, 150]), rng.random() < 0.5
        self.arenas = Arenas(pages, chains, dfs=False, keep_commits=False)
        s = self.arenas.scalars
        s[[S_PAGE, S_PROTECTED_THRESHOLD, S_TLRU_THRESHOLD, S_TLRU_ESTIMATE]] = 1, 2, 9, 3
        s[[S_POLICY, S_MERGE]] = POLICIES.index(policy), merge
        s[[S_PAGES, S_AVAILABLE]] = pages
        offsets, ids = chains.expand()
        self.rows = [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(24)]
        self.tree = Tree(pages, 1, EvictionRule(policy, threshold=9, next_prompt_estimate=3), merge=merge)
        self.locked: list[tuple[int, int, Any]] = []
        self.evictions = [0, 0]

    def room(self, pages: int) -> None:
        """Evicts in both; what looking for victims costs the host is counted where there are too few free pages."""
        if self.tree.available < pages:
            leaves = sum(not x.children and x.locks == 0 for x in self.tree.nodes())
            self.evictions = [self.evictions[0] + 1, self.evictions[1] + leaves]
        make_room(*self.arenas.tree_args()[:4], pages)
        self.tree.make_room(pages)

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

    def put(self, row: int, n: int, priority: int, counted: int) -> None:
        """Inserts, the new pages taken from the pool first, as a request would."""
        a = self.arenas
        self.room(n)
        if self.tree.available < n:
            return
        matched, node = insert(*a.tree_args(), ROOT, row, n, priority, counted)
        settle(a.scalars, a.nodes, a.heap, node)
        a.scalars[S_AVAILABLE] -= n - matched
        want, _ = self.tree.insert(self.rows[row], n, priority, counted)
        self.tree.available -= n - want
        assert matched == want

    def grow(self, which: int, more: int, priority: int, counted: int) -> None:
        """As `put`, from the node that a request holds on."""
        a = self.arenas
        start, row, _ = self.locked[which]
        n = max(1, min(24, int(a.nodes[start, N_END]) + more))
        self.room(n)
        if self.tree.available < n:
            return
        matched, node = insert(*a.tree_args(), start, row, n, priority, counted)
        settle(a.scalars, a.nodes, a.heap, node)
        want, _ = self.tree.insert(self.rows[row], n, priority, counted)
        assert matched == want
        a.scalars[S_AVAILABLE] -= n - matched
        self.tree.available -= n - want

    def hold(self, row: int, n: int) -> None:
        a = self.arenas
        node = match(*a.tree_args(), row, n)
        _, twin = self.tree.match(self.rows[row], n)
        lock(a.scalars, a.nodes, a.heap, node, ROOT)
        self.tree.lock(twin)
        self.locked.append((node, row, twin))

    def let_go(self, which: int) -> None:
        a = self.arenas
        node, _, twin = self.locked.pop(which)
        unlock(a.scalars, a.nodes, a.heap, node)
        self.tree.unlock(twin)

    def same(self) -> None:
        s, nodes, t = self.arenas.scalars, self.arenas.nodes, self.tree
        assert (s[S_NODES], s[S_AVAILABLE], s[S_EVICTABLE], s[S_PROTECTED], s[S_EVICTED]) == (
            t.n_nodes,
            t.available,
            t.evictable,
            t.protected,
            t.evicted_pages,
        )
        t.check(0)
        assert s[S_PEAK_NODES] == s[S_NEXT_NODE] - 1 == t.peak_nodes, "freed nodes are used again"
        assert s[[S_W_MATCH, S_W_INSERT, S_W_SPLIT, S_W_EVICT, S_W_MERGE]].tolist() == list(t.work.values())
        assert s[[S_W_EVICT_CALLS, S_W_EVICT_LEAVES]].tolist() == self.evictions
        live = [x for x in self.arenas.table[:, 1].tolist() if x != NIL]
        firsts = nodes[live, N_FIRST].tolist()
        twins = {x.pages[0]: x for x in t.nodes()}
        assert sorted(firsts) == sorted(twins)
        for x, first in zip(live, firsts, strict=True):
            twin = twins[first]
            parent = int(nodes[x, N_PARENT])
            assert parent == ROOT if twin.parent is t.root else nodes[parent, N_FIRST] == twin.parent.pages[0]
            got = nodes[x, [N_END, N_HITS, N_PRIORITY, N_LOCKS, N_CHILDREN]].tolist()
            assert got == [twin.end, twin.hits, twin.priority, twin.locks, len(twin.children)]
            assert t.rule.policy != "tlru" or nodes[x, N_HISTORY] == twin.history
        check_heap(self.arenas, live)
        for column, name in ((N_ACCESS, "accessed"), (N_CREATED, "created"), (N_ORDER, "order")):
            ours, theirs = nodes[live, column], [getattr(twins[first], name) for first in firsts]
            assert (
                np.unique(ours, return_inverse=True)[1].tolist() == np.unique(theirs, return_inverse=True)[1].tolist()
            )


@pytest.mark.parametrize("policy", POLICIES)
@given(seed=hs.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_tree_equals_twin(policy: str, seed: int) -> None:
    """Long random walks, everything compared after each operation."""
    rng = random.Random(seed)
    both = Both(policy, rng)
    for _ in range(60):
        row, n, priority, counted = rng.randrange(24), rng.randint(1, 24), rng.randrange(3), rng.randint(0, 30)
        what = rng.choice(["look_up", "put", "put", "put", "hold", "let_go", "grow", "evict"])
        if what == "look_up":
            both.look_up(row, rng.choice([0, n]))
        elif what == "put":
            both.put(row, n, priority, counted)
        elif what == "hold":
            both.hold(row, n)
        elif what == "evict":
            both.room(rng.choice([both.tree.available, both.tree.available + 1, 5 * n]))
        elif both.locked:
            which = rng.randrange(len(both.locked))
            if what == "grow":
                both.grow(which, rng.randint(0, 12), priority, counted)
            else:
                both.let_go(which)
        both.same()
