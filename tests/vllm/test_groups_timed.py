"""Sliding-window groups in time: equal to full attention where the window is over everything, and to the golden cases."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from groups_traces import case
from timed_cases import coefficients, timed_case

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.facts import Settings
from prefixsim.engines.vllm.groups import group_rules, scheduler_rules
from prefixsim.engines.vllm.groups_engine import GroupsEngine
from prefixsim.engines.vllm.groups_timed import longest_sequence
from prefixsim.engines.vllm.groups_twin import GroupRules
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_CACHED_TOKENS,
    REQ_COMPUTED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_PREEMPTIONS,
    REQUEST_COLUMNS,
    new_request_rows,
)
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload

GOLDEN = json.loads((Path(__file__).parent / "groups_golden.json").read_text())["cases"]
ALL_IS_SEEN = 1 << 40


def inputs_of(w: Workload, s: Settings, costs: StepCosts, **more: Any) -> EngineInputs:
    chains = build_chains(build_trie(w, "vllm"), s.block_size)
    awaited = more.pop("awaited", np.zeros(w.n, dtype=np.bool_))
    return EngineInputs(w, chains, costs, s.num_gpu_blocks, new_request_rows(w.n), awaited, **more)


def rules_of(s: Settings, layout: str, window: int, retention: int | None) -> GroupRules:
    in_flight = s.max_num_batched_tokens * (2 if s.async_scheduling else 1)
    watermark = int(s.watermark * s.num_gpu_blocks)
    return GroupRules(layout, s.block_size, s.num_gpu_blocks, window, retention, s.max_model_len, in_flight, watermark)


def groups_case(seed: int) -> tuple[Workload, Settings, GroupRules]:
    """A timed case with a window group; hybrid pools are twice as large, as a token takes two slots."""
    _, w, s = timed_case(seed)
    rng = random.Random(seed)
    layout, bs = rng.choice(["swa", "hybrid"]), s.block_size
    if layout == "hybrid":
        s = replace(s, num_gpu_blocks=2 * s.num_gpu_blocks - 1)
    window = rng.choice([1, bs, 2 * bs + 1, 5 * bs])
    return w, s, rules_of(s, layout, window, rng.choice([0, 0, None, 2 * bs]))


def served(engine: GroupsEngine | VllmEngine, w: Workload) -> np.ndarray:
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    return engine.inputs.rows


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_window_over_everything_is_full_attention_in_time(seed: int) -> None:
    """One group whose window never passes and that keeps every block: the compiled engine, to the nanosecond."""
    _, w, s = timed_case(seed)
    full = VllmEngine("v", "vllm", s, inputs_of(w, s, coefficients()))
    rules = rules_of(s, "swa", ALL_IS_SEEN, None)
    window = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, coefficients()))
    want, got = served(full, w), served(window, w)
    same = [i for i in range(len(REQUEST_COLUMNS)) if i not in (REQ_KNOWN_TOKENS, REQ_COMPUTED_TOKENS)]
    assert np.array_equal(got[:, same], want[:, same])
    assert np.array_equal(got[:, REQ_COMPUTED_TOKENS], want[:, REQ_KNOWN_TOKENS])
    a, b = full.record(), window.record()
    assert np.array_equal(a.timeline, b.timeline)
    assert np.array_equal(a.gaps, b.gaps)
    assert a.totals == b.totals
    assert a.counters == b.counters
    assert a.notes == b.notes[:-1]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_cut_into_pieces_gives_the_same(seed: int) -> None:
    """Requests handed over one by one, steps one by one, completions awaited: same rows, gaps and timeline."""
    w, s, rules = groups_case(seed)
    whole = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, coefficients()))
    served(whole, w)
    awaited = np.arange(w.n) % 2 == 0
    more = {"awaited": awaited, "single_step": bool(seed % 2), "keep_commits": True}
    pieces = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, coefficients(), **more))
    completed: list[tuple[int, int]] = []

    def advance(until: int) -> None:
        clock = 0
        while True:
            progress = pieces.advance(until)
            completed.extend(map(tuple, progress.completed.tolist()))
            assert progress.clock_ns >= clock
            clock = progress.clock_ns
            if progress.next_ns >= until:
                return

    for i in range(w.n):
        before = pieces.match_tokens(i)
        advance(int(w.arrival_ns[i]))
        assert 0 <= before < w.prompt_tokens[i]
        pieces.submit(np.array([i]), w.arrival_ns[i : i + 1])
    advance(NEVER)
    assert np.array_equal(pieces.inputs.rows, whole.inputs.rows)
    a, b = pieces.record(), whole.record()
    assert np.array_equal(a.timeline, b.timeline)
    assert np.array_equal(a.gaps, b.gaps)
    assert (a.totals, a.counters, a.notes) == (b.totals, b.counters, b.notes)
    assert sorted(r for r, _ in completed) == np.flatnonzero(awaited).tolist()
    assert a.first_commit_ns is not None
    assert ((a.first_commit_ns == NEVER) | (a.first_commit_ns >= 0)).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_hit_was_kept_and_what_was_kept_was_computed(seed: int) -> None:
    w, s, rules = groups_case(seed)
    engine = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, coefficients()))
    rows, bs = served(engine, w), s.block_size
    assert (rows[:, REQ_CACHED_TOKENS] <= rows[:, REQ_DEVICE_TOKENS]).all()
    assert (rows[:, REQ_DEVICE_TOKENS] <= rows[:, REQ_KNOWN_TOKENS]).all()
    assert (rows[:, REQ_KNOWN_TOKENS] <= rows[:, REQ_COMPUTED_TOKENS]).all()
    if rules.retention is None and rules.sliding_window > 1:  # dense: all is kept
        capped = np.minimum(rows[:, REQ_COMPUTED_TOKENS], np.maximum(w.prompt_tokens - 1, 0) // bs * bs)
        assert (rows[:, REQ_KNOWN_TOKENS] == capped).all()
    totals = engine.record().totals
    assert totals["finished"] + totals["rejected"] == w.n
    assert engine.scheduler.cache.used_blocks() == 0
    assert not engine.scheduler.requests


@pytest.mark.parametrize(
    "stored", [c for c in GOLDEN if c["mode"] != "sequential"], ids=lambda c: f"{c['mode']}-{c['seed']}"
)
def test_golden_cases_in_time(stored: dict[str, Any]) -> None:
    """The real engine's answers, from the timed engine with a clock of steps."""
    rows, config = case(stored["seed"], stored["mode"])
    by_step = sorted(rows, key=lambda row: row["step"])  # stable: as the replay orders them
    w = workload_from_rows(by_step, Source(kind="test"))
    rules, sched = group_rules(config), scheduler_rules(config)
    s = Settings(
        block_size=rules.block_size,
        num_gpu_blocks=rules.num_gpu_blocks,
        max_num_seqs=sched.max_num_seqs,
        max_num_batched_tokens=sched.max_num_batched_tokens,
        max_model_len=rules.max_model_len,
        watermark=config["watermark"],
        scheduler_reserve_full_isl=sched.scheduler_reserve_full_isl,
        enable_chunked_prefill=sched.enable_chunked_prefill,
        long_prefill_token_threshold=sched.long_prefill_token_threshold,
        async_scheduling=sched.async_scheduling,
        priority=sched.priority_policy,
        turn_ns=1,
    )
    if int((w.prompt_tokens + w.output_tokens).max()) > longest_sequence(rules):
        pytest.skip("a server refuses what the golden loop lets wait for ever")
    engine = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, StepCosts.steps()))
    engine.submit(np.arange(w.n), w.step)
    engine.advance(NEVER)
    place = {row["id"]: i for i, row in enumerate(by_step)}
    got = engine.inputs.rows[[place[row["id"]] for row in rows]]
    expected = stored["expected"]
    assert got[:, REQ_CACHED_TOKENS].tolist() == expected["cached"]
    assert got[:, REQ_PREEMPTIONS].tolist() == expected["preemptions"]
    assert (got[:, REQ_FIRST_TOKEN_NS] - 1).tolist() == expected["first_token_step"]
    assert (got[:, REQ_FINISH_NS] - 1).tolist() == expected["finish_step"]
    assert engine.record().totals["evicted_blocks"] == expected["evicted_blocks"]


def test_the_cases_are_not_vacuous() -> None:
    totals = dict.fromkeys(("preemptions", "evicted_blocks", "cut_at_max_model_len", "rejected"), 0)
    ruled_out = 0
    for seed in range(60):
        w, s, rules = groups_case(seed)
        engine = GroupsEngine("v", "vllm", s, rules, inputs_of(w, s, coefficients()))
        rows = served(engine, w)
        ruled_out += int((rows[:, REQ_COMPUTED_TOKENS] - rows[:, REQ_KNOWN_TOKENS]).sum())
        for key in totals:
            totals[key] += engine.record().totals[key]
    assert all(totals.values()), totals
    assert ruled_out > 0
