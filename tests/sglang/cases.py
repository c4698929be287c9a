"""What the SGLang tests share: workloads drawn by hypothesis, arrays looked into, golden comparisons."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as hs

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.engine import SglangEngine, build
from prefixsim.hardware.step_kernels import (
    C_DEC_KV_HEADS,
    C_DEC_RAMP,
    C_DEC_US_PER_KV_TOKEN,
    C_ENGINE_STEP_US,
    C_LAYERS,
    C_SMS,
    N_COEF,
)
from prefixsim.hardware.steptime import HostCosts, StepCosts
from prefixsim.records import new_request_rows
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
SCHEDULES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first")


@hs.composite
def native_rows(draw: hs.DrawFn, most: int = 14, tokens: int = 3, length: int = 40) -> list[dict[str, Any]]:
    """Rows of few different tokens, many of them continuing or repeating earlier ones."""
    rows: list[dict[str, Any]] = []
    step = 0
    token = hs.integers(0, tokens - 1)
    for i in range(draw(hs.integers(1, most))):
        base: list[int] = []
        if rows and draw(hs.booleans()):
            other = draw(hs.sampled_from(rows))
            whole = other["tokens"] + other["output_tokens"]
            base = whole[: draw(hs.integers(1, len(whole)))]
        prompt = base + draw(hs.lists(token, min_size=0 if base else 1, max_size=length))
        step += draw(hs.sampled_from([0, 0, 1, 3]))
        rows.append(
            {
                "id": f"{draw(hs.sampled_from('xyz'))}{i}",
                "step": step,
                "tokens": prompt,
                "output_tokens": draw(hs.lists(token, min_size=1, max_size=length // 2)),
                "cache_salt": draw(hs.sampled_from(["", "", "", "s"])),
                "priority": draw(hs.integers(0, 2)),
            }
        )
    return rows


def random_case(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows, golden config) of a seed: few different tokens, much repeated; any option; pools from too small to roomy."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    step = 0
    crowded = rng.random() < 0.01  # more waiting than are looked up
    for i in range(rng.randint(140, 170) if crowded else rng.randint(1, 12)):
        base: list[int] = []
        if rows and rng.random() < 0.6:
            other = rng.choice(rows)
            whole = other["tokens"] + other["output_tokens"]
            base = whole[: rng.randint(1, len(whole))]
        step += 0 if crowded else rng.choice([0, 0, 1, 3])
        rows.append(
            {
                "id": f"{rng.choice('xyz')}{i}",
                "step": step,
                "tokens": (base + [rng.randrange(3) for _ in range(rng.randint(not base, 40))])[:90],
                "output_tokens": [rng.randrange(3) for _ in range(rng.randint(1, 3 if crowded else 25))],
                "cache_salt": rng.choice(["", "", "", "s"]),
                "priority": rng.randrange(3),
            }
        )
    page = rng.choice([1, 1, 2, 3, 5, 16])
    need = -(-max(len(r["tokens"]) + len(r["output_tokens"]) for r in rows) // page)
    mode = rng.choice(["sequential", "overlap", "scheduler", "scheduler", "scheduler"])
    config: dict[str, Any] = {
        "mode": mode,
        "page_size": page,
        "radix_eviction_policy": rng.choice(["lru", *POLICIES]),
        "max_total_tokens": (need + 3) * page * rng.choice([1, 1, 2, 4]),
        "merge_single_child_parents": rng.random() < 0.5,
        "disable_radix_cache": rng.random() < 0.1,
    }
    if config["radix_eviction_policy"] == "tlru":
        config["radix_eviction_policy_config"] = {"threshold": rng.randint(0, 40), "next_prompt_estimate": 3}
    if config["radix_eviction_policy"] == "slru":
        config["radix_eviction_policy_config"] = {"protected_threshold": rng.randint(1, 4)}
    if mode == "overlap":
        config["width"] = rng.randint(1, 3)
        config["max_total_tokens"] *= 4
    if rng.random() < 0.3:
        config["max_total_tokens"] = rng.randint(max(1, need // 3), need + 3) * page
    if mode == "scheduler":
        config |= {
            "schedule_policy": rng.choice(SCHEDULES[:-1] if config["disable_radix_cache"] else SCHEDULES),
            "max_running_requests": rng.choice([1, 2, 8]),
            "chunked_prefill_size": rng.choice([-1, page, 2 * page + 1, 32]),
            "max_prefill_tokens": rng.choice([20, 16384]),
            "schedule_conservativeness": rng.choice([0.01, 0.1, 0.3, 1.0]),
            "overlap_schedule": rng.random() < 0.6,
        }
    return rows, config


def workload_of(rows: list[dict[str, Any]], **columns: Any) -> Workload:
    """A workload of native rows, some columns replaced."""
    from dataclasses import replace

    return replace(workload_from_rows(rows, Source(kind="native")), **columns)


def simple_costs(host: HostCosts | None = None, engine_us: float = 100.0) -> StepCosts:
    """Step times that grow with tokens: 1 µs a token, 0.01 µs a KV token read, and a fixed part."""
    coef = np.zeros(N_COEF)
    coef[[C_LAYERS, C_SMS, C_DEC_KV_HEADS, C_DEC_RAMP]] = 1.0
    coef[C_DEC_US_PER_KV_TOKEN] = 0.01
    coef[C_ENGINE_STEP_US] = engine_us
    return StepCosts(coef=coef, gemm_us=np.arange(4096.0), lm_head_us=np.zeros(2), host=host or HostCosts())


def engine_of(workload: Workload, capacity: int, costs: StepCosts | None = None, **more: Any) -> SglangEngine:
    """An engine of our own building; keywords of EngineInputs and SglangOptions may be mixed."""
    inputs = {k: more.pop(k) for k in ("awaited", "single_step", "keep_commits", "gpu_memory_gib", "seed") if k in more}
    inputs.setdefault("awaited", np.zeros(workload.n, dtype=np.bool_))
    options = SglangOptions.model_validate({"name": "s", **more})
    chains = build_chains(build_trie(workload, "sglang"), options.page_size)
    return build(
        options,
        EngineInputs(
            workload=workload,
            chains=chains,
            costs=costs or simple_costs(),
            capacity=capacity,
            rows=new_request_rows(workload.n),
            **inputs,
        ),
    )


def live_nodes(engine: SglangEngine) -> Iterator[int]:
    """Numbers of the tree's nodes, from its table."""
    table = engine.arenas.table
    return iter(table[table[:, 1] != st.NIL, 1].tolist())


