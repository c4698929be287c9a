"""`granularity: step` is the oracle of `jump`: random scenarios, both engines, several replicas, every router, closed loops.

Beside equality, what must hold in any run: every request served once, nothing before its cause, the ledger adds up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefixsim.hardware.load import load_hardware
from prefixsim.pipeline.prepare import Prepared
from prefixsim.pipeline.simulate import simulate
from prefixsim.pipeline.summarise import summarise
from prefixsim.records import (
    LEDGER_PARTS,
    REQ_ADMITTED_NS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
)
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.router import ROUTERS
from prefixsim.workload.table import Source, make_workload

TEXT = """
name: random
workload: {trace: {path: none.jsonl}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
oversized: reject
engines:
  - {name: vllm, kind: vllm, block_size: 4, num_gpu_blocks_override: 60, max_num_seqs: 6, max_num_batched_tokens: 64}
  - {name: old, kind: vllm@0.11, block_size: 8, num_gpu_blocks_override: 24, max_num_seqs: 4, max_num_batched_tokens: 32}
  - {name: priority, kind: vllm, block_size: 4, num_gpu_blocks_override: 40, scheduling_policy: priority}
  - {name: sglang, kind: sglang, page_size: 1, max_total_tokens: 240, chunked_prefill_size: 64}
  - {name: paged, kind: sglang, page_size: 4, max_total_tokens: 200, schedule_policy: lpm, disable_overlap_schedule: true}
"""
ENGINES = ("vllm", "old", "priority", "sglang", "paged")


def scenario(**keys):
    return scenario_from(strict_yaml.parse(TEXT, "random"), Path(), keys)


def workload(seed, n=60, *, chained, span_s=1.0):
    """Prompts that share prefixes, in two namespaces, some with thinking pauses after an earlier request; some too long."""
    rng = np.random.default_rng(seed)
    atoms, lengths, prompt_atoms, outputs, after = [], [], [], [], np.full(n, -1)
    for r in range(n):
        prompt = [int(a) for a in rng.integers(0, 4, rng.integers(1, 5))] + [1000 + r]
        size = [int(t) for t in rng.integers(1, 30, len(prompt) - 1)] + [int(rng.integers(1, 20))]
        if rng.random() < 0.02:
            size[-1] = 400
        out = int(rng.integers(1, 25))
        if chained and r and rng.random() < 0.6:
            after[r] = rng.integers(max(0, r - 8), r)
        atoms.append([*prompt, 5000 + r] if r % 3 else prompt)
        lengths.append([*size, out] if r % 3 else size)
        prompt_atoms.append(len(prompt))
        outputs.append(out)
    return make_workload(
        source=Source("test"),
        prompt_tokens=[sum(t[:k]) for t, k in zip(lengths, prompt_atoms, strict=True)],
        output_tokens=outputs,
        atom_offset=np.concatenate([[0], np.cumsum([len(a) for a in atoms])]),
        prompt_atoms=prompt_atoms,
        atom_id=np.concatenate(atoms),
        atom_tokens=np.concatenate(lengths),
        arrival_ns=np.sort(rng.integers(0, int(span_s * 1e9), n)),
        after=after,
        delay_ns=rng.integers(0, 2, n) * rng.integers(0, 50_000_000),
        salt=(rng.random(n) < 0.2).astype(int),
        salt_names=("", "other"),
        priority=rng.integers(0, 3, n),
        session=rng.integers(-1, 5, n),
        stop=rng.random(n) < 0.3,
    )


def both(w, engine, **keys):
    """(scenario, options, prepared, record by jump, record by step)."""
    prepared = Prepared(w)
    records = []
    for granularity in ("jump", "step"):
        s = scenario(granularity=granularity, **keys)
        hw = load_hardware(s.hardware)
        options = next(e for e in s.engines if e.name == engine)
        records.append(simulate(s, options, prepared, [hw] * s.n_replicas))
    return s, options, prepared, records[0], records[1]


def check(w, engine, **keys):
    s, options, prepared, jump, step = both(w, engine, **keys)
    different = np.flatnonzero((jump.requests != step.requests).any(axis=1))
    assert different.tolist() == []
    for a, b in zip(jump.replicas, step.replicas, strict=True):
        assert np.array_equal(a.timeline, b.timeline)
        assert np.array_equal(a.gaps, b.gaps)
        assert a.totals == b.totals
        assert a.counters == b.counters
    assert jump.events <= step.events
    rows = jump.requests
    done = rows[:, REQ_STATUS] == STATUS_FINISHED
    assert (done | (rows[:, REQ_STATUS] == STATUS_REJECTED)).all()
    assert done.sum() >= 0.8 * w.n
    released = rows[:, REQ_RELEASED_NS]
    for r in range(w.n):
        if w.after[r] < 0:
            assert released[r] == w.arrival_ns[r]
        elif done[w.after[r]]:
            assert released[r] == rows[w.after[r], REQ_FINISH_NS] + w.delay_ns[r]
        else:  # a rejection is an answer too
            assert released[r] >= released[w.after[r]] + w.delay_ns[r]
    assert (rows[done, REQ_ADMITTED_NS] >= released[done]).all()
    assert (rows[done, REQ_FIRST_TOKEN_NS] > rows[done, REQ_ADMITTED_NS]).all()
    assert (rows[done, REQ_FINISH_NS] >= rows[done, REQ_FIRST_TOKEN_NS]).all()
    assert sum(int(a.gaps[:, 1].sum()) for a in jump.replicas) == w.output_tokens[done].sum() - done.sum()
    summary, ledgers = summarise(s, [options], [jump], prepared, [None] * s.n_replicas, "id")
    part = summary["engines"][engine]
    assert sum(part["ledger"].values()) == part["prompt_tokens"] == w.prompt_tokens[done].sum()
    assert part["output_tokens"] == w.output_tokens[done].sum()
    assert part["ledger"]["hit_device"] == part["cached_tokens"]
    assert set(part["ledger"]) == set(LEDGER_PARTS)
    assert (ledgers[0] >= 0).all()
    return part


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("chained", [False, True], ids=["open", "closed"])
def test_one_replica(engine, chained):
    parts = [check(workload(seed, chained=chained), engine) for seed in range(4)]
    assert sum(p["cached_tokens"] for p in parts) > 0
    assert sum(p["evicted_tokens"] for p in parts) > 0


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("chained", [False, True], ids=["open", "closed"])
def test_three_replicas(engine, router, chained):
    w = workload(len(router) + 40 * chained, chained=chained, span_s=0.5)
    keys = {"replicas": 3, "router": {"kind": router}}
    if router == "kv_events":
        keys["router"]["lag_s"] = 0.03
    part = check(w, engine, **keys)
    assert len([r for r in part["replicas"] if r["requests"]]) > 1


def test_routing_losses_appear_with_replicas_only():
    w = workload(5, chained=False)
    assert check(w, "vllm", **{"engines.vllm.num_gpu_blocks_override": 2000})["ledger"]["routing"] == 0
    spread = check(w, "vllm", **{"engines.vllm.num_gpu_blocks_override": 2000, "replicas": 4})
    assert spread["ledger"]["routing"] > 0
    for replica in spread["replicas"]:
        assert replica["cached_tokens"] <= replica["ceiling_tokens"]["token"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_many_random_scenarios(seed):
    rng = np.random.default_rng(1000 + seed)
    w = workload(seed + 500, n=120, chained=bool(seed % 2), span_s=float(rng.choice([0.1, 0.5, 3.0])))
    router = sorted(ROUTERS)[seed % len(ROUTERS)]
    check(w, ENGINES[seed % len(ENGINES)], replicas=int(rng.integers(1, 5)), router=router)
