"""Random hostile scenarios on models with sliding-window layers: they run or are refused for people, and ledgers hold."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefixsim.errors import PrefixsimError
from prefixsim.pipeline.run import Run, run_scenario
from prefixsim.records import REQ_REPLICA
from prefixsim.scenario.load import load_scenario

ROUTERS: list[Any] = ["round_robin", "random", "least_loaded", "power_of_two", "cache_aware", "oracle", "kv_events"]
ROUTERS += [{"kind": "session_affinity", "key": key} for key in ("session", "tenant")]


def requests(rng: random.Random) -> list[dict[str, Any]]:
    """Shared beginnings, answers continued, awaited turns, namespaces, skipped lookups, priorities, stops."""
    trunks = [[rng.randrange(50) for _ in range(600)] for _ in range(2)]
    rows: list[dict[str, Any]] = []
    at = 0.0
    for i in range(rng.choice([1, 2, 8, 30])):
        row: dict[str, Any] = {"id": f"r{i}", "session": f"s{rng.randrange(4)}", "tenant": "t"}
        tokens = rng.choice(trunks)[: rng.choice([1, 15, 16, 17, 64, 128, 129, 300, 600])]
        tokens = tokens + [1000 + rng.choice([i, 0])] * rng.choice([0, 0, 1, 16, 200])
        if rows and rng.random() < 0.3:
            before = rng.choice(rows)
            tokens = before["tokens"] + before["output_tokens"] + [2000 + i] * rng.choice([0, 3, 40])
            if rng.random() < 0.5:
                row |= {"after": before["id"], "delay": rng.choice([0, 0.01, 1.0])}
        if "after" not in row:
            at += rng.choice([0, 0, 0.001, 0.02, 0.5])
            row["arrival"] = at
        row |= {"tokens": tokens, "output_tokens": [rng.choice([7, i + 5000])] * rng.choice([1, 1, 2, 17, 90])}
        more = [("cache_salt", "a"), ("lora", "x"), ("skip_reading_prefix_cache", True), ("finish_reason", "stop")]
        more += [("priority", rng.randrange(3)), ("max_tokens", len(row["output_tokens"]) + rng.choice([0, 1, 9]))]
        rows.append(row | {key: value for key, value in more if rng.random() < 0.2})
    return rows


def engine(rng: random.Random, steps: bool) -> dict[str, Any]:
    size = rng.choice([1, 4, 16, 16, 32, 128])
    some: dict[str, list[Any]] = {
        "num_gpu_blocks_override": [2, 3, 5, 12, 40, 80, 200, 1000],
        "prefix_cache_retention_interval": [0, None, size, 2 * size, 8 * size],
        "layout": ["full", "hybrid"],
        "max_num_batched_tokens": [16, 64, 256],
        "max_num_seqs": [1, 4, 16],
        "max_model_len": [1, 17, 200, 700],
        "async_scheduling": [True, False],
        "scheduler_reserve_full_isl": [False],
        "scheduling_policy": ["priority"],
        "watermark": [0.01, 0.3, 0.9],
        "long_prefill_token_threshold": [1, 32],
    }
    chosen = {key: rng.choice(values) for key, values in some.items() if rng.random() < 0.35}
    if steps:
        window = rng.choice([1, 2, size, size + 1, 128, 100_000])
        chosen |= {"layout": rng.choice(["swa", "hybrid"]), "sliding_window": window}
        chosen.setdefault("num_gpu_blocks_override", 100)
    return {"name": "e", "kind": "vllm", "block_size": size, **chosen}


def hostile(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(scenario, requests)."""
    rng = random.Random(seed)
    steps = rng.random() < 0.3
    found: dict[str, Any] = {"name": "h", "workload": {"trace": {"path": "t.jsonl"}}, "oversized": "reject"}
    found["engines"] = [engine(rng, steps)]
    models = rng.choice([["gpt-oss-20b"], ["gpt-oss-20b"], ["gpt-oss-120b", "llama-3.1-8b"], ["gpt-oss-20b"] * 3])
    each = [{"gpu": "h100-sxm-80g", "model": model} for model in models]
    if steps:
        found |= {"clock": "steps", "replicas": len(models)}
    elif len(set(models)) > 1:
        found["replicas"] = [{"count": 1, "hardware": hardware} for hardware in each]
    else:
        found |= {"hardware": each[0], "replicas": len(models)}
    if len(models) > 1:
        found["router"] = rng.choice(ROUTERS)
    if rng.random() < 0.15:
        found["granularity"] = "step"
    return found, requests(rng)


def run(folder: Path, scenario: dict[str, Any], rows: list[dict[str, Any]]) -> Run:
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "s.yaml").write_text(json.dumps(scenario))
    return run_scenario(load_scenario(folder / "s.yaml"))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_ledgers_hold_whatever_is_asked(tmp_path: Path, seed: int) -> None:
    scenario, rows = hostile(seed)
    try:
        found = run(tmp_path, scenario, rows)
    except PrefixsimError:
        return
    part = found.summary["engines"]["e"]
    assert min(part["ledger"].values()) >= 0
    assert sum(part["ledger"].values()) == part["prompt_tokens"]
    if len(set(found.records[0].requests[:, REQ_REPLICA].tolist()) - {-1}) <= 1:  # nobody else has computed anything
        assert part["ledger"]["routing"] == 0
    if scenario["engines"][0].get("layout") == "full":
        assert part["ledger"]["engine_rule"] == 0


def test_the_scenarios_are_not_vacuous(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    ran = 0
    for seed in range(60):
        try:
            found = run(tmp_path, *hostile(seed))
        except PrefixsimError:
            continue
        ran += 1
        for key, value in found.summary["engines"]["e"]["ledger"].items():
            seen[key] = seen.get(key, 0) + (value > 0)
    assert ran > 30
    assert all(seen[key] for key in seen if key != "hit_host"), seen


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_pool_for_nothing_rejects_everybody(tmp_path: Path, blocks: int) -> None:
    scenario, rows = hostile(0)
    scenario |= {"hardware": {"gpu": "h100-sxm-80g", "model": "gpt-oss-20b"}, "replicas": 1}
    scenario["engines"] = [{"name": "e", "kind": "vllm", "num_gpu_blocks_override": blocks}]
    scenario.pop("clock", None)
    found = run(tmp_path, scenario, rows)
    part = found.summary["engines"]["e"]
    assert part["rejected"] == len(rows)
    assert part["prompt_tokens"] == sum(part["ledger"].values()) == 0
