"""Every shipped scenario's `expect:` would notice if its effect vanished.

For each scenario the effect is switched off in one or more ways (a setting, or an edit of its trace). Each way must fail some
entry, and each entry must be failed by some way: an entry that nothing here can fail says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixsim.paths import data_dir
from prefixsim.pipeline.prepare import Library
from prefixsim.pipeline.run import run_scenario
from prefixsim.scenario.load import load_scenario
from prefixsim.study.check import Done, judge

FOLDER = data_dir("scenarios")
Rows = list[dict[str, Any]]
Off = dict[str, Any]


def without_segments(*names: str) -> Callable[[Rows], Rows]:
    """Prompts without these segments."""
    return lambda rows: [{**r, "segments": [s for s in r["segments"] if s[0] not in names]} for r in rows]


def without_keys(*keys: str) -> Callable[[Rows], Rows]:
    """Rows without these keys."""
    return lambda rows: [{k: v for k, v in r.items() if k not in keys} for r in rows]


def short_output(row_id: str) -> Callable[[Rows], Rows]:
    """One request generates a single token."""
    return lambda rows: [{**r, "output_length": 1} if r["id"] == row_id else r for r in rows]


def caching_off(*names: str) -> Off:
    """vLLM engines without prefix caching."""
    return {f"engines.{n}.enable_prefix_caching": False for n in names}


def radix_off(*names: str) -> Off:
    """SGLang engines without the radix cache."""
    return {f"engines.{n}.disable_radix_cache": True for n in names}


BOTH_OFF = {**caching_off("vllm"), **radix_off("sglang")}
BIG_POOL = {"engines.vllm.num_gpu_blocks_override": 60_000, "engines.sglang.max_total_tokens": 960_000}
PYTHON_TREE = {"hardware.host": "hosts/python-tree.yaml"}
OVERLOAD = {"workload.arrivals.rate_per_s": 200}

EFFECTS_OFF: dict[str, list[Off | Callable[[Rows], Rows]]] = {
    "claim-c01-position": [without_segments("date", "header"), BOTH_OFF],
    "claim-c02-namespaces": [without_keys("cache_salt", "lora", "extra_key"), BOTH_OFF],
    "claim-c03-hashing": [
        caching_off("vllm-16", "vllm-64", "vllm-128"),
        {"engines.vllm-off.enable_prefix_caching": True, "workload.templates.document.segments[0].tokens": 5_000},
    ],
    "claim-c05-block-rounding": [
        {"engines.vllm.block_size": 1, "engines.sglang.page_size": 16},
        {"engines.vllm.block_size": 64, "engines.sglang.page_size": 64},
    ],
    "claim-c06-few-shot": [{"engines.vllm.block_size": 1, "engines.sglang.page_size": 16}],
    "claim-c07-pages": [
        {
            "engines.vllm-16.block_size": 1,
            "engines.vllm-64.block_size": 1,
            "engines.sglang-1.page_size": 16,
            "engines.sglang-16.page_size": 1,
            "engines.sglang-64.page_size": 1,
        }
    ],
    "claim-c08-lookup-cost": [
        {"engines.page-64.page_size": 1, "engines.page-1.page_size": 64},
        PYTHON_TREE,
        radix_off("page-1"),
        {"engines.page-1.disable_overlap_schedule": True, "engines.page-64.disable_overlap_schedule": True},
    ],
    "claim-c09-families": [BOTH_OFF, {"engines.vllm.block_size": 1, "engines.sglang.page_size": 16}],
    "claim-c10-free-queue": [
        {"engines.vllm-033.facts.split_free_queue": False, "engines.vllm-011.facts.split_free_queue": True},
        {"workload.templates.bot.segments[0].variants": 1_000},
    ],
    "claim-c11-metrics": [BOTH_OFF, {"workload.templates.document.weight": 0.01}],
    "claim-c12-flag": [
        BOTH_OFF,
        {"engines.vllm-off.enable_prefix_caching": True, "engines.sglang-off.disable_radix_cache": False},
    ],
    "claim-c13-sharing": [
        BOTH_OFF,
        {"engines.vllm-off.enable_prefix_caching": True, "engines.sglang-off.disable_radix_cache": False},
    ],
    "claim-c14-alignment": [
        {
            "workload.templates.as-it-is.segments[0].tokens": 1_088,
            "workload.templates.cut-to-1088.segments[0].tokens": 1_100,
            "workload.templates.cut-to-1024.segments[0].tokens": 1_100,
        },
        {"engines.vllm-16.block_size": 1, "engines.vllm-128.block_size": 1},
        {f"workload.templates.cut-to-{n}.segments[0].tokens": n // 2 for n in (1_024, 1_088)},
    ],
    "claim-c15-merging": [
        {
            "engines.sglang.facts.merge_single_child_parents": True,
            "engines.sglang-merging.facts.merge_single_child_parents": False,
        },
        {"engines.sglang.max_total_tokens": 400_000, "engines.sglang-merging.max_total_tokens": 400_000},
    ],
    "claim-c15-tree-work-compiled": [
        PYTHON_TREE,
        {"workload.templates.classify.segments[1].tokens": 1_000},
        {"engines.sglang.max_total_tokens": 20_000},
    ],
    "claim-c15-tree-work-python": [
        {"hardware.host": "reference"},
        {"workload.templates.classify.segments[1].tokens": 1_000},
        {"engines.sglang.max_total_tokens": 20_000},
    ],
    "claim-c16-locks": [short_output("long"), {"engines.sglang.disable_radix_cache": True}],
    "claim-c16-whole-leaf": [{"engines.sglang.max_total_tokens": 2_000, "engines.vllm.num_gpu_blocks_override": 60}],
    "claim-c17-node-memory": [
        {"engines.sglang.disable_radix_cache": True},
        {"hardware.host": "hosts/python-tree.yaml"},
    ],
    "claim-c18-short-diverse": [
        {"engines.vllm-16.block_size": 1, "engines.vllm-64.block_size": 1, "engines.sglang.page_size": 16}
    ],
    "claim-c18-single-prompt": [
        {"engines.vllm.block_size": 64, "engines.sglang.page_size": 64},
    ],
    "agents": [BOTH_OFF, {"workload.system_tokens": 10}],
    "chat": [BOTH_OFF, OVERLOAD, {"workload.turns": 1}],
    "few-shot": [
        {"workload.mix.sets.workload.sets": None, "workload.mix.drawn.workload.sets": 20},
    ],
    "host-tier": [{"engines.vllm-host.kv_offloading_size": 0, "engines.vllm.kv_offloading_size": 256}],
    "host-tier-engines": [
        {
            "engines.vllm-host.kv_offloading_size": 0,
            "engines.vllm.kv_offloading_size": 150,
            "engines.sglang-host.enable_hierarchical_cache": False,
            "engines.sglang.enable_hierarchical_cache": True,
            "engines.sglang.hicache_ratio": 6,
        }
    ],
    "hybrid-block-zero-hits": [
        {"engines.vllm-784.block_size": 16, "engines.vllm-16.block_size": 784, "engines.sglang.page_size": 784},
        {"workload.templates.bot.segments[0].tokens": 1_000},
    ],
    "long-context": [
        BIG_POOL | {"engines.vllm.num_gpu_blocks_override": 600_000, "engines.sglang.max_total_tokens": 9_600_000},
        {"workload.turns": 1},
    ],
    "lora": [{f"workload.templates.adapter-{k}.lora": None for k in range(1, 7)}, BOTH_OFF],
    "multi-tenant": [
        {"workload.mix.salted.workload.templates.bot.cache_salt": None},
        {"workload.mix.open.workload.templates.bot.cache_salt": "per_tenant"},
    ],
    "preemption-storm": [
        BIG_POOL,
        {"workload.output_tokens": 10},
        {"engines.sglang.max_total_tokens": 390, "oversized": "reject"},
    ],
    "quickstart": [
        {"workload.templates.support.segments[0].tokens": 1, "workload.turns": 1},
        {"workload.arrivals.rate_per_s": 200},
    ],
    "rag": [
        {"workload.mix.by-relevance.workload.order": "fixed", "workload.mix.fixed-order.workload.order": "shuffled"}
    ],
    "router-cache-aware": [{"router": "round_robin"}],
    "router-round-robin": [{"router": "cache_aware"}],
    "scan-pollution": [
        {
            "engines.lru.radix_eviction_policy": "slru",
            "engines.slru.radix_eviction_policy": "lru",
            "engines.lfu.radix_eviction_policy": "lru",
        },
        {"engines.vllm.num_gpu_blocks_override": 60_000},
        {"workload.mix.scan.workload.templates.document.segments[0].tokens": 10},
    ],
    "sliding-window": [
        {"engines.default.prefix_cache_retention_interval": None},
        {"engines.dense.prefix_cache_retention_interval": 0, "engines.full.layout": "hybrid"},
    ],
    "tree-of-thought": [{"workload.branches": 1, "workload.keep": 1}],
}
"""Scenario -> ways to switch its effect off: keys to set, or an edit of the rows of its trace."""


def broken(name: str, off: Off | Callable[[Rows], Rows], folder: Path) -> dict[int, str]:
    """Entries of `expect:` (by position) that fail with the effect off."""
    if callable(off):
        plain = load_scenario(name)
        trace = FOLDER / plain.workload.trace.path
        rows = off([json.loads(line) for line in trace.read_text().splitlines()])
        path = folder / trace.name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        scenario = load_scenario(name, {"workload.trace.path": str(path)})
    else:
        scenario = load_scenario(name, off)
    run = run_scenario(scenario, library=Library(keep=1), write=False)
    result, _ = judge(name, scenario, [Done(run.summary, [], 0.0)], None)
    return {i: f"{c.metric}: {c.found}" for i, c in enumerate(result.checks) if not c.ok}


@pytest.mark.parametrize("name", sorted(EFFECTS_OFF))
def test_expectations_fail_without_the_effect(name, tmp_path):
    failed: set[int] = set()
    for off in EFFECTS_OFF[name]:
        found = broken(name, off, tmp_path)
        assert found, f"{name} holds although {off}"
        failed |= set(found)
    entries = load_scenario(name).expect
    assert not [e.metric for i, e in enumerate(entries) if i not in failed]


def test_no_scenario_is_left_out():
    names = {p.stem for p in FOLDER.glob("*.yaml")} - {"mooncake"}
    assert names == set(EFFECTS_OFF)