def check_heap(a: Arenas, live: list[int]) -> None:
    """The heap holds exactly the unlocked leaves, each below one that goes before it, and knows where each is."""
    s, nodes = a.scalars, a.nodes
    if s[st.S_TIER]:
        live = [x for x in live if nodes[x, st.N_DEVICE] == 1]
    leaves = {x for x in live if nodes[x, st.N_LOCKS] == 0 and nodes[x, st.N_CHILDREN] == 0}
    heap = a.heap[: 3 * s[st.S_LEAVES]].reshape(-1, 3)
    places = a.heap[3 * (a.heap.shape[0] // 4) :]
    assert {x for x in live if nodes[x, st.N_HEAP] != st.NIL} == leaves
    assert set(heap[:, 2].tolist()) == leaves
    for at, (key, access, x) in enumerate(heap.tolist()):
        assert places[x] == at
        assert access == nodes[x, st.N_ACCESS]
        up = (at - 1) >> 2
        assert at == 0 or (heap[up, 0], heap[up, 1]) < (key, access)


def check_arrays(engine: SglangEngine) -> None:
    """Invariants of tree, heap and pool, from the arrays alone."""
    a = engine.arenas
    s, nodes = a.scalars, a.nodes
    live = sorted(live_nodes(engine))
    assert len(live) == len(set(live)) == s[st.S_NODES]
    pages = {x: int(nodes[x, st.N_END] - nodes[nodes[x, st.N_PARENT], st.N_END]) for x in live}
    free = sum(pages[x] for x in live if nodes[x, st.N_LOCKS] == 0)
    held = sum(pages[x] for x in live if nodes[x, st.N_LOCKS] > 0)
    assert (free, held) == (s[st.S_EVICTABLE], s[st.S_PROTECTED])
    children: dict[int, list[int]] = {}
    c = engine.inputs.chains
    offsets, ids = c.expand() if c.n_chains < 1 << 20 else (None, None)
    for x in live:
        parent = int(nodes[x, st.N_PARENT])
        children.setdefault(parent, []).append(x)
        assert pages[x] >= 1
        assert parent == st.ROOT or parent in pages
        assert parent == st.ROOT or nodes[x, st.N_LOCKS] <= nodes[parent, st.N_LOCKS]
        if offsets is not None:  # a trie: the segment is what its row says, right below the parent's
            row = ids[offsets[nodes[x, st.N_REP]] :]
            start = int(nodes[parent, st.N_END])
            assert row[start] == nodes[x, st.N_FIRST]
            if parent != st.ROOT:
                assert row[start - 1] == ids[offsets[nodes[parent, st.N_REP]] + start - 1]
    for parent in [st.ROOT, *live]:
        below = children.get(parent, [])
        assert nodes[parent, st.N_CHILDREN] == len(below)
        assert nodes[parent, st.N_CHILD_SUM] == sum(below)
    check_heap(a, live)
    used = sum(
        -(-int(a.slots[r, st.R_COMMITTED]) // engine.granularity) - int(a.slots[r, st.R_PROTECTED])
        for r in holders(engine)
    )
    assert s[st.S_AVAILABLE] >= 0
    assert s[st.S_AVAILABLE] + free + held + used == s[st.S_PAGES], "every page has one owner"
    locks = dict.fromkeys(live, 0)
    for r in holders(engine):
        up = int(a.slots[r, st.R_LOCK])
        while up != st.ROOT:
            locks[up] += 1
            up = int(nodes[up, st.N_PARENT])
    assert all(nodes[x, st.N_LOCKS] == n for x, n in locks.items()), "locks are those of running requests"


def holders(engine: SglangEngine) -> set[int]:
    """Slots of requests that hold KV."""
    a = engine.arenas
    s = a.scalars
    found = set(a.lists[st.L_RUNNING, : s[st.S_RUNNING]].tolist())
    found |= set(a.lists[st.L_LAST, : s[st.S_LAST]].tolist())
    found |= set(a.lists[st.L_PENDING, : s[st.S_PENDING]].tolist())
    return {r for r in found if a.slots[r, st.R_MADE] < a.slots[r, st.R_OUTPUTS] and a.slots[r, st.R_COMMITTED] > 0}
