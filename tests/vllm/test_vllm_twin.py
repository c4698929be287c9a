"""Kernels against the plain-Python twin: pool operations in any order (stateful), whole engines in steps and in time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from small_cases import small_case
from timed_cases import coefficients, timed_case
from twin_replay import block_keys, twin_replay

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm import pool_kernels as pk
from prefixsim.engines.vllm import state as cols
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.facts import Settings
from prefixsim.engines.vllm.replay import replay
from prefixsim.engines.vllm.twin import Batch, TwinConfig, TwinRequest, TwinScheduler
from prefixsim.engines.vllm.twin_pool import TwinPool
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_CHUNKS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_PREEMPTIONS,
    REQ_RECOMPUTED_TOKENS,
    new_request_rows,
)
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Workload


class PoolMachine(RuleBasedStateMachine):
    """Requests start, grow and end in any order on both pools; every queue, count and link is compared after each."""

    @initialize(seed=st.integers(0, 2**32 - 1), blocks=st.integers(4, 14), split=st.booleans())
    def start(self, seed: int, blocks: int, split: bool) -> None:
        rng = random.Random(seed)
        rows: list[list[int]] = []
        for _ in range(6):  # chains that share prefixes: (parent, symbol) numbered
            stem = rng.choice(rows)[: rng.randint(0, 6)] if rows else []
            rows.append(stem + [rng.randrange(2) for _ in range(7 - len(stem))])
        ids: dict[tuple[int, ...], int] = {}
        self.rows = [[ids.setdefault(tuple(row[: k + 1]), len(ids)) for k in range(7)] for row in rows]
        start, end, offset = [], [], [0]
        for row in self.rows:  # runs of consecutive ids
            for k, chain in enumerate(row):
                if k and chain == row[k - 1] + 1:
                    end[-1] = k + 1
                else:
                    start.append(chain)
                    end.append(k + 1)
            offset.append(len(start))
        self.runs = tuple(np.array(a, dtype=np.int64) for a in (offset, start, end))
        self.twin = TwinPool(blocks, split_free_queue=split)
        self.state = np.zeros(cols.I_COLS, dtype=np.int64)
        self.state[cols.I_SPLIT] = split
        self.blocks = np.zeros((blocks, 8), dtype=np.int32)
        pk.reset_pool(self.state, self.blocks)
        self.where = np.zeros(len(ids), dtype=np.int32)
        self.state[cols.I_KEEP_COMMITS] = 1
        self.commits = np.full(len(ids), -1, dtype=np.int64)
        self.first_commits = [-1] * len(ids)
        self.now = 0
        self.live: dict[int, dict[str, Any]] = {}

    @rule(row=st.integers(0, 5), limit=st.integers(0, 6), new=st.integers(1, 4), full=st.integers(0, 7))
    def admit(self, row: int, limit: int, new: int, full: int) -> None:
        if row in self.live:
            return
        hits = self.twin.lookup(self.rows[row], limit)
        found, used = pk.lookup(self.blocks, self.where, *self.runs, row, limit)
        assert (found, found - used) == (len(hits), self.twin.evictable(hits))
        new = min(new, 7 - len(hits))
        if new + self.twin.evictable(hits) > len(self.twin.free):
            return
        self.twin.touch(hits)
        table = hits + self.twin.take(new)
        pk.touch(self.state, self.blocks, self.where, *self.runs, row, len(hits))
        tail = pk.take(self.state, self.blocks, self.where, 0, new)
        self.live[row] = {"table": table, "hits": len(hits), "tail": tail, "done": len(hits), "run": self.runs[0][row]}
        self._commit(row, full)

    @rule(row=st.integers(0, 5), full=st.integers(0, 7))
    def grow(self, row: int, full: int) -> None:
        r = self.live.get(row)
        if r is None or len(r["table"]) == 7 or not self.twin.free:
            return
        r["table"] += self.twin.take(1)
        r["tail"] = pk.take(self.state, self.blocks, self.where, r["tail"], 1)
        self._commit(row, full)

    def _commit(self, row: int, full: int) -> None:
        r = self.live[row]
        full = min(full, len(r["table"]))
        if full > r["done"]:
            self.now += 1
            for k in range(r["done"], full):
                chain = self.rows[row][k]
                if chain not in self.twin.ever:
                    self.first_commits[chain] = self.now
                self.twin.commit(r["table"][k], chain)
            r["run"] = pk.commit_row(
                self.state, self.blocks, self.where, self.commits, *self.runs, row,
                r["run"], r["tail"], len(r["table"]), r["done"], full, self.now,
            )  # fmt: skip
            r["done"] = full

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 5))
    def end(self, pick: int) -> None:
        row = sorted(self.live)[pick % len(self.live)]
        r = self.live.pop(row)
        self.twin.release(r["table"])
        own = len(r["table"]) - r["hits"]
        pk.release(self.state, self.blocks, self.where, *self.runs, row, r["hits"], r["tail"], own)

    @invariant()
    def equal_and_sound(self) -> None:
        if not hasattr(self, "twin"):
            return
        self.twin.check([r["table"] for r in self.live.values()])
        assert self.commits.tolist() == self.first_commits
        queue, b = [], int(self.blocks[0, cols.B_NEXT])
        assert self.blocks[b, cols.B_PREV] == 0
        while b:
            assert self.blocks[self.blocks[b, cols.B_NEXT], cols.B_PREV] == b  # links agree both ways
            queue.append(b)
            b = int(self.blocks[b, cols.B_NEXT])
        assert queue == list(self.twin.free)
        assert len(queue) == self.state[cols.I_FREE]
        assert self.blocks[1:, cols.B_REF].tolist() == self.twin.ref[1:]
        keys = [-1 if k is None else k for k in self.twin.key[1:]]
        assert self.blocks[1:, cols.B_CHAIN].tolist() == keys
        for chain in range(self.where.shape[0]):
            copies = self.twin.copies.get(chain)
            expected = copies[0] if copies else cols.GONE if chain in self.twin.ever else cols.NEVER_COMMITTED
            assert self.where[chain] == expected
            if copies:
                ring, b = [copies[0]], int(self.blocks[copies[0], cols.B_COPY_NEXT])
                while b != copies[0]:
                    ring.append(b)
                    b = int(self.blocks[b, cols.B_COPY_NEXT])
                assert ring == copies
        assert self.twin.evicted == self.state[cols.I_EVICTED]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), split=st.booleans(), caching=st.booleans())
def test_steps_equal_the_twin(seed: int, split: bool, caching: bool) -> None:
    """Golden-case loop, all options; `max_steps` bounds requests that can never fit."""
    rows, config = small_case(seed)
    config |= {"split_free_queue": split, "enable_prefix_caching": caching}
    if config["mode"] == "scheduler":
        config["max_steps"] = 400
    assert replay(rows, config) == twin_replay(rows, config)


@pytest.mark.parametrize("seed", [99, 166, 542, 1214, 1477])
def test_a_victim_gives_back_the_tokens_it_was_scheduled(seed: int) -> None:
    """Priority policy with a budget of one token a request: in these cases (each equal to the real engine) it decides what
    the others get."""
    rows, config = small_case(seed)
    config |= {"policy": "priority", "max_num_batched_tokens": config["max_num_seqs"], "enable_chunked_prefill": True}
    config |= {"watermark": 0.0, "max_steps": 400}
    assert replay(rows, config) == twin_replay(rows, config)


def step_duration(costs: StepCosts, batch: Batch) -> int:
    """Duration of a twin's batch: attention by prefill items and summed decode lengths."""
    work = longest = 0.0
    n_prefill = n_decode = kv = 0
    for _, new, past, _ in batch.items:
        if new > 1:
            n_prefill += 1
            w, item = sk.prefill_item(costs.coef, new, past)
            work, longest = work + w, max(longest, item)
        else:
            n_decode += 1
            kv += past + 1
    tokens = sum(item[1] for item in batch.items)
    sampled = sum(item[3] for item in batch.items)
    return int(
        sk.step_ns(costs.coef, costs.gemm_us, costs.lm_head_us, tokens, n_prefill, work, longest, n_decode, kv, sampled)
    )


