"""Options of host tiers: what is refused, sizes, the link from the hardware, whole runs with fleets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prefixsim.engines.tiers.arrays import host_tier
from prefixsim.errors import DoesNotFitError, NotModelledError, ScenarioError
from prefixsim.hardware.host_link import LATENCY_US, PER_BLOCK_US, SUSTAINED_SHARE, host_link
from prefixsim.hardware.load import load_hardware
from prefixsim.pipeline.run import Run, run_scenario
from prefixsim.scenario.hardware import HardwareSpec
from prefixsim.scenario.load import load_scenario

BASE: dict[str, Any] = {
    "name": "tiers",
    "workload": {
        "generator": "sessions",
        "arrivals": {"process": "poisson", "rate_per_s": 2},
        "requests": 120,
        "templates": [
            {"name": "t", "segments": [{"shared": "system", "tokens": 300}, {"unique": "d", "tokens": 2500}]}
        ],
        "turns": 4,
        "turn_tokens": 50,
        "think_time_s": 20,
        "output_tokens": 60,
    },
    "hardware": {"gpu": "h100-sxm-80g", "model": "llama-3.1-8b"},
    "seed": 3,
}
VLLM = {"name": "v", "kind": "vllm@0.33", "num_gpu_blocks_override": 2000}
SGLANG = {
    "name": "s",
    "kind": "sglang@0.5.23",
    "page_size": 16,
    "max_total_tokens": 32_000,
    "enable_hierarchical_cache": True,
}


def scenario(tmp_path: Path, **more: Any):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(BASE | more))
    return load_scenario(path)


def run(tmp_path: Path, engine: dict[str, Any], **more: Any) -> Run:
    return run_scenario(scenario(tmp_path, engines=[engine], **more))


@pytest.mark.parametrize(
    ("engine", "error", "says"),
    [
        (VLLM | {"kv_offloading_size": 10, "kv_offloading_backend": "lmcache"}, NotModelledError, "lmcache"),
        (VLLM | {"kv_offloading_size": 10, "kind": "vllm@0.11"}, NotModelledError, "0.11"),
        (VLLM | {"kv_offloading_size": 10, "enable_prefix_caching": False}, NotModelledError, "enable_prefix_caching"),
        (
            VLLM | {"kv_offloading_size": 10, "kv_connector_extra_config": {"eviction_policy": "arc"}},
            NotModelledError,
            "lru",
        ),
        (VLLM | {"kv_offloading_size": 0.001}, DoesNotFitError, "not one block"),
        (SGLANG | {"schedule_policy": "dfs-weight"}, NotModelledError, "dfs-weight"),
        (SGLANG | {"hicache_storage_backend": "file"}, NotModelledError, "third tier"),
        (SGLANG | {"hicache_size": 1e-6}, DoesNotFitError, "holds no page"),
    ],
)
def test_refused_by_name(tmp_path: Path, engine: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run(tmp_path, engine)


@pytest.mark.parametrize(
    ("key", "value"), [("bandwidth_gb_per_s", 0), ("bandwidth_gb_per_s", -1), ("per_block_us", -1), ("latency_us", -2)]
)
def test_impossible_links_are_errors_with_their_key(tmp_path: Path, key: str, value: float) -> None:
    with pytest.raises(ScenarioError, match=key):
        scenario(tmp_path, engines=[VLLM], hardware=BASE["hardware"] | {"host_link": {key: value}})


@pytest.mark.parametrize("engine", [VLLM | {"kv_offloading_size": 10}, SGLANG])
def test_without_a_clock_or_hardware_loads_have_no_time(tmp_path: Path, engine: dict[str, Any]) -> None:
    with pytest.raises(NotModelledError, match="clock: steps"):
        run(tmp_path, engine, clock="steps")


def test_the_link_is_the_profiles_unless_given() -> None:
    spec = HardwareSpec(gpu="h100-sxm-80g", model="llama-3.1-8b")
    link = host_link(load_hardware(spec))
    listed = load_hardware(spec).gpu.device.host_link_bandwidth_gb_per_s
    share = 1.0 if listed.kind == "measured" else SUSTAINED_SHARE
    assert link.bytes_per_s == pytest.approx(listed.value * share * 1e9)
    assert (link.per_block_s, link.latency_s) == pytest.approx((PER_BLOCK_US * 1e-6, LATENCY_US * 1e-6))
    given = spec.model_copy(update={"host_link": spec.host_link.model_copy(update={"bandwidth_gb_per_s": 10.0})})
    link = host_link(load_hardware(given))
    assert link.bytes_per_s == 1e10
    assert [link.sources[k]["kind"] for k in ("bandwidth_gb_per_s", "latency_us")] == ["given", "assumed"]
    wide = host_tier(load_hardware(HardwareSpec(gpu="h100-sxm-80g", model="llama-3.1-8b", tensor_parallel_size=2)))
    one = host_tier(load_hardware(spec))
    assert wide.in_ps(16) < one.in_ps(16), "two links"
    assert wide.bytes_per_token * wide.gpus == one.bytes_per_token


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (VLLM, VLLM | {"kv_offloading_size": 40}),
        (SGLANG | {"hicache_ratio": 0}, SGLANG | {"hicache_ratio": 10}),
        (SGLANG | {"hicache_ratio": 0}, SGLANG | {"hicache_ratio": 10, "hicache_write_policy": "write_back"}),
    ],
)
def test_runs_say_modelled_and_the_ledger_adds_up(tmp_path: Path, off: dict[str, Any], on: dict[str, Any]) -> None:
    """The ledger's sum is checked by every run; host hits are a part of it."""
    without = run(tmp_path, off).summary["engines"][off["name"]]
    part = run(tmp_path, on).summary["engines"][on["name"]]
    assert without["cached_host_tokens"] == without["ledger"]["hit_host"] == 0
    assert part["cached_host_tokens"] == part["ledger"]["hit_host"] > 10_000
    assert part["ledger"]["evicted"] < without["ledger"]["evicted"]
    assert part["totals"]["load_wait_ns"] > 0
    assert 0 < part["counters"]["host link utilisation ratio (loads)"] < 1
    assert any("modelled" in note for note in part["notes"])
    assert any("assumed" in note and "host link" in note for note in part["notes"])
    assert not any("host tier" in note for note in without["notes"])


@pytest.mark.parametrize("engine", [VLLM | {"kv_offloading_size": 20}, SGLANG])
@pytest.mark.parametrize("router", ["round_robin", "cache_aware"])
def test_fleets_step_by_step_are_the_same(tmp_path: Path, engine: dict[str, Any], router: str) -> None:
    runs = [run(tmp_path, engine, replicas=2, router=router, granularity=g) for g in ("jump", "step")]
    a, b = (r.records[0].requests for r in runs)
    assert a.tobytes() == b.tobytes()
    assert runs[0].summary["engines"][engine["name"]]["cached_host_tokens"] > 0
