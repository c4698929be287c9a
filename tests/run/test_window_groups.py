"""Runs on models with sliding-window layers: layouts follow from the model, ledgers add up, what is not modelled is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from prefixsim.errors import NotModelledError, PrefixsimError
from prefixsim.pipeline.run import Run, run_scenario
from prefixsim.records import REQ_REPLICA
from prefixsim.scenario.load import load_scenario

SCENARIO = """\
name: window
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 8}
  requests: 60
  templates: [{name: t, segments: [{shared: system, tokens: 300}, {unique: q, tokens: 40}]}]
  turns: 3
  output_tokens: 70
hardware: {gpu: h100-sxm-80g, model: gpt-oss-20b}
engines: [{name: e, kind: vllm}]
"""


def load(folder: Path, **keys: Any) -> Any:
    (folder / "s.yaml").write_text(SCENARIO)
    return load_scenario(folder / "s.yaml", {key.replace("__", "."): value for key, value in keys.items()})


def run(folder: Path, **keys: Any) -> Run:
    return run_scenario(load(folder, **keys))


def ledger(found: Run) -> dict[str, int]:
    part = found.summary["engines"]["e"]
    assert sum(part["ledger"].values()) == part["prompt_tokens"]  # nobody lost, whatever the layout
    return part["ledger"]


def test_the_layout_is_the_models(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.records[0].notes[0].startswith("layout hybrid: window of 128 tokens")
    assert ledger(found)["engine_rule"] > 1000  # answers, which the window group does not keep
    dense = ledger(run(tmp_path, engines__e__prefix_cache_retention_interval=None))
    assert dense["engine_rule"] == 0
    assert dense["hit_device"] > ledger(found)["hit_device"]
    full = run(tmp_path, engines__e__layout="full")
    assert ledger(full)["engine_rule"] == 0
    assert "layout full keeps all tokens" in full.records[0].notes[0]


def test_blocks_that_were_evicted_are_not_the_rules_fault(tmp_path: Path) -> None:
    short = {"engines__e__num_gpu_blocks_override": 200, "engines__e__prefix_cache_retention_interval": None}
    parts = ledger(run(tmp_path, **short))
    assert parts["evicted"] > 0
    assert parts["engine_rule"] == 0


def test_a_fleet_is_routed_by_what_its_windows_hold(tmp_path: Path) -> None:
    for router in ("cache_aware", "oracle", "round_robin"):
        found = run(tmp_path, replicas=2, router=router)
        assert ledger(found)["hit_device"] > 0
    assert set(found.records[0].requests[:, REQ_REPLICA].tolist()) == {0, 1}


@pytest.mark.parametrize("engine", ["hybrid", "full", "sglang"])
def test_a_replica_that_serves_nobody_changes_no_ledger(tmp_path: Path, engine: str) -> None:
    """What a replica itself computes, at the instant of a lookup or before, is no loss of routing."""
    rng = random.Random(1)
    trunk = [rng.randrange(9) for _ in range(1800)]
    lines = [
        {
            "id": f"r{i}",
            "tokens": trunk[: rng.choice([100, 500, 1000, 1800])] + [100 + i] * rng.choice([1, 40, 200]),
            "output_tokens": [1000 + i] * rng.randrange(1, 60),
            "arrival": i * 0.004,
            "session": "s",
        }
        for i in range(40)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    vllm = {"max_num_batched_tokens": 256, "max_num_seqs": 256}
    what: dict[str, Any] = {
        "hybrid": {"hardware__model": "gpt-oss-20b", "engines": [{"name": "e", "kind": "vllm", **vllm}]},
        "full": {"hardware__model": "llama-3.1-8b", "engines": [{"name": "e", "kind": "vllm", **vllm}]},
        "sglang": {
            "hardware__model": "llama-3.1-8b",
            "engines": [{"name": "e", "kind": "sglang", "chunked_prefill_size": 256}],
        },
    }[engine]
    keys = {
        "workload": {"trace": {"path": "t.jsonl"}},
        "router": {"kind": "session_affinity", "key": "session"},
        **what,
    }
    alone, beside = ledger(run(tmp_path, **keys)), ledger(run(tmp_path, replicas=2, **keys))
    assert beside == alone
    assert alone["in_flight"] > 0
    assert (alone["engine_rule"] > 0) == (engine == "hybrid")


def test_step_and_jump_are_the_same(tmp_path: Path) -> None:
    one, two = run(tmp_path, granularity="step"), run(tmp_path)
    assert (one.records[0].requests == two.records[0].requests).all()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engines__e__sliding_window": 64}, "gpt-oss-20b has 128"),
        ({"engines__e__layout": "swa"}, "12 full-attention and 12 window layers, which is layout hybrid"),
        ({"hardware__model": "llama-3.1-8b", "engines__e__layout": "hybrid"}, "which is layout full"),
        ({"engines__e__kind": "vllm@0.11"}, "vLLM 0.33 only"),
        ({"engines__e__enable_prefix_caching": False}, "layout full with it is exact"),
        ({"engines__e__kv_offloading_size": 8}, "host tier"),
        ({"engines__e__prefix_cache_retention_interval": 40}, "nearest: 32"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(PrefixsimError, match=words):
        run(tmp_path, **keys)


def test_nothing_runs_before_a_cache_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(NotModelledError, match="no single prefix"):
        run_scenario(load(tmp_path), save_cache=tmp_path / "c.jsonl", say=said.append)
    assert not said