def twin_of_timed(rows: list[dict[str, Any]], w: Workload, s: Settings, costs: StepCosts) -> list[TwinRequest]:
    """Runs the twin in time; requests in file order, refused ones untouched."""
    requests = [
        TwinRequest(
            index=i,
            arrival=int(w.arrival_ns[i]),
            prompt_tokens=int(w.prompt_tokens[i]),
            output_tokens=int(w.output_tokens[i]),
            max_tokens=max(int(w.max_tokens[i]), int(w.output_tokens[i]) + int(w.max_tokens_assumed and w.stop[i])),
            keys=block_keys(rows[i], s.block_size),
            priority=int(w.priority[i]),
            skip_reading_prefix_cache=bool(w.skip_reading_prefix_cache[i]),
            order=i,
        )
        for i in range(w.n)
    ]
    config = TwinConfig(
        block_size=s.block_size,
        num_gpu_blocks=s.num_gpu_blocks,
        max_num_seqs=s.max_num_seqs,
        max_num_batched_tokens=s.max_num_batched_tokens,
        max_model_len=s.max_model_len,
        watermark=s.watermark,
        scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
        long_prefill_token_threshold=s.long_prefill_token_threshold,
        async_scheduling=s.async_scheduling,
        priority=s.priority,
    )
    scheduler = TwinScheduler(config, lambda batch: step_duration(costs, batch))
    scheduler.run([r for r in requests if r.prompt_tokens < s.max_model_len])
    return requests


