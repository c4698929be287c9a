"""SGLang with a host tier: the compiled tree against its twin, operation by operation, and engines as a whole."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import hypothesis.strategies as hs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.engine import SglangEngine, build
from prefixsim.engines.sglang.heap_kernels import leaf_key
from prefixsim.engines.sglang.hicache import prepare
from prefixsim.engines.sglang.hicache_kernels import back_up_path, finish_backups, load_back, peek_tiers, split_hit
from prefixsim.engines.sglang.host_kernels import copy_out
from prefixsim.engines.sglang.reference_hicache import HostTree
from prefixsim.engines.sglang.reference_tree import EvictionRule, Node
from prefixsim.engines.sglang.tree_kernels import insert, lock, make_room, mark_prompt, match, settle, unlock
from prefixsim.engines.tiers import layout as lt
from prefixsim.engines.tiers.arrays import HostTier
from prefixsim.engines.tiers.twin import TwinLink
from prefixsim.errors import DoesNotFitError, NotModelledError
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
    REQ_CACHED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_STATUS,
    STATUS_FINISHED,
    new_request_rows,
)
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload
from sglang.cases import check_heap, simple_costs, workload_of

SLOW = HostTier(bytes_per_token=1000, in_bytes_per_s=2e8, out_bytes_per_s=1e8, per_block_s=2e-6, latency_s=5e-6)
FREE = HostTier(bytes_per_token=0, in_bytes_per_s=1.0, out_bytes_per_s=1.0)
FLOOR = 3


class TreeMachine(RuleBasedStateMachine):
    """Tree operations in any order on kernels and twin side by side. Keys are tokens of {0, 1} at page size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.start("lru", 60, 1)

    def start(self, policy: str, host_pages: int, uses: int) -> None:
        rng = np.random.default_rng(st.POLICIES.index(policy))
        rows = [
            {"id": str(i), "step": 0, "tokens": rng.integers(0, 2, 24).tolist(), "output_tokens": [0], "priority": 0}
            for i in range(24)
        ]
        chains = build_chains(build_trie(workload_of(rows), "sglang"), 1)
        self.n_pages = 50
        self.arenas = Arenas(self.n_pages, chains, dfs=False, keep_commits=False, tier=True)
        s = self.arenas.scalars
        s[[st.S_PAGE, st.S_PROTECTED_THRESHOLD]] = 1, 2
        s[st.S_POLICY] = st.POLICIES.index(policy)
        s[[st.S_PAGES, st.S_AVAILABLE]] = self.n_pages
        prepare(s, host_pages, uses, 1, SLOW)
        s[st.S_LOAD_FLOOR] = FLOOR
        offsets, ids = chains.expand()
        self.rows = [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(24)]
        link = TwinLink(SLOW.out_ps(1), SLOW.latency_ps)
        self.tree = HostTree(self.n_pages, 1, EvictionRule(policy), host_pages=host_pages, uses=uses or 1, link=link)
        self.tree.write_back = uses == 0
        self.locked: list[tuple[int, Node]] = []
        self.now = 0

    @initialize(
        policy=hs.sampled_from(st.POLICIES), host_pages=hs.sampled_from([10, 30, 60, 200]), uses=hs.integers(0, 2)
    )
    def choose(self, policy: str, host_pages: int, uses: int) -> None:
        self.start(policy, host_pages, uses)

    @rule(row=hs.integers(0, 23), n=hs.integers(0, 25))
    def look_up(self, row: int, n: int) -> None:
        a = self.arenas
        seen = peek_tiers(a.nodes, a.table, *a.tree_args()[4:], row, n)
        node = match(*a.tree_args(), row, n)
        want, twin = self.tree.match(self.rows[row], n)
        last, below = self.tree.hit(twin)
        assert a.nodes[node, st.N_END] == want
        got, pages = split_hit(a.nodes, node)
        assert (a.nodes[got, st.N_END], pages) == (last.end, below)
        assert seen == (last.end, want)

    @rule(
        row=hs.integers(0, 23),
        n=hs.integers(1, 25),
        priority=hs.integers(0, 2),
        counted=hs.integers(0, 30),
        cut=hs.integers(0, 24),
    )
    def put(self, row: int, n: int, priority: int, counted: int, cut: int) -> None:
        """Inserts, the new pages taken from the pool first, as a request would; then backs up; then cuts."""
        a = self.arenas
        if self.tree.write_back:
            counted = 1000  # it counts no hits
        make_room(*a.tree_args()[:4], n)
        self.tree.make_room(n)
        if self.tree.available < n:
            return
        a.scalars[[st.S_NOW, st.S_INSERT_NS]] = self.now
        matched, node = insert(*a.tree_args(), st.ROOT, row, n, priority, counted)
        back_up_path(*a.tree_args()[:4], node, counted)
        if 0 < cut < n:
            mark_prompt(*a.tree_args(), node, cut, priority + 1)
        settle(a.scalars, a.nodes, a.heap, node)
        a.scalars[st.S_AVAILABLE] -= n - matched
        want, twin = self.tree.insert(self.rows[row], n, priority, counted)
        self.tree.back_up(twin, counted, self.now)
        if 0 < cut < n:
            self.tree.insert(self.rows[row], cut, priority + 1, cut)
        self.tree.available -= n - want
        assert matched == want

    @rule(row=hs.integers(0, 23), n=hs.integers(1, 25))
    def hold(self, row: int, n: int) -> None:
        """Looks up, locks what is on the GPU, loads the rest."""
        a = self.arenas
        node = match(*a.tree_args(), row, n)
        _, twin = self.tree.match(self.rows[row], n)
        last, below = split_hit(a.nodes, node)
        lock(a.scalars, a.nodes, a.heap, last, st.ROOT)
        twin_last, _ = self.tree.hit(twin)
        self.tree.lock(twin_last)
        if below:
            loaded = load_back(*a.tree_args()[:4], node, last)
            assert loaded == self.tree.load_back(twin, FLOOR)
            if loaded:
                last, twin_last = node, twin  # type: ignore[assignment]
        self.locked.append((last, twin_last))

    @precondition(lambda self: self.locked)
    @rule(data=hs.data())
    def let_go(self, data: hs.DataObject) -> None:
        a = self.arenas
        node, twin = self.locked.pop(data.draw(hs.integers(0, len(self.locked) - 1)))
        unlock(a.scalars, a.nodes, a.heap, node)
        self.tree.unlock(twin)

    @rule(pages=hs.integers(0, 50))
    def evict(self, pages: int) -> None:
        make_room(*self.arenas.tree_args()[:4], pages)
        self.tree.make_room(pages)

    @rule(ns=hs.sampled_from([1000, 100_000, 5_000_000]))
    def wait(self, ns: int) -> None:
        self.now += ns
        self.tree.now = self.now
        self.arenas.scalars[[st.S_NOW, st.S_INSERT_NS]] = self.now
        finish_backups(self.arenas.scalars, self.arenas.nodes, self.arenas.heap, self.now)
        self.tree.finish(self.now)

    @rule()
    def grow(self) -> None:
        """Backups in progress and host leaves survive larger arrays."""
        if self.arenas.nodes.shape[0] < 8192:
            self.arenas.grow_nodes(0)

    @invariant()
    def same(self) -> None:
        s, t = self.arenas.scalars, self.tree
        assert (s[st.S_NODES], s[st.S_AVAILABLE], s[st.S_EVICTABLE], s[st.S_PROTECTED], s[st.S_EVICTED]) == (
            t.n_nodes,
            t.available,
            t.evictable,
            t.protected,
            t.evicted_pages,
        )
        assert (s[st.S_HOST_AVAILABLE], s[st.S_HOST_EVICTED], s[st.S_HOST_FAILED]) == (
            t.host_free,
            t.host_evicted,
            t.failed,
        )
        assert s[st.S_RING_N] == len(t.writing)
        assert (s[st.S_STALL_NS], s[st.S_STALLED]) == (t.stalled_until, t.stalled)
        check_heap(self.arenas, [x for x in self.arenas.table[:, 1].tolist() if x != st.NIL])
        again, node = [], int(self.arenas.nodes[st.ROOT, st.N_TWICE_NEXT])
        while node != st.ROOT:
            again.append(int(self.arenas.nodes[node, st.N_END]))
            node = int(self.arenas.nodes[node, st.N_TWICE_NEXT])
        assert again == [x.end for x in t.twice]
        leaves = [x for x in t.nodes() if not x.device and not x.children]  # type: ignore[attr-defined]
        nodes, n = self.arenas.nodes, int(s[st.S_HOST_LEAVES])
        heap = nodes[:n, st.N_HOST_HEAP].tolist()
        assert sorted(nodes[heap, st.N_FIRST].tolist()) == sorted(x.pages[0] for x in leaves)
        assert nodes[heap, st.N_HOST_PLACE].tolist() == list(range(n))
        order = [(int(leaf_key(s, nodes, x)), int(nodes[x, st.N_ACCESS])) for x in heap]
        assert all(order[(i - 1) // 2] < order[i] for i in range(1, n))
        assert s[st.S_PEAK_NODES] == s[st.S_NEXT_NODE] - 1, "freed nodes are used again"
        t.check_tiers()


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("overlap", "start"), [(0, 700), (1, 900)])
def test_a_copy_waits_for_the_step_that_may_still_write(overlap: int, start: int) -> None:
    m = TreeMachine()
    m.put(0, 20, 0, 30, 0)
    s, nodes = m.arenas.scalars, m.arenas.nodes
    node = next(x for x in m.arenas.table[:, 1].tolist() if x != st.NIL and nodes[x, st.N_HOST] == 0)
    s[[st.S_OVERLAP, st.S_GPU_FREE]] = overlap, 900
    s[st.S_LINK + lt.T_OUT_FREE] = 0
    pages = int(nodes[node, st.N_END] - nodes[nodes[node, st.N_PARENT], st.N_END])
    assert copy_out(s, nodes, node, 700) == TwinLink(SLOW.out_ps(1), SLOW.latency_ps).transfer(start, pages)


def walk(seed: int, steps: int) -> tuple[TreeMachine, int]:
    """A long random walk of the machine: (it, loads made). Hypothesis' own runs are short and seldom load."""
    rng = random.Random(seed)
    m = TreeMachine()
    m.start(rng.choice(st.POLICIES), rng.choice([10, 30, 60, 200]), rng.randrange(3))
    loads = 0
    for _ in range(steps):
        row, n = rng.randrange(24), rng.randint(1, 24)
        op = rng.choice(["look_up", "put", "put", "hold", "hold", "let_go", "let_go", "evict", "wait"])
        if op == "put":
            m.put(row, n, rng.randrange(3), rng.choice([0, 0, 8, 30]), rng.choice([0, 0, n // 2]))
        elif op == "hold" and len(m.locked) < 4:
            before = m.tree.available
            m.hold(row, n)
            loads += m.tree.available < before
        elif op == "let_go" and m.locked:
            node, twin = m.locked.pop(rng.randrange(len(m.locked)))
            unlock(m.arenas.scalars, m.arenas.nodes, m.arenas.heap, node)
            m.tree.unlock(twin)
        elif op == "look_up":
            m.look_up(row, n)
        elif op == "evict":
            m.evict(rng.choice([10, 30, 50]))
        elif op == "wait":
            m.wait(rng.choice([1000, 100_000, 5_000_000]))
        m.same()
    return m, loads


def test_long_walks_equal_the_twin() -> None:
    loads = given_up = failed = skipped = 0
    for seed in range(40):
        m, n = walk(seed, 200)
        loads += n
        given_up += m.tree.given_up
        failed += m.tree.failed
        skipped += int(m.arenas.scalars[st.S_LOAD_SKIPPED])
    assert min(loads, given_up, failed, skipped) > 10, (loads, given_up, failed, skipped)


def options(**more: Any) -> SglangOptions:
    return SglangOptions(**({"name": "s", "enable_hierarchical_cache": True, "schedule_policy": "lpm"} | more))


def engine(w: Workload, o: SglangOptions, tokens: int, host: HostTier | None, **more: Any) -> SglangEngine:
    chains = build_chains(build_trie(w, "sglang"), o.page_size)
    awaited = more.pop("awaited", np.zeros(w.n, dtype=np.bool_))
    inputs = EngineInputs(w, chains, simple_costs(), tokens, new_request_rows(w.n), awaited, host=host, **more)
    return build(o, inputs)


def run(w: Workload, o: SglangOptions, tokens: int, host: HostTier | None, **more: Any) -> SglangEngine:
    e = engine(w, o, tokens, host, **more)
    e.submit(np.arange(w.n), w.arrival_ns)
    for _ in range(10_000):
        if e.advance(NEVER).next_ns == NEVER:
            return e
    raise AssertionError("does not end")


def case(seed: int, apart: float | None = None) -> tuple[Workload, SglangOptions, int]:
    """Conversations that go on and branch; a pool that just fits."""
    rng = random.Random(seed)
    stems: list[list[int]] = [[]]
    rows: list[dict[str, Any]] = []
    at = 0.0
    for i in range(rng.randint(6, 18)):
        stem = rng.choice(stems[-6:])
        tokens = (stem + [rng.randrange(3) for _ in range(rng.randint(1, 30))])[:120]
        outputs = [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        at = float(i) if apart else at + rng.choice([0, 0.0001, 0.01])
        rows.append({"id": f"r{i}", "arrival": at, "tokens": tokens, "output_tokens": outputs})
        stems.append(tokens + outputs)
    page = rng.choice([1, 1, 4, 8])
    longest = max(len(r["tokens"]) + len(r["output_tokens"]) for r in rows)
    o = options(
        page_size=page,
        hicache_ratio=rng.choice([0.5, 1.0, 2.0, 20.0]),
        hicache_write_policy=rng.choice(["write_through", "write_through_selective", "write_back"]),
        schedule_policy=rng.choice(["fcfs", "lpm"]),
        disable_overlap_schedule=rng.random() < 0.3,
        chunked_prefill_size=rng.choice([-1, 32, 64]),
        radix_eviction_policy=rng.choice(["lru", "lru", "lfu", "slru"]),
    )
    return workload_from_rows(rows, Source(kind="test")), o, (longest + 20 + 2 * page) * rng.choice([1, 2])


def conserved(e: SglangEngine) -> None:
    """Nothing leaks: at the end no request holds a page, and each host page in use has its node."""
    s = e.arenas.scalars
    finish_backups(s, e.arenas.nodes, e.arenas.heap, NEVER)
    assert s[st.S_PROTECTED] == 0
    assert s[st.S_AVAILABLE] + s[st.S_EVICTABLE] == s[st.S_PAGES]
    assert 0 <= s[st.S_HOST_AVAILABLE] <= s[st.S_HOST_PAGES]
    a = e.arenas
    live = [int(n) for n in a.table[a.table[:, 1] != st.NIL, 1]]
    pages = {n: int(a.nodes[n, st.N_END] - a.nodes[a.nodes[n, st.N_PARENT], st.N_END]) for n in live}
    assert len(live) == s[st.S_NODES]
    assert sum(pages[n] for n in live if a.nodes[n, st.N_HOST]) == s[st.S_HOST_PAGES] - s[st.S_HOST_AVAILABLE]
    assert sum(pages[n] for n in live if a.nodes[n, st.N_DEVICE]) == s[st.S_EVICTABLE]


@settings(max_examples=60)
@given(seed=hs.integers(0, 2**32 - 1), slow=hs.booleans())
def test_engines_end_clean(seed: int, slow: bool) -> None:
    w, o, tokens = case(seed)
    try:
        e = run(w, o, tokens, SLOW if slow else FREE)
    except DoesNotFitError:
        return
    got = e.inputs.rows
    assert (got[:, REQ_STATUS] == STATUS_FINISHED).all()
    conserved(e)
    hit, host, device = got[:, REQ_CACHED_TOKENS], got[:, REQ_CACHED_HOST_TOKENS], got[:, REQ_DEVICE_TOKENS]
    assert np.array_equal(hit, host + device)
    assert (hit <= np.minimum(got[:, REQ_KNOWN_TOKENS], w.prompt_tokens - 1)).all()
    totals = e.record().totals
    assert totals["host_cached_tokens"] == host.sum()
    assert totals["host_loaded_tokens"] >= host.sum()


@settings(max_examples=30)
@given(seed=hs.integers(0, 2**32 - 1))
def test_cut_into_pieces_gives_the_same(seed: int) -> None:
    w, o, tokens = case(seed)
    try:
        whole = run(w, o, tokens, SLOW)
    except DoesNotFitError:
        return
    rng = random.Random(seed)
    awaited = np.array([rng.random() < 0.5 for _ in range(w.n)], dtype=np.bool_)
    pieces = engine(w, o, tokens, SLOW, awaited=awaited, single_step=rng.random() < 0.5)

    def advance(until: int) -> None:
        while pieces.advance(until).next_ns < until:
            pass

    for i in range(w.n):
        advance(int(w.arrival_ns[i]))
        pieces.submit(np.array([i]), w.arrival_ns[i : i + 1])
    advance(NEVER)
    assert np.array_equal(pieces.inputs.rows, whole.inputs.rows)
    assert pieces.record().totals == whole.record().totals


@pytest.mark.parametrize("seed", range(8))
def test_without_host_memory_nothing_changes(seed: int) -> None:
    w, o, tokens = case(seed)
    none = o.model_copy(update={"hicache_ratio": 0.0})
    off = o.model_copy(update={"enable_hierarchical_cache": False})
    try:
        a, b = run(w, none, tokens, SLOW), run(w, off, tokens, None)
    except DoesNotFitError:
        pytest.skip("does not fit")
    assert a.inputs.rows.tobytes() == b.inputs.rows.tobytes()
    ra, rb = a.record(), b.record()
    assert (ra.totals, ra.counters, ra.notes) == (rb.totals, rb.counters, rb.notes)
    assert ra.timeline.tobytes() == rb.timeline.tobytes()


@settings(max_examples=40)
@given(seed=hs.integers(0, 2**32 - 1))
def test_an_endless_free_tier_serves_all_that_was_ever_computed(seed: int) -> None:
    """One request at a time, loads of any size allowed."""
    w, o, tokens = case(seed, apart=1.0)
    o = o.model_copy(
        update={
            "hicache_ratio": 1e4,
            "hicache_write_policy": random.Random(seed).choice(["write_through", "write_back"]),
        }
    )
    e = engine(w, o, tokens, FREE)
    e.arenas.scalars[st.S_LOAD_FLOOR] = 1
    e.submit(np.arange(w.n), w.arrival_ns)
    e.advance(NEVER)
    page = o.page_size
    ceiling = np.minimum(e.inputs.rows[:, REQ_KNOWN_TOKENS], (w.prompt_tokens - 1) // page * page)
    assert np.array_equal(e.inputs.rows[:, REQ_CACHED_TOKENS], ceiling)


def test_the_cases_are_not_vacuous() -> None:
    names = ("host_cached_tokens", "host_evicted_tokens", "host_store_failures", "host_loads_skipped_tokens")
    names += ("load_wait_ns", "link_out_wait_ns", "write_back_stall_ns")
    sums = dict.fromkeys(names, 0)
    apart = 0
    for seed in range(60):
        w, o, tokens = case(seed)
        try:
            totals = run(w, o, tokens, SLOW).record().totals
        except DoesNotFitError:
            continue
        for name in names:
            sums[name] += totals[name]
        w, o, tokens = case(seed, apart=1.0)
        apart += int(run(w, o, tokens, FREE).inputs.rows[:, REQ_CACHED_HOST_TOKENS].sum() > 0)
    assert all(sums.values()), sums
    assert apart >= 10


def test_selective_copies_at_the_second_use() -> None:
    rows = [{"id": str(i), "arrival": float(i), "tokens": list(range(40)), "output_tokens": [1]} for i in range(3)]
    w = workload_from_rows(rows, Source(kind="test"))
    for policy, expected in (("write_through", [40, 40]), ("write_through_selective", [0, 40])):
        stored = []
        for n in (1, 2):
            first = workload_from_rows(rows[:n], Source(kind="test"))
            e = run(first, options(hicache_write_policy=policy), 200, FREE)
            stored.append(e.record().totals["host_stored_tokens"])
        assert stored == expected, policy
    assert w.n == 3


def test_a_load_delays_its_step() -> None:
    """64 tokens from host memory, 1 ms a token: the (one) layer can't start before all is there."""
    rows: list[dict[str, Any]] = [{"id": "a", "arrival": 0.0, "tokens": list(range(65)), "output_tokens": [1]}]
    rows += [
        {"id": f"f{i}", "arrival": 1.0 + i, "tokens": [100 * (i + 1) + k for k in range(90)], "output_tokens": [1]}
        for i in range(3)
    ]
    rows.append({"id": "again", "arrival": 20.0, "tokens": list(range(65)), "output_tokens": [1]})
    w = workload_from_rows(rows, Source(kind="test"))
    host = HostTier(bytes_per_token=1, in_bytes_per_s=1e3, out_bytes_per_s=1e9)
    slow, fast = (run(w, options(hicache_ratio=10), 150, h).inputs.rows for h in (host, FREE))
    assert slow[4, [REQ_CACHED_TOKENS, REQ_CACHED_HOST_TOKENS, REQ_DEVICE_TOKENS]].tolist() == [64, 64, 0]
    took = [int(x[4, REQ_FIRST_TOKEN_NS] - x[4, REQ_ADMITTED_NS]) for x in (slow, fast)]
    gpu = took[1]
    assert took[0] == 64_000_000 + gpu


def test_what_is_not_modelled_is_refused_by_name() -> None:
    w, _, tokens = case(1)
    for more, what in (
        ({"hicache_storage_backend": "file"}, "third tier"),
        ({"schedule_policy": "dfs-weight"}, "dfs-weight"),
    ):
        with pytest.raises(NotModelledError, match=what):
            engine(w, options(**more), tokens, FREE)
    with pytest.raises(NotModelledError, match="hardware"):
        engine(w, options(), tokens, None)
    assert lt.T_OUT_WAIT == st.LINK_SCALARS - 1
    assert replace(FREE, gpus=2).gpus == 2
