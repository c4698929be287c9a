"""vLLM with a host tier: kernels against the plain-Python twin, and what more or faster host memory must do."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

from test_vllm_twin import coefficients, step_duration, timed_case
from twin_replay import block_keys

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.tiers import layout as lt
from prefixsim.engines.tiers.arrays import HostTier
from prefixsim.engines.tiers.twin import TwinHostPool, TwinLink
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.facts import Settings
from prefixsim.engines.vllm.twin import TwinConfig, TwinRequest
from prefixsim.engines.vllm.twin_offload import OffloadScheduler, OffloadTwin
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
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
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload

SLOW = HostTier(bytes_per_token=1000, in_bytes_per_s=2e8, out_bytes_per_s=1e8, per_block_s=2e-6, latency_s=5e-6)
FREE = HostTier(bytes_per_token=0, in_bytes_per_s=1.0, out_bytes_per_s=1.0)


def engine(w: Workload, s: Settings, host: HostTier | None, **more: Any) -> VllmEngine:
    chains = build_chains(build_trie(w, "vllm"), s.block_size)
    awaited = more.pop("awaited", np.zeros(w.n, dtype=np.bool_))
    costs = more.pop("costs", coefficients())
    inputs = EngineInputs(w, chains, costs, s.num_gpu_blocks, new_request_rows(w.n), awaited, host=host, **more)
    return VllmEngine("v", "vllm", s, inputs)


def run(w: Workload, s: Settings, host: HostTier | None, **more: Any) -> VllmEngine:
    e = engine(w, s, host, **more)
    e.submit(np.arange(w.n), w.arrival_ns)
    e.advance(NEVER)
    return e


def offload_case(seed: int) -> tuple[list[dict[str, Any]], Workload, Settings, HostTier]:
    rng = random.Random(seed)
    rows, w, s = timed_case(seed)
    s = replace(
        s,
        offload_blocks=rng.choice([1, 3, 8, 20, 200]),
        store_threshold=rng.choice([0, 0, 0, 2, 3]),
        max_tracker_size=rng.choice([4, 64_000]),
    )
    speed = rng.choice([0.01, 1.0, 1.0, 100.0])
    host = replace(SLOW, in_bytes_per_s=SLOW.in_bytes_per_s * speed, out_bytes_per_s=SLOW.out_bytes_per_s * speed)
    return rows, w, s, host


def twin_run(
    rows: list[dict[str, Any]], w: Workload, s: Settings, host: HostTier, costs: StepCosts
) -> tuple[list[TwinRequest], OffloadScheduler]:
    n_chains = build_chains(build_trie(w, "vllm"), s.block_size).n_chains
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
    tracked = min(s.max_tracker_size, n_chains)
    tier = OffloadTwin(
        TwinHostPool(min(s.offload_blocks, n_chains), store_threshold=s.store_threshold, max_tracker_size=tracked),
        TwinLink(host.in_ps(s.block_size), host.latency_ps),
        TwinLink(host.out_ps(s.block_size), host.latency_ps),
    )
    scheduler = OffloadScheduler(config, lambda batch: step_duration(costs, batch), tier=tier)
    scheduler.run([r for r in requests if r.prompt_tokens < s.max_model_len])
    return requests, scheduler


@settings(max_examples=150)
@given(seed=hs.integers(0, 2**32 - 1))
def test_offloading_equals_the_twin(seed: int) -> None:
    rows, w, s, host = offload_case(seed)
    twins, scheduler = twin_run(rows, w, s, host, coefficients())
    e = run(w, s, host)
    got, bs, tier = e.inputs.rows, s.block_size, scheduler.t
    for i, t in enumerate(twins):
        cached = min(t.admissions[0][1], (t.prompt_tokens - 1) // bs * bs) if t.admissions else 0
        want = {
            REQ_ADMITTED_NS: t.admissions[0][0] if t.admissions else -1,
            REQ_FIRST_TOKEN_NS: -1 if t.first_token is None else t.first_token,
            REQ_FINISH_NS: -1 if t.finish is None else t.finish,
            REQ_CACHED_TOKENS: cached,
            REQ_CACHED_HOST_TOKENS: tier.host_tokens.get(i, 0),
            REQ_DEVICE_TOKENS: t.device_tokens,
            REQ_KNOWN_TOKENS: t.known_tokens,
            REQ_PREEMPTIONS: t.preemptions,
            REQ_RECOMPUTED_TOKENS: t.recomputed_tokens,
            REQ_CHUNKS: t.chunks,
        }
        assert {c: int(got[i, c]) for c in want} == want, i
    a = e.tier.tier
    assert (a[lt.T_IN_BLOCKS], a[lt.T_OUT_BLOCKS]) == (tier.link_in.blocks, tier.link_out.blocks)
    assert (a[lt.T_IN_BUSY], a[lt.T_IN_WAIT]) == (tier.link_in.busy_ns, tier.link_in.wait_ns)
    assert (a[lt.T_EVICTED], a[lt.T_FAILED], a[lt.T_BELOW]) == (tier.pool.evicted, tier.pool.failed, tier.pool.below)
    assert a[lt.T_DEFERRED] == tier.deferred
    tier.pool.check()
    assert e.state[st.I_FREE] == e.blocks.shape[0] - 1 - sum(len(t.table) for t in twins), "nothing leaks"


def test_the_cases_are_not_vacuous() -> None:
    names = ("host_cached_tokens", "host_evicted_tokens", "host_store_failures", "host_stores_skipped")
    names += ("host_lookups_deferred", "load_wait_ns", "link_in_wait_ns", "link_out_wait_ns", "preemptions")
    sums = dict.fromkeys(names, 0)
    for seed in range(60):
        _, w, s, host = offload_case(seed)
        totals = run(w, s, host).record().totals
        for name in names:
            sums[name] += totals[name]
    assert all(sums.values()), sums


@settings(max_examples=40)
@given(seed=hs.integers(0, 2**32 - 1))
def test_cut_into_pieces_gives_the_same(seed: int) -> None:
    _, w, s, host = offload_case(seed)
    whole = run(w, s, host)
    rng = random.Random(seed)
    awaited = np.array([rng.random() < 0.5 for _ in range(w.n)], dtype=np.bool_)
    pieces = engine(w, s, host, awaited=awaited, single_step=rng.random() < 0.5)

    def advance(until: int) -> None:
        while pieces.advance(until).next_ns < until:
            pass

    for i in range(w.n):
        advance(int(w.arrival_ns[i]))
        pieces.submit(np.array([i]), w.arrival_ns[i : i + 1])
    advance(NEVER)
    assert np.array_equal(pieces.inputs.rows, whole.inputs.rows)
    a, b = pieces.record(), whole.record()
    assert a.totals == b.totals
    assert np.array_equal(a.timeline, b.timeline)


@pytest.mark.parametrize("seed", range(8))
def test_without_host_memory_nothing_changes(seed: int) -> None:
    _, w, s, host = offload_case(seed)
    a = run(w, replace(s, offload_blocks=0), host)
    b = run(w, replace(s, offload_blocks=0), None)
    assert a.inputs.rows.tobytes() == b.inputs.rows.tobytes()
    ra, rb = a.record(), b.record()
    assert (ra.totals, ra.counters, ra.notes) == (rb.totals, rb.counters, rb.notes)
    assert ra.timeline.tobytes() == rb.timeline.tobytes()


def test_match_tokens_counts_host_hits_only_when_asked() -> None:
    seen = 0
    for seed in range(20):
        _, w, s, _ = offload_case(seed)
        e = run(w, replace(s, offload_blocks=10_000, store_threshold=0), FREE)
        for r in range(w.n):
            device, both = e.match_tokens(r), e.match_tokens(r, host=True)
            assert device <= both <= (int(w.prompt_tokens[r]) - 1) // s.block_size * s.block_size
            seen += both > device
    assert seen


def sequential(seed: int) -> tuple[Workload, Settings]:
    """Requests so far apart that each is alone; no lookups skipped, a pool that just fits the longest."""
    rows, _, s, _ = offload_case(seed)
    for i, row in enumerate(rows):
        row["arrival"] = float(i)
        row.pop("skip_reading_prefix_cache", None)
    w = workload_from_rows(rows, Source(kind="test"))
    return w, replace(s, max_model_len=1 << 40, store_threshold=0, watermark=0.0, scheduler_reserve_full_isl=True)


def cached(e: VllmEngine) -> np.ndarray:
    return e.inputs.rows[:, REQ_CACHED_TOKENS]


@settings(max_examples=40)
@given(seed=hs.integers(0, 2**32 - 1))
def test_an_endless_free_tier_serves_all_that_was_ever_computed(seed: int) -> None:
    w, s = sequential(seed)
    e = run(w, replace(s, offload_blocks=1_000_000), FREE)
    ceiling = np.minimum(e.inputs.rows[:, REQ_KNOWN_TOKENS], (w.prompt_tokens - 1) // s.block_size * s.block_size)
    assert np.array_equal(cached(e), ceiling)
    assert e.record().totals["host_evicted_tokens"] == 0


@settings(max_examples=40)
@given(seed=hs.integers(0, 2**32 - 1))
def test_more_host_memory_never_lowers_hits(seed: int) -> None:
    """One request at a time: the pool keeps what was used last, whole prefixes first, so a larger one holds all that a
    smaller one does."""
    w, s = sequential(seed)
    before = cached(run(w, s, None)).sum()
    longest = max(int((w.prompt_tokens + w.output_tokens).max()) // s.block_size, 1)
    for blocks in (longest, longest + 3, 2 * longest, 5 * longest, 1000):
        after = cached(run(w, replace(s, offload_blocks=blocks), FREE)).sum()
        assert after >= before, blocks
        before = after


def test_those_two_are_not_vacuous() -> None:
    gained = evicted = 0
    for seed in range(20):
        w, s = sequential(seed)
        few = run(w, replace(s, offload_blocks=20), FREE)
        gained += int(few.inputs.rows[:, REQ_CACHED_HOST_TOKENS].sum() > 0)
        evicted += few.record().totals["host_evicted_tokens"]
    assert gained >= 5
    assert evicted


def test_a_load_delays_its_own_request_and_no_other() -> None:
    """Two prompts; the first one's blocks are pushed out by others, then loaded over a link of 2 blocks a millisecond."""
    page = 8
    rows: list[dict[str, Any]] = [{"id": "a", "tokens": list(range(65)), "output_tokens": [1], "arrival": 0.0}]
    rows += [
        {"id": f"f{i}", "tokens": [1000 * (i + 1) + k for k in range(65)], "output_tokens": [1], "arrival": 0.1 + i}
        for i in range(3)
    ]
    rows.append({"id": "again", "tokens": list(range(65)), "output_tokens": [1, 2], "arrival": 10.0})
    rows.append({"id": "other", "tokens": [9000 + k for k in range(30)], "output_tokens": [1, 2], "arrival": 10.0})
    w = workload_from_rows(rows, Source(kind="test"))
    s = Settings(block_size=page, num_gpu_blocks=20, max_model_len=1 << 40, offload_blocks=100)
    host = HostTier(bytes_per_token=1, in_bytes_per_s=1.6e4, out_bytes_per_s=1e9)
    e = run(w, s, host)
    got = e.inputs.rows
    assert got[4, [REQ_CACHED_TOKENS, REQ_CACHED_HOST_TOKENS, REQ_DEVICE_TOKENS]].tolist() == [64, 64, 0]
    loading = 8 * host.in_ps(page) // 1000
    assert loading == 4_000_000
    wait = int(got[4, REQ_FIRST_TOKEN_NS] - got[4, REQ_ADMITTED_NS])
    assert loading < wait < loading + 2_000_000
    assert got[5, REQ_FIRST_TOKEN_NS] < got[4, REQ_ADMITTED_NS] + loading, "the other goes on meanwhile"
    totals = e.record().totals
    assert totals["load_wait_ns"] == totals["link_in_busy_ns"] == loading
    assert totals["host_loaded_tokens"] == 64