def timed_engine(w: Workload, s: Settings, costs: StepCosts, **more: Any) -> VllmEngine:
    chains = build_chains(build_trie(w, "vllm"), s.block_size)
    rows = new_request_rows(w.n)
    awaited = more.pop("awaited", np.zeros(w.n, dtype=np.bool_))
    return VllmEngine("v", "vllm", s, EngineInputs(w, chains, costs, s.num_gpu_blocks, rows, awaited, **more))


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32 - 1))
def test_timed_run_equals_the_twin(seed: int) -> None:
    rows, w, s = timed_case(seed)
    costs = coefficients()
    twins = twin_of_timed(rows, w, s, costs)
    engine = timed_engine(w, s, costs)
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    got = engine.inputs.rows
    gaps: dict[int, int] = {}
    for i, t in enumerate(twins):
        want = {
            REQ_ADMITTED_NS: t.admissions[0][0] if t.admissions else -1,
            REQ_FIRST_TOKEN_NS: -1 if t.first_token is None else t.first_token,
            REQ_FINISH_NS: -1 if t.finish is None else t.finish,
            REQ_CACHED_TOKENS: t.admissions[0][1] if t.admissions else 0,
            REQ_DEVICE_TOKENS: t.device_tokens,
            REQ_KNOWN_TOKENS: t.known_tokens,
            REQ_PREEMPTIONS: t.preemptions,
            REQ_RECOMPUTED_TOKENS: t.recomputed_tokens,
            REQ_CHUNKS: t.chunks,
        }
        assert {c: int(got[i, c]) for c in want} == want
        for a, b in zip(t.token_times, t.token_times[1:], strict=False):
            gaps[b - a] = gaps.get(b - a, 0) + 1
    record = engine.record()
    assert dict(record.gaps.tolist()) == gaps
    assert record.totals["finished"] + record.totals["rejected"] == w.n  # nobody is lost


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_cut_into_pieces_gives_the_same(seed: int) -> None:
    """Requests handed over one by one, steps one by one, completions awaited: same rows, gaps and timeline."""
    _, w, s = timed_case(seed)
    costs = coefficients()
    whole = timed_engine(w, s, costs)
    whole.submit(np.arange(w.n), w.arrival_ns)
    whole.advance(NEVER)
    rng = random.Random(seed)
    awaited = np.array([rng.random() < 0.5 for _ in range(w.n)], dtype=np.bool_)
    pieces = timed_engine(w, s, costs, awaited=awaited, single_step=rng.random() < 0.5)
    completed: list[tuple[int, int]] = []
    clock = 0

    def advance(until: int) -> None:
        nonlocal clock
        while True:
            progress = pieces.advance(until)
            completed.extend(map(tuple, progress.completed.tolist()))
            assert progress.clock_ns >= clock  # the clock never goes back
            clock = progress.clock_ns
            if progress.next_ns >= until:
                return

    for i in range(w.n):
        advance(int(w.arrival_ns[i]))
        pieces.submit(np.array([i]), w.arrival_ns[i : i + 1])
    advance(NEVER)
    assert np.array_equal(pieces.inputs.rows, whole.inputs.rows)
    a, b = pieces.record(), whole.record()
    assert np.array_equal(a.timeline, b.timeline)
    assert np.array_equal(a.gaps, b.gaps)
    assert a.counters == b.counters
    assert sorted(r for r, _ in completed) == np.flatnonzero(awaited).tolist()


def test_the_hypotheses_are_not_vacuous() -> None:
    """Among the drawn timed cases are preemptions, late first tokens, refusals, cuts and wasted slots' requests."""
    totals = {"preemptions": 0, "rejected": 0, "cut_at_max_model_len": 0, "evicted_blocks": 0}
    for seed in range(60):
        _, w, s = timed_case(seed)
        engine = timed_engine(w, s, coefficients())
        engine.submit(np.arange(w.n), w.arrival_ns)
        engine.advance(NEVER)
        for key in totals:
            totals[key] += engine.record().totals[key]
    assert all(totals.values()), totals


@pytest.mark.parametrize("seed", range(6))
def test_first_commits_are_kept_for_fleets(seed: int) -> None:
    _, w, s = timed_case(seed)
    engine = timed_engine(w, s, coefficients(), keep_commits=True)
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    first = engine.record().first_commit_ns
    assert first is not None
    assert np.array_equal(first != NEVER, engine.where != cols.NEVER_COMMITTED)
    assert (first[first != NEVER] >= 0).all()
