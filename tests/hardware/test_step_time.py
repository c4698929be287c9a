"""The step kernel against its plain twin, and what must hold whatever the numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.errors import NotModelledError
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.load import Hardware, load_hardware
from prefixsim.hardware.steptime import StepCosts
from prefixsim.scenario.hardware import HardwareSpec


def hardware(model: str = "llama-3.1-8b", gpu: str = "h100-sxm-80g", tp: int = 1, **more: object) -> Hardware:
    return load_hardware(HardwareSpec(gpu=gpu, model=model, tensor_parallel_size=tp, **more))  # type: ignore[arg-type]


COSTS = {
    "dense": hardware().step_costs("vllm"),
    "tp8": hardware("llama-3.1-70b", tp=8).step_costs("sglang"),
    "windows": hardware("gpt-oss-20b").step_costs("vllm"),
    "mla": hardware("deepseek-v3", "h200", 8).step_costs("vllm"),
}
prefills = st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 200_000)), max_size=4)
decodes = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 200_000)), max_size=3)


def kernel_ns(c: StepCosts, prefill: list[tuple[int, int]], decode: list[tuple[int, int]], sampled: int) -> int:
    work = longest = 0.0
    for q, past in prefill:
        w, most = sk.prefill_item(c.coef, q, past)
        work, longest = work + w, max(longest, most)
    n = sum(b for b, _ in decode)
    tokens = sum(q for q, _ in prefill) + n
    kv = sum(b * s for b, s in decode)
    return int(sk.step_ns(c.coef, c.gemm_us, c.lm_head_us, tokens, len(prefill), work, longest, n, kv, sampled))


@pytest.mark.parametrize("kind", COSTS)
@settings(max_examples=40)
@given(prefill=prefills, decode=decodes)
def test_kernel_equals_its_twin(kind: str, prefill: list[tuple[int, int]], decode: list[tuple[int, int]]) -> None:
    if not prefill and not decode:
        return
    costs = COSTS[kind]
    sampled = len(prefill) + sum(b for b, _ in decode)
    expected = costs.explain(prefill, decode).total_us * 1000
    assert kernel_ns(costs, prefill, decode, sampled) == pytest.approx(expected, rel=1e-9, abs=1)


@settings(max_examples=40)
@given(q=st.integers(1, 5000), past=st.integers(0, 5000), window=st.integers(1, 6000))
def test_window_mean_is_the_mean_of_what_each_token_sees(q: int, past: int, window: int) -> None:
    seen = [min(past + i + 0.5, window) for i in range(q)]
    assert sk.window_mean(float(window), q, past) == pytest.approx(np.mean(seen), abs=0.2)


def test_clock_steps_ignores_the_batch() -> None:
    costs = StepCosts.steps(7)
    assert kernel_ns(costs, [(100, 0)], [(5, 50)], 6) == 7


def test_more_work_takes_longer() -> None:
    c = COSTS["dense"]
    base = c.explain([(512, 1024)], [(32, 1024)]).total_us
    assert c.explain([(512, 4096)], [(32, 1024)]).total_us > base, "past KV costs"
    assert c.explain([(1024, 1024)], [(32, 1024)]).total_us > base, "new tokens cost"
    assert c.explain([(512, 1024)], [(32, 2048)]).total_us > base, "KV to read costs"
    assert c.explain([(512, 1024)], [(64, 1024)]).total_us > base, "sequences cost"


def test_a_step_reads_the_weights_at_least_once() -> None:
    # 13.9 GB of layer weights at 3.35 TB/s: no decode step of 8B on an H100 can take less than 4.1 ms.
    parts = COSTS["dense"].explain([], [(1, 1)])
    assert 4100 < parts.gemm_us < 8000
    assert parts.allreduce_us == 0
    assert parts.layers_us == pytest.approx(parts.gemm_us + parts.decode_attention_us)


def test_a_prefill_cannot_beat_the_peak() -> None:
    # 2 * 6.98e9 weights * 8192 tokens at 989 TFLOP/s dense.
    assert COSTS["dense"].explain([(8192, 0)], []).gemm_us > 2 * 6.98e9 * 8192 / 989.4e12 * 1e6


def test_tables_go_on_linearly_beyond_their_end() -> None:
    c = COSTS["dense"]
    a, b, d = (c.explain([(m, 0)], []).gemm_us for m in (16384, 20480, 24576))
    assert d - b == pytest.approx(b - a, rel=1e-6)
    assert (b - a) / a == pytest.approx(0.25, abs=0.06)


def test_sliding_windows_cap_attention() -> None:
    c = COSTS["windows"]
    assert c.coef[sk.C_WINDOW_SHARE] == 0.5
    full = dataclasses.replace(c, coef=c.coef.copy())
    full.coef[sk.C_WINDOW_SHARE] = 0.0
    assert c.explain([], [(64, 8192)]).decode_attention_us < 0.62 * full.explain([], [(64, 8192)]).decode_attention_us
    assert c.explain([], [(64, 64)]).decode_attention_us == pytest.approx(
        full.explain([], [(64, 64)]).decode_attention_us
    )


def test_experts_read_only_what_is_touched() -> None:
    c = hardware("qwen3-30b-a3b").step_costs("vllm")
    one, many = c.explain([], [(1, 1)]).gemm_us, c.explain([], [(256, 1)]).gemm_us
    everything = 28.99e9 * 2 / 3.35e12 * 1e6  # routed experts' bytes at the datasheet's bandwidth
    assert one < 0.3 * everything
    assert many > everything


def test_fp8_needs_a_gpu_with_fp8_units() -> None:
    with pytest.raises(NotModelledError, match="no FP8 units"):
        hardware(gpu="a100-sxm-80g", dtype="fp8").step_costs("vllm")


def test_fp8_is_faster_and_tp_splits() -> None:
    bf16 = COSTS["dense"].explain([(4096, 0)], []).gemm_us
    assert hardware(dtype="fp8").step_costs("vllm").explain([(4096, 0)], []).gemm_us < 0.75 * bf16
    tp4 = hardware(tp=4).step_costs("vllm").explain([(4096, 0)], [])
    assert tp4.gemm_us < 0.4 * bf16
    assert tp4.allreduce_us > 0


def test_heads_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(NotModelledError, match="cannot be split"):
        hardware("qwen2.5-7b", tp=8)
