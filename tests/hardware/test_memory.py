"""KV capacity: against what real servers logged (single figures from gpu/kv_capacity.csv), and the arithmetic itself."""

from __future__ import annotations

import pytest

from prefixsim.errors import DoesNotFitError
from prefixsim.hardware.load import load_hardware
from prefixsim.hardware.memory import KvCapacity, sglang_static_fraction
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec, MemoryOverrides

# model, options of hardware, vLLM kind, utilisation, TP, (total, weights, activation, non-torch), measured KV GiB
LOGGED = [
    ("llama-3.1-8b", {}, "vllm", 0.95, 1, (79.19, 14.99, 1.89, 0.25), 58.11),
    ("llama-3.1-8b", {"dtype": "fp32"}, "vllm", 0.95, 1, (79.19, 29.98, 2.21, 0.25), 42.8),
    ("llama-3.1-8b", {"dtype": "fp8"}, "vllm", 0.95, 1, (79.19, 8.49, 1.89, 0.25), 64.61),
    ("qwen2.5-7b", {"kv_cache_dtype": "fp8"}, "vllm", 0.95, 1, (79.19, 14.25, 2.21, 0.24), 58.53),
    ("qwen3-14b", {}, "vllm", 0.95, 1, (79.19, 27.52, 2.23, 0.25), 45.23),
    ("llama-3.3-70b", {"dtype": "fp8"}, "vllm@0.11", 0.9, 2, (79.18, 33.88, 4.84, 0.55), 32.0),
    ("qwen3-32b", {}, "vllm@0.11", 0.9, 2, (79.18, 30.59, 5.64, 0.54), 34.49),
    ("gpt-oss-20b", {}, "vllm@0.11", 0.9, 1, (79.18, 13.47, 7.38, 0.13), 50.28),
]


def capacity(model: str, tp: int = 1, engine: VllmOptions | SglangOptions | None = None, **more: object) -> KvCapacity:
    spec = HardwareSpec(gpu="h100-sxm-80g", model=model, tensor_parallel_size=tp, **more)  # type: ignore[arg-type]
    return load_hardware(spec).kv_capacity(engine or VllmOptions(name="v"))


@pytest.mark.parametrize("case", LOGGED, ids=lambda c: f"{c[0]} {c[2]} {c[1]}")
def test_measured_components_give_the_logged_size(case: tuple) -> None:  # type: ignore[type-arg]
    model, more, kind, utilisation, tp, (total, weights, activation, outside), logged = case
    memory = MemoryOverrides(total_gib=total, weights_gib=weights, activation_gib=activation, non_torch_gib=outside)
    found = capacity(
        model, tp, VllmOptions(name="v", kind=kind, gpu_memory_utilization=utilisation), memory=memory, **more
    )
    assert found.kv_gib == pytest.approx(logged, rel=1e-3)
    assert {c.kind for k, c in found.components.items() if k != "cuda_graphs"} == {"measured"}


@pytest.mark.parametrize("case", LOGGED, ids=lambda c: f"{c[0]} {c[2]} {c[1]}")
def test_defaults_come_within_three_percent(case: tuple) -> None:  # type: ignore[type-arg]
    model, more, kind, utilisation, tp, _, logged = case
    found = capacity(model, tp, VllmOptions(name="v", kind=kind, gpu_memory_utilization=utilisation), **more)
    assert found.kv_gib == pytest.approx(logged, rel=0.03)
    assert {c.kind for c in found.components.values()} == {"estimated"}


def test_tokens_as_logged() -> None:
    memory = MemoryOverrides(weights_gib=14.25, activation_gib=2.21, non_torch_gib=0.24)
    found = capacity(
        "qwen2.5-7b", engine=VllmOptions(name="v", gpu_memory_utilization=0.95), kv_cache_dtype="fp8", memory=memory
    )
    assert found.bytes_per_token == 28_672
    assert found.tokens == pytest.approx(2_192_000, rel=1e-3)
    assert found.tokens == found.blocks * 16


def test_too_large_a_model_is_an_error_that_helps() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        capacity("llama-3.1-70b")
    assert "GiB too much" in str(caught.value)
    assert "tensor_parallel_size 2" in str(caught.value)


def test_the_hint_does_fit() -> None:
    assert capacity("llama-3.1-70b", 2).kv_gib > 0


def test_sglang_static_fraction_by_hand() -> None:
    # 80 GiB, TP 1, chunk 8192: 512 + 12,288 + 128 MiB reserved.
    assert sglang_static_fraction(80, 1, None) == pytest.approx(1 - 12_928 / 81_920)
    assert sglang_static_fraction(80, 1, 2048) == pytest.approx(1 - 10_240 / 81_920), "at least 10 GiB"


def test_sglang_pool_is_what_the_fraction_leaves() -> None:
    found = capacity("llama-3.1-8b", engine=SglangOptions(name="s", mem_fraction_static=0.8))
    assert found.kv_gib == pytest.approx(0.8 * 79.19 - found.components["weights"].gib)


def test_mla_caches_one_latent_whatever_the_tp() -> None:
    spec = HardwareSpec(gpu="h200", model="deepseek-v3", tensor_parallel_size=8)
    assert load_hardware(spec).kv_bytes_per_token == 61 * 576 * 2


def test_hybrid_layout_shares_blocks_between_groups() -> None:
    full = capacity("gpt-oss-20b", engine=VllmOptions(name="v", layout="full"))
    hybrid = capacity("gpt-oss-20b")  # as vLLM does by itself
    assert hybrid.blocks == pytest.approx(2 * full.blocks, abs=1)
    assert "groups" in hybrid.note
