"""Many arrivals in one kernel: the same as one call after another, to the last nanosecond, whatever has to grow on the way."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from prefixsim.fleet import fleet as fleet_module
from prefixsim.pipeline import simulate as simulate_module
from prefixsim.pipeline.prepare import prepare, replica_hardware
from prefixsim.pipeline.simulate import simulate
from prefixsim.records import REQ_REPLICA, REQ_STATUS, STATUS_REJECTED
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import scenario_from

ORIGINAL = fleet_module.Fleet
TEXT = """
name: joint
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 60}
  requests: 1500
  turns: 1
  output_tokens: {lognormal: {median: 30, p95: 90}}
  templates:
    - {name: a, weight: 3, segments: [{shared: system, tokens: 300, variants: 9}, {unique: user, tokens: {lognormal: {median: 80, p95: 900}}}]}
    - {name: b, segments: [{unique: prompt, tokens: 700}]}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: e, kind: vllm, num_gpu_blocks_override: 150, max_num_seqs: 16}]
replicas: 3
oversized: reject
router: {kind: cache_aware, balance_abs_threshold: 6, balance_rel_threshold: 1.1, eviction_interval_s: 3, max_tree_size: 20000}
"""


def simulated(monkeypatch, keys, *, jointly):
    scenario = scenario_from(strict_yaml.parse(TEXT, "joint"), Path(), keys)
    used = []

    class Fleet(ORIGINAL):
        def __init__(self, *args, **more):
            super().__init__(*args, **more, jointly=jointly)

        def _arrivals_jointly(self):
            used.append(True)
            return super()._arrivals_jointly()

    monkeypatch.setattr(simulate_module, "Fleet", Fleet)
    record = simulate(scenario, scenario.engines[0], prepare(scenario), replica_hardware(scenario))
    return record, bool(used)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"router.balance_abs_threshold": 1000},
        {"engines.0.scheduling_policy": "priority", "engines.0.num_gpu_blocks_override": 90},
        {"clock": "steps"},
    ],
)
def test_one_kernel_gives_what_single_calls_give(monkeypatch, keys):
    one, joined = simulated(monkeypatch, keys, jointly=True)
    many, apart = simulated(monkeypatch, keys, jointly=False)
    assert joined
    assert not apart
    assert np.array_equal(one.requests, many.requests)
    for a, b in zip(one.replicas, many.replicas, strict=True):
        assert np.array_equal(a.timeline, b.timeline)
        assert np.array_equal(a.gaps, b.gaps)
        assert np.array_equal(a.first_commit_ns, b.first_commit_ns)
        assert (a.totals, a.counters, a.notes) == (b.totals, b.counters, b.notes)
    assert one.events < 20

    # What must hold beside equality: all served, by more than one replica; the pool was short, so arrays had to grow.
    served = one.requests[one.requests[:, REQ_STATUS] != STATUS_REJECTED]
    assert len(np.unique(served[:, REQ_REPLICA])) == 3
    assert sum(r.totals["finished"] for r in one.replicas) == len(served)
    assert max(len(r.timeline) for r in one.replicas) > 4096 or "clock" in keys


def test_unequal_replicas_and_other_engines_are_served_one_call_after_another(monkeypatch):
    groups = {"replicas": [{"count": 1}, {"count": 1, "hardware": {"gpu": "a100-sxm-80g", "model": "llama-3.1-8b"}}]}
    for keys in (groups, {"engines.0": {"name": "s", "kind": "sglang", "page_size": 1, "max_total_tokens": 2400}}):
        _, joined = simulated(monkeypatch, keys, jointly=True)
        assert not joined


def test_refused_prompts_are_counted_for_their_replica(monkeypatch):
    keys = {"engines.0.max_model_len": 800}
    one, joined = simulated(monkeypatch, keys, jointly=True)
    many, _ = simulated(monkeypatch, keys, jointly=False)
    refused = [r.totals["rejected"] for r in one.replicas]
    assert joined
    assert refused == [r.totals["rejected"] for r in many.replicas]
    assert sum(refused) == (one.requests[:, REQ_STATUS] == STATUS_REJECTED).sum() > 0
    assert dataclasses.asdict(one)["events"] >= 1


@pytest.mark.parametrize(
    "keys", [{}, {"router": "least_loaded"}, {"granularity": "step"}, {"router": "round_robin"}], ids=str
)
def test_a_run_leaves_no_cycle_that_keeps_its_replicas(monkeypatch, keys):
    """Hundreds of megabytes would wait for the garbage collector, and the next run would take fresh memory."""
    made = []

    class Fleet(ORIGINAL):
        def __init__(self, engines, *args, **more):
            super().__init__(engines, *args, **more)
            made.extend(weakref.ref(engine) for engine in engines)

    monkeypatch.setattr(simulate_module, "Fleet", Fleet)
    scenario = scenario_from(strict_yaml.parse(TEXT, "joint"), Path(), {**keys, "workload.requests": 100})
    prepared = prepare(scenario)
    gc.collect()
    gc.disable()
    try:
        simulate(scenario, scenario.engines[0], prepared, replica_hardware(scenario))
        assert len(made) == 3
        assert not [ref for ref in made if ref() is not None]
    finally:
        gc.enable()
