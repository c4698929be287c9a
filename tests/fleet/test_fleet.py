"""The fleet: causality, order, equality of its ways to serve, routers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.engines.contract import EngineInputs
from prefixsim.fleet.approx_tree import ApproxTree
from prefixsim.fleet.approx_tree_twin import TwinTree
from prefixsim.fleet.fleet import Fleet
from prefixsim.fleet.pending import Followers, Pending
from prefixsim.fleet.routers.base import RouterContext, make_router, router_classes
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_FINISH_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_FINISHED,
    new_request_rows,
)
from prefixsim.scenario.router import ROUTERS
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, make_workload

from .fake_engine import FakeEngine

GRANULARITY = 4


def workload(rng, n, *, chained, span_ns=30_000):
    """n requests whose prompts share prefixes of up to 3 atoms; some wait for an earlier one."""
    prompts = [[int(a) for a in rng.integers(0, 3, rng.integers(1, 4))] + [100 + r] for r in range(n)]
    lengths = [[int(t) for t in rng.integers(1, 9, len(p))] for p in prompts]
    after = np.full(n, -1)
    if chained:
        for r in range(1, n):
            if rng.random() < 0.6:
                after[r] = rng.integers(0, r)
    return make_workload(
        source=Source("test"),
        prompt_tokens=[sum(t) for t in lengths],
        output_tokens=rng.integers(1, 6, n),
        atom_offset=np.concatenate([[0], np.cumsum([len(p) for p in prompts])]),
        prompt_atoms=[len(p) for p in prompts],
        atom_id=np.concatenate(prompts),
        atom_tokens=np.concatenate(lengths),
        arrival_ns=np.sort(rng.integers(0, span_ns, n)),
        after=after,
        delay_ns=rng.integers(0, 3, n) * rng.integers(0, 4000),
        session=rng.integers(-1, 4, n),
        session_names=("a", "b", "c", "d"),
    )


def serve(w, router="round_robin", replicas=3, single_step=False, options=None):
    """(rows, result, engines) of one run."""
    trie = build_trie(w, "none")
    chains = build_chains(trie, GRANULARITY)
    rows = new_request_rows(w.n)
    awaited = np.zeros(w.n, dtype=np.bool_)
    awaited[w.after[w.after >= 0]] = True
    engines = [
        FakeEngine(EngineInputs(w, chains, StepCosts.steps(), 0, rows, awaited, replica=i, single_step=single_step))
        for i in range(replicas)
    ]
    chosen = make_router(ROUTERS[router](**(options or {})), RouterContext(w, replicas, 7, lambda: trie))
    looks: list[tuple[int, int, list[int]]] = []
    observe = chosen.observe

    def logged(request, view):
        observe(request, view)
        looks.append((view.now_ns, request, list(chosen.seen[request])))

    if chosen.lag_ns:
        chosen.observe = logged
        engines[0].looks = looks
    fleet = Fleet(engines, chosen, rows, w.arrival_ns, w.after, w.delay_ns, single_step=single_step)
    return rows, fleet.serve(), engines


@pytest.mark.parametrize("router", sorted(ROUTERS))
@given(seed=st.integers(0, 10_000), chained=st.booleans(), replicas=st.integers(1, 4))
@settings(max_examples=15)
def test_step_and_jump_are_identical(router, seed, chained, replicas):
    w = workload(np.random.default_rng(seed), 24, chained=chained)
    options = {"lag_s": 1e-5, "overlap_weight": 100.0} if router == "kv_events" else None
    jump, a, engines = serve(w, router, replicas, options=options)
    step, b, stepped = serve(w, router, replicas, single_step=True, options=options)
    assert np.array_equal(jump, step)
    assert [e.log for e in engines] == [e.log for e in stepped]
    assert getattr(engines[0], "looks", []) == getattr(stepped[0], "looks", [])
    assert a.never_released == b.never_released == 0
    assert a.events <= b.events


@given(seed=st.integers(0, 10_000), router=st.sampled_from(sorted(ROUTERS)))
@settings(max_examples=30)
def test_every_request_is_served_once_and_not_before_its_cause(seed, router):
    w = workload(np.random.default_rng(seed), 30, chained=True)
    rows, _, engines = serve(w, router)
    assert (rows[:, REQ_STATUS] == STATUS_FINISHED).all()
    served = [r for e in engines for r in {r for _, running in e.log for r in running}]
    assert sorted(served) == list(range(w.n))
    for r in range(w.n):
        cause = rows[w.after[r], REQ_FINISH_NS] + w.delay_ns[r] if w.after[r] >= 0 else w.arrival_ns[r]
        assert rows[r, REQ_RELEASED_NS] == cause
        assert r in {x for _, running in engines[rows[r, REQ_REPLICA]].log for x in running}


def test_an_uncoupled_run_is_two_events_a_replica():
    w = workload(np.random.default_rng(1), 200, chained=False)
    _, one, _ = serve(w, replicas=1)
    _, four, _ = serve(w, replicas=4)
    assert one.events <= 4
    _, closed, _ = serve(workload(np.random.default_rng(1), 200, chained=True), replicas=1)
    assert closed.events <= 4
    assert four.events <= 16


def test_routers_and_options_are_the_same_set():
    assert set(router_classes()) == set(ROUTERS)


def test_every_router_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    assert [name for name in ROUTERS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_the_same_seed_gives_the_same_choices_and_loads_are_shared_out(router):
    w = workload(np.random.default_rng(3), 120, chained=False, span_ns=200_000)
    a, b = serve(w, router)[0], serve(w, router)[0]
    assert np.array_equal(a, b)
    assert len(set(a[:, REQ_REPLICA].tolist())) == 3


def test_session_affinity_keeps_sessions_together_and_moves_few_when_a_replica_is_added():
    w = workload(np.random.default_rng(4), 300, chained=False)
    three, four = (serve(w, "session_affinity", n)[0][:, REQ_REPLICA] for n in (3, 4))
    for s in range(4):
        assert len(set(three[w.session == s].tolist())) == 1
    alone = w.session < 0
    moved = (three != four)[alone]
    assert 0 < moved.mean() < 0.5
    assert (four[alone][moved] == 3).all()


def test_least_loaded_never_takes_a_busier_replica():
    w = workload(np.random.default_rng(5), 60, chained=False, span_ns=5_000)
    counts = np.bincount(serve(w, "least_loaded")[0][:, REQ_REPLICA], minlength=3)
    assert counts.max() - counts.min() <= 6


def _cached(router, w, **options):
    from prefixsim.records import REQ_CACHED_TOKENS

    return int(serve(w, router, options=options)[0][:, REQ_CACHED_TOKENS].sum())


def test_routers_that_look_at_prefixes_hit_more_than_those_that_do_not():
    w = workload(np.random.default_rng(6), 150, chained=False, span_ns=3_000_000)
    blind = _cached("round_robin", w)
    assert _cached("oracle", w) > blind
    assert _cached("kv_events", w, lag_s=0.0, overlap_weight=1000.0) > blind
    assert _cached("cache_aware", w) > blind


def test_a_kv_event_lag_makes_the_view_exactly_that_stale():
    n, lag_us = 12, 50  # the same prompt again and again, 20 µs apart
    w = make_workload(
        source=Source("test"), prompt_tokens=[40] * n, output_tokens=[1] * n, atom_offset=np.arange(n + 1),
        prompt_atoms=[1] * n, atom_id=[5] * n, atom_tokens=[40] * n, arrival_ns=np.arange(n) * 20_000,
    )  # fmt: skip
    looks = serve(w, "kv_events", options={"lag_s": lag_us * 1e-6})[2][0].looks
    # The first request is computed at time 0: only views of a later instant can show it.
    assert sorted(looks, key=lambda x: x[1]) == [
        (max(20 * k - lag_us, 0) * 1000, k, [36 if 20 * k > lag_us else 0, 0, 0]) for k in range(n)
    ]


@given(seed=st.integers(0, 10_000), limit=st.integers(8, 200))
@settings(max_examples=25)
def test_the_approximate_tree_equals_its_twin(seed, limit):
    rng = np.random.default_rng(seed)
    w = workload(rng, 40, chained=False)
    trie = build_trie(w, "none")
    tree, twin = (make(trie, w.prompt_tokens, 3) for make in (ApproxTree, TwinTree))
    trimmed = 0
    for r in range(w.n):
        assert tree.match(r) == twin.match(r)
        replica = int(rng.integers(0, 3))
        tree.enter(r, replica)
        twin.enter(r, replica)
        if r % 10 == 9:
            before = tree.size_tokens.sum()
            tree.trim(limit)
            twin.trim(limit)
            trimmed += before - tree.size_tokens.sum()
            assert (tree.size_tokens <= limit).all()
        assert tree.size_tokens.tolist() == [twin.size(i) for i in range(3)]
        assert [dict(zip(np.flatnonzero(s).tolist(), s[s > 0].tolist(), strict=True)) for s in tree.sent] == twin.sent
    assert trimmed > 0 or limit > 60


def test_cache_aware_follows_the_longest_match_unless_loads_are_unequal():
    w = workload(np.random.default_rng(8), 40, chained=False)
    trie = build_trie(w, "none")

    class View:
        now_ns, load = 0, (0, 0)

        def loads(self):
            return list(self.load)

    router = make_router(ROUTERS["cache_aware"](), RouterContext(w, 2, 0, lambda: trie))
    view = View()
    view.load = (3, 2)
    assert router.route(0, view) == 1  # nothing known: the least loaded
    view.load = (0, 64)
    assert router.route(0, view) == 1  # all of it known there, and 64 more is not too many
    view.load = (0, 65)
    assert router.route(0, view) == 0  # 65 more is
    view.load = (130, 195)
    assert router.route(0, view) == 0  # not 1.5 times as many: balanced, and sent to 0 last


def test_pending_is_ordered_by_time_then_request():
    p = Pending(np.array([0, 1, 2, 3]), np.array([5, 3, 5, 9]))
    p.push(7, 5)
    p.push(6, 4)
    assert p.peek_ns() == 3
    assert p.take(5) == [(3, 1), (4, 6), (5, 0), (5, 2), (5, 7)]
    assert p.peek_ns() == 9
    assert p.take(8) == []
    assert p.take(9) == [(9, 3)]
    assert p.peek_ns() == NEVER


def test_followers():
    f = Followers(np.array([-1, 0, 0, 2, -1]), np.array([0, 7, 5, 9, 0]))
    assert [f.of(r).tolist() for r in range(5)] == [[1, 2], [], [3], [], []]
    assert f.least_delay_ns == 5
    assert not Followers(np.array([-1, -1]), np.array([0, 0])).any


def test_a_replica_does_not_run_past_the_instant_at_which_its_cache_is_looked_at():
    # Four requests fill the engine until about 61 µs; the fifth is then admitted. The sixth has its prompt and arrives at
    # 100 µs; 50 µs before, nothing of it is in the cache. The seventh waits for it, which is what couples the run.
    w = make_workload(
        source=Source("test"), prompt_tokens=[8] * 7, output_tokens=[60] * 4 + [2, 2, 2], atom_offset=np.arange(8),
        prompt_atoms=[1] * 7, atom_id=[0, 1, 2, 3, 4, 4, 4], atom_tokens=[8] * 7,
        arrival_ns=[0, 0, 0, 0, 0, 100_000, 0], after=[-1] * 6 + [5],
    )  # fmt: skip
    rows, _, engines = serve(w, "kv_events", 1, options={"lag_s": 50e-6})
    assert 50_000 < rows[4, REQ_FINISH_NS] < 100_000
    assert engines[0].looks[5] == (50_000, 5, [0])
