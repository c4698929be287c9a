"""The timed engine: the same whatever way it is driven, and what its records say."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as hs
import numpy as np
import pytest
from hypothesis import given, settings

from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.engine import SglangEngine
from prefixsim.errors import DoesNotFitError, ScenarioError
from prefixsim.hardware.steptime import HostCosts
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_PREEMPTIONS,
    REQ_RECOMPUTED_TOKENS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    TL_END_NS,
    TL_EVICTED_TOKENS,
    TL_SCHEDULED_TOKENS,
    TL_START_NS,
)
from prefixsim.workload.table import Source, Workload, make_workload

from .cases import SCHEDULES, check_arrays, engine_of, native_rows, simple_costs, workload_of

MS = 1_000_000


def crowd(n: int = 60, spacing_ns: int = MS // 2, outputs: int = 20, **columns: Any) -> Workload:
    """Requests of 40 shared and 30 own tokens, every third a repeat of an earlier one."""
    rows = []
    for i in range(n):
        own = i - i % 3
        rows.append(
            {
                "id": str(i),
                "step": 0,
                "tokens": [7] * 40 + [100 + own] * 30,
                "output_tokens": [1000 + own] * (1 + (i * 7) % outputs),
                "priority": 0,
            }
        )
    return workload_of(rows, arrival_ns=np.arange(n, dtype=np.int64) * spacing_ns, **columns)


def run(engine: SglangEngine, slice_ns: int | None = None) -> SglangEngine:
    """Submits everything by arrival and runs to the end, in one call or in slices of time."""
    w = engine.inputs.workload
    order = np.argsort(w.arrival_ns, kind="stable")
    if slice_ns is None:
        engine.submit(order, w.arrival_ns[order])
        while engine.advance(NEVER).next_ns != NEVER:
            pass
        return engine
    sent, until = 0, slice_ns
    while True:
        due = sent + int(np.count_nonzero(w.arrival_ns[order[sent:]] < until))
        if due > sent:
            engine.submit(order[sent:due], w.arrival_ns[order[sent:due]])
            sent = due
        progress = engine.advance(until)
        check_arrays(engine)
        if progress.next_ns == NEVER and sent == w.n:
            return engine
        if progress.clock_ns >= until or progress.next_ns == NEVER:
            until += slice_ns


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("capacity", [4000, 420])
def test_driven_in_slices_or_steps_it_is_the_same(overlap: bool, capacity: int) -> None:
    more = {"page_size": 4, "disable_overlap_schedule": not overlap, "chunked_prefill_size": 50}
    whole = run(engine_of(crowd(), capacity, **more))
    stepped = run(engine_of(crowd(), capacity, single_step=True, **more))
    sliced = run(engine_of(crowd(), capacity, **more), slice_ns=700_000)
    for other in (stepped, sliced):
        assert np.array_equal(whole.inputs.rows, other.inputs.rows)
        assert np.array_equal(whole.record().gaps, other.record().gaps)
        assert np.array_equal(whole.record().timeline, other.record().timeline)
    check_arrays(whole)


@given(hs.data())
@settings(max_examples=25)
def test_shortcuts_change_nothing(data: hs.DataObject) -> None:
    """Many decode steps at once against one at a time, on hostile workloads."""
    rows = data.draw(native_rows(most=10))
    page = data.draw(hs.sampled_from([1, 2, 5]))
    need = max(len(r["tokens"]) + len(r["output_tokens"]) for r in rows)
    n = len(rows)
    columns = {
        "arrival_ns": np.sort(np.array(data.draw(hs.lists(hs.integers(0, 3 * MS), min_size=n, max_size=n)))),
        "stop": np.array(data.draw(hs.lists(hs.booleans(), min_size=n, max_size=n))),
    }
    more = {
        "page_size": page,
        "disable_overlap_schedule": data.draw(hs.booleans()),
        "schedule_policy": data.draw(hs.sampled_from([*SCHEDULES, "random"])),
        "schedule_conservativeness": data.draw(hs.sampled_from([0.1, 1.0])),
        "disable_radix_cache": False,
    }
    capacity = (need + 8 + 2 * page) * data.draw(hs.integers(1, 3))
    engines = []
    for single in (False, True):
        engine = engine_of(workload_of(rows, **columns), capacity, single_step=single, **more)
        try:
            run(engine)
        except DoesNotFitError as exc:
            engines.append((engine, str(exc)))
        else:
            engines.append((engine, ""))
    (a, failed_a), (b, failed_b) = engines
    assert failed_a == failed_b
    if not failed_a:
        assert np.array_equal(a.inputs.rows, b.inputs.rows)
        assert np.array_equal(a.record().timeline, b.record().timeline)
        done = a.inputs.rows[:, REQ_STATUS] == STATUS_FINISHED
        assert (done | (a.inputs.rows[:, REQ_STATUS] == STATUS_REJECTED)).all()
        check_arrays(a)


def test_records_of_a_run() -> None:
    w = crowd()
    engine = run(engine_of(w, 1000, page_size=4, keep_commits=True))
    rows, record = engine.inputs.rows, engine.record()
    assert (rows[:, REQ_STATUS] == STATUS_FINISHED).all()
    assert (rows[:, REQ_LOOKUP_TOKENS] == w.prompt_tokens).all()
    assert (rows[:, REQ_RELEASED_NS] <= rows[:, REQ_ADMITTED_NS]).all()
    assert (rows[:, REQ_ADMITTED_NS] < rows[:, REQ_FIRST_TOKEN_NS]).all()
    assert (rows[:, REQ_FIRST_TOKEN_NS] <= rows[:, REQ_FINISH_NS]).all()
    assert (rows[:, REQ_CACHED_TOKENS] <= rows[:, REQ_KNOWN_TOKENS]).all()
    assert (rows[:, REQ_KNOWN_TOKENS] <= w.prompt_tokens).all()
    assert record.gaps[:, 1].sum() == (w.output_tokens - 1).sum()
    spent = (rows[:, REQ_FINISH_NS] - rows[:, REQ_FIRST_TOKEN_NS]).sum()
    assert (record.gaps[:, 0] * record.gaps[:, 1]).sum() == spent
    line = record.timeline
    assert line.shape[0] == record.totals["steps"]
    assert (line[1:, TL_START_NS] >= line[:-1, TL_END_NS]).all(), "one GPU: steps do not overlap"
    computed = w.prompt_tokens.sum() - rows[:, REQ_CACHED_TOKENS].sum() + (w.output_tokens - 1).sum()
    again = rows[:, REQ_RECOMPUTED_TOKENS].sum()
    assert line[:, TL_SCHEDULED_TOKENS].sum() - again == computed or again > 0
    assert line[-1, TL_EVICTED_TOKENS] <= record.totals["evicted_tokens"]
    assert record.counters["sglang:evicted_tokens_total"] == record.totals["evicted_tokens"]
    assert record.counters["sglang:prompt_tokens_total"] == w.prompt_tokens.sum()
    commits = record.first_commit_ns
    assert commits is not None
    assert commits.shape[0] == engine.inputs.chains.n_chains
    assert engine.load() == (0, 0, 0)


def test_known_tokens_are_the_longest_prefix_ever_inserted() -> None:
    """Against brute force: first-commit times of every page."""
    w = crowd(n=45, spacing_ns=3 * MS)
    engine = run(engine_of(w, 300, page_size=4, keep_commits=True))
    rows = engine.inputs.rows
    commits = engine.record().first_commit_ns
    assert commits is not None
    offsets, ids = engine.inputs.chains.expand()
    assert engine.record().totals["evicted_tokens"] > 0
    for i in np.flatnonzero(rows[:, REQ_STATUS] == STATUS_FINISHED):
        row = ids[offsets[i] : offsets[i] + w.prompt_tokens[i] // 4]
        known = 0
        while known < row.shape[0] and commits[row[known]] <= rows[i, REQ_ADMITTED_NS]:
            known += 1
        assert rows[i, REQ_KNOWN_TOKENS] == known * 4


def test_overlap_hides_host_work_and_normal_does_not() -> None:
    host = HostCosts(match_ns_per_node=2e5, insert_ns_per_node=2e5, split_ns_per_node=2e5, evict_ns_per_node=2e5)
    ends = {}
    for overlap in (True, False):
        for cost in (None, host):
            engine = run(
                engine_of(crowd(), 1000, simple_costs(cost, engine_us=5000.0), disable_overlap_schedule=not overlap)
            )
            totals = engine.record().totals
            ends[overlap, cost is not None] = totals["last_end_ns"]
            if cost is not None:
                nodes = sum(totals[k] for k in ("match_nodes", "insert_nodes", "split_nodes", "evict_leaves"))
                assert 0 < totals["host_ns"] <= nodes * 2e5
                if not overlap:
                    assert totals["host_extra_ns"] == totals["host_ns"]
    assert ends[False, True] > ends[False, False]
    assert ends[True, True] - ends[True, False] < ends[False, True] - ends[False, False]


def test_tree_bytes_count_nodes() -> None:
    host = HostCosts(tree_node_bytes=1000.0)
    totals = run(engine_of(crowd(), 2000, simple_costs(host))).record().totals
    assert totals["tree_bytes"] == 1000 * totals["peak_nodes"] > 0


def test_disabled_cache_shares_nothing() -> None:
    engine = run(engine_of(crowd(), 1000, disable_radix_cache=True, chunked_prefill_size=30))
    assert engine.inputs.rows[:, REQ_CACHED_TOKENS].sum() == 0
    assert (engine.inputs.rows[:, REQ_STATUS] == STATUS_FINISHED).all()
    assert engine.record().totals["nodes"] == 0
    assert engine.match_tokens(0) == 0


def test_disabled_cache_and_shortest_prefill_first_is_refused() -> None:
    with pytest.raises(ScenarioError, match="shortest-prefill-first needs the prefix cache"):
        engine_of(crowd(), 1000, disable_radix_cache=True, schedule_policy="shortest-prefill-first")


def test_what_can_never_fit_is_rejected_and_told() -> None:
    w = make_workload(
        source=Source(kind="test"),
        prompt_tokens=[50, 5000, 394, 50],
        output_tokens=[4, 4, 4, 4],
        max_tokens=[4, 4, 4000, 4],
        atom_offset=[0, 1, 2, 3, 4],
        prompt_atoms=[1, 1, 1, 1],
        atom_id=[0, 1, 2, 3],
        atom_tokens=[50, 5000, 394, 50],
        arrival_ns=[0, 1, 2, 3],
    )
    awaited = np.array([False, True, True, True])
    engine = engine_of(w, 400, awaited=awaited)
    engine.submit(np.arange(4), w.arrival_ns)
    told: list[int] = []
    while True:
        progress = engine.advance(NEVER)
        told += progress.completed[:, 0].tolist()
        if progress.next_ns == NEVER:
            break
    status = engine.inputs.rows[:, REQ_STATUS]
    assert status.tolist() == [STATUS_FINISHED, STATUS_REJECTED, STATUS_REJECTED, STATUS_FINISHED]
    assert sorted(told) == [1, 2, 3]
    notes = " ".join(engine.record().notes)
    assert "refused on arrival" in notes


def test_pool_without_a_page_is_an_error() -> None:
    with pytest.raises(DoesNotFitError, match="holds no page of 64"):
        engine_of(crowd(), 63, page_size=64)


def test_retraction_is_counted_and_recomputed() -> None:
    w = crowd(n=40, spacing_ns=200_000, outputs=60, max_tokens=np.full(40, 60))
    engine = run(engine_of(w, 500, schedule_conservativeness=0.05))
    rows, record = engine.inputs.rows, engine.record()
    assert rows[:, REQ_PREEMPTIONS].sum() == record.totals["preemptions"] > 0
    assert record.counters["sglang:num_retracted_requests_total"] == record.totals["preemptions"]
    assert (rows[rows[:, REQ_RECOMPUTED_TOKENS] > 0, REQ_PREEMPTIONS] > 0).all()
    assert (rows[:, REQ_STATUS] == STATUS_FINISHED).all()


@pytest.mark.parametrize(("stop", "resident"), [(False, 53), (True, 54)])
def test_a_stop_string_costs_one_decode_and_its_token_is_kept(stop: bool, resident: int) -> None:
    """Overlap loop: an end by length is foreseen, one by stop string is not, so its last token gets KV too."""
    rows = [
        {"id": "a", "step": 0, "tokens": [1] * 50, "output_tokens": [2, 3, 4, 5], "priority": 0},
        {"id": "b", "step": 0, "tokens": [1] * 50 + [2, 3, 4, 5, 6, 7], "output_tokens": [9], "priority": 0},
    ]
    w = workload_of(rows, arrival_ns=np.array([0, 1000 * MS]), stop=np.array([stop, False]))
    engine = run(engine_of(w, 1000))
    assert engine.inputs.rows[1, REQ_CACHED_TOKENS] == resident


def test_strip_thinking_keeps_prompts_only() -> None:
    rows = [
        {"id": "a", "step": 0, "tokens": [1] * 50, "output_tokens": [2, 3, 4, 5], "priority": 0},
        {"id": "b", "step": 0, "tokens": [1] * 50 + [2, 3, 4, 5, 6, 7], "output_tokens": [9], "priority": 0},
    ]
    w = workload_of(rows, arrival_ns=np.array([0, 1000 * MS]))
    engine = run(engine_of(w, 1000, strip_thinking_cache=True))
    assert engine.inputs.rows[1, REQ_CACHED_TOKENS] == 50
    check_arrays(engine)


def test_merging_single_children_is_a_what_if() -> None:
    """A -> {B, C}: evicting B leaves two nodes in the real tree, one in the what-if."""
    nodes = {}
    for merge in (False, True):
        rows = [
            {"id": "b", "step": 0, "tokens": [1] * 40 + [2] * 40, "output_tokens": [9], "priority": 0},
            {"id": "c", "step": 0, "tokens": [1] * 40 + [3] * 40, "output_tokens": [9], "priority": 0},
            {"id": "d", "step": 0, "tokens": [4] * 60, "output_tokens": [9], "priority": 0},
        ]
        w = workload_of(rows, arrival_ns=np.array([0, 1000 * MS, 2000 * MS]))
        engine = run(engine_of(w, 161, facts={"merge_single_child_parents": merge}))
        check_arrays(engine)
        nodes[merge] = engine.record().totals["nodes"]
        assert ("what-if" in " ".join(engine.record().notes)) == merge
    assert nodes[False] == nodes[True] + 1


def test_page_one_of_long_atoms_costs_no_memory_per_token() -> None:
    """Ten thousand tokens an atom, ten billion in all: nothing is as long as the tokens are many."""
    n, tokens = 400, 25_000_000
    w = make_workload(
        source=Source(kind="test"),
        prompt_tokens=np.full(n, tokens),
        output_tokens=np.full(n, 2),
        atom_offset=np.arange(n + 1) * 2,
        prompt_atoms=np.full(n, 2),
        atom_id=np.stack([np.zeros(n, dtype=int), 1 + np.arange(n) // 2], axis=1).reshape(-1),
        atom_tokens=np.tile([10_000_000, 15_000_000], n),
        arrival_ns=np.arange(n) * 100_000 * MS,
    )
    engine = run(engine_of(w, 200_000_000, chunked_prefill_size=-1))
    rows = engine.inputs.rows
    assert engine.inputs.chains.n_chains > 3_000_000_000
    assert (rows[:, REQ_STATUS] == STATUS_FINISHED).all()
    assert rows[1::2, REQ_CACHED_TOKENS].tolist() == [tokens - 1] * (n // 2)
    assert rows[1::2, REQ_KNOWN_TOKENS].tolist() == [tokens] * (n // 2)
    assert engine.record().totals["evicted_tokens"] > 0
    assert engine.arenas.marks.shape[0] < 4 * n
    check_arrays(engine)


@pytest.mark.parametrize(
    ("gib", "chunk"), [(0.0, 4096), (16.0, 2048), (48.0, 4096), (80.0, 8192), (141.0, 8192), (192.0, 16384)]
)
def test_default_chunk_follows_gpu_memory(gib: float, chunk: int) -> None:
    assert engine_of(crowd(n=2), 10_000, gpu_memory_gib=gib).settings.chunk == chunk


@pytest.mark.parametrize(("capacity", "context", "most"), [(1000, None, 500), (10**6, None, 2048), (10**7, 1000, 4096)])
def test_default_max_running(capacity: int, context: int | None, most: int) -> None:
    assert engine_of(crowd(n=2), capacity, context_length=context).settings.max_running == most


def test_random_order_follows_the_seed() -> None:
    w = crowd(n=40, spacing_ns=0)
    more = {"schedule_policy": "random", "max_running_requests": 2}
    one, same, other = (run(engine_of(w, 2000, seed=s, **more)).inputs.rows for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one[:, REQ_ADMITTED_NS], other[:, REQ_ADMITTED_NS])


def test_many_steps_thin_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefixsim.engines.sglang import arenas

    monkeypatch.setattr(arenas, "MAX_TIMELINE_ROWS", 1 << 12)
    rows = [{"id": "a", "step": 0, "tokens": [1], "output_tokens": [2] * 20_000, "priority": 0}]
    record = run(engine_of(workload_of(rows), 30_000)).record()
    assert record.timeline_stride == 8
    assert record.timeline.shape[0] == -(-record.totals["steps"] // 8)
    assert record.gaps[:, 1].sum() == 19_999


@pytest.mark.parametrize("policy", ["fcfs", "dfs-weight"])
def test_growing_arrays_changes_nothing(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Nodes, table, heap, slots, commits, timeline and gaps begin with next to no room."""
    w = crowd(spacing_ns=MS // 100)
    more = {"keep_commits": True, "schedule_policy": policy, "chunked_prefill_size": 50}
    roomy = run(engine_of(w, 3000, **more))
    nodes, slots = Arenas.grow_nodes, Arenas.grow_slots
    monkeypatch.setattr(Arenas, "grow_nodes", lambda a, n: nodes(a, 4 if n == 1 << 10 else n))
    monkeypatch.setattr(Arenas, "grow_slots", lambda a, n: slots(a, 1 if n == 64 else n))
    tight = engine_of(w, 3000, **more)
    a = tight.arenas
    assert (a.nodes.shape[0], a.slots.shape[0]) == (4, 1)
    a.commits, a.timeline, a.gaps = a.commits[:1].copy(), a.timeline[:2].copy(), a.gaps[:2].copy()
    run(tight)
    check_arrays(tight)
    assert a.nodes.shape[0] > 16
    assert a.slots.shape[0] > 8
    assert np.array_equal(tight.inputs.rows, roomy.inputs.rows)
    ours, theirs = tight.record(), roomy.record()
    assert np.array_equal(ours.timeline, theirs.timeline)
    assert np.array_equal(ours.gaps, theirs.gaps)
    assert np.array_equal(ours.first_commit_ns, theirs.first_commit_ns)
    assert ours.totals == theirs.totals
