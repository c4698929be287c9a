"""From profiles to the coefficients and tables that the step kernel reads."""

from __future__ import annotations

import numpy as np

from prefixsim.errors import NotModelledError
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.gemm import F64, Chip, GemmNumbers, dtype_bytes, gemm_us
from prefixsim.hardware.models import ModelProfile
from prefixsim.hardware.profiles import AllReduceSize, EngineOverhead, GpuProfile
from prefixsim.hardware.steptime import HostCosts, StepCosts

TABLE_TOKENS = 16384
TABLE_SEQS = 2048
MOE_TILE_ROWS = 16.0
MIB = float(1 << 20)
Shape = tuple[str, float, float]


def chip(gpu: GpuProfile, dtype: str) -> Chip:
    """Peaks of a GPU for GEMMs of a weights dtype. Raises NotModelledError where the profile has no FP8 peak."""
    device = gpu.device
    peak = device.peak_dense_bf16_tflops
    if dtype in ("fp8", "fp8_block"):
        if device.peak_dense_fp8_tflops is None:
            raise NotModelledError(f"{gpu.name} has no FP8 units: {dtype} weights are not modelled on it")
        peak = device.peak_dense_fp8_tflops
    return Chip(peak.value * 1e12, device.mem_bandwidth_gb_per_s.value * 1e9, device.sm_count.value)


def gemm_numbers(gpu: GpuProfile, dtype: str) -> GemmNumbers:
    """The GEMM fit for a weights dtype. Raises NotModelledError where the profile has none."""
    if dtype in ("bfloat16", "mxfp4"):
        return GemmNumbers.of(gpu.gemm_bf16)
    chip(gpu, dtype)  # refuses a GPU without FP8 units
    fit = {"fp8": gpu.gemm_fp8, "fp8_block": gpu.gemm_fp8_block}.get(dtype)
    if fit is None:
        raise NotModelledError(f"{gpu.name}: the profile has no GEMM times for {dtype} weights")
    return GemmNumbers.of(fit)


def attention_shapes(model: ModelProfile, tp: int) -> list[Shape]:
    """(name, n, k) of one layer's attention GEMMs on one GPU."""
    h, hd = model.hidden_size, model.head_dim
    heads = model.attention_heads // tp
    if model.mla:
        a = model.mla
        qk = a.qk_nope_head_dim + a.qk_rope_head_dim
        query = (
            [("q_a", a.q_lora_rank, h), ("q_b", heads * qk, a.q_lora_rank)] if a.q_lora_rank else [("q", heads * qk, h)]
        )
        return [
            *query,
            ("kv_a", a.kv_lora_rank + a.qk_rope_head_dim, h),
            ("kv_b", heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank),
            ("o", h, heads * a.v_head_dim),
        ]
    kv = max(1, model.kv_heads // tp)
    return [("qkv", (heads + 2 * kv) * hd, h), ("o", h, heads * hd)]


def mlp_shapes(model: ModelProfile, tp: int, width: int) -> list[Shape]:
    """(name, n, k) of a gated MLP's GEMMs on one GPU; width: intermediate size before tensor parallelism."""
    inter = -(-width // tp)
    return [("gate_up", 2 * inter, model.hidden_size), ("down", model.hidden_size, inter)]


def experts_us(gpu: GpuProfile, model: ModelProfile, dtype: str, tp: int, m: F64) -> F64:
    """Routed experts of one layer in µs: weights of the experts touched, tokens spread evenly over them.

    m tokens touch E (1 - (1 - k/E)^m) of E experts (uniform routing); each gets m k / touched tokens, padded to whole
    tiles. Two grouped GEMMs at the dense GEMM's efficiencies: an assumption, no table of grouped GEMMs is fitted.
    """
    moe = model.moe
    assert moe is not None
    g, c = gemm_numbers(gpu, dtype), chip(gpu, dtype)
    weight, act = dtype_bytes(dtype)
    touched = np.maximum(moe.experts * (1 - (1 - moe.experts_per_token / moe.experts) ** m), 1.0)
    rows = touched * np.ceil(m * moe.experts_per_token / touched / MOE_TILE_ROWS) * MOE_TILE_ROWS
    total = np.zeros_like(m)
    for _, n, k in mlp_shapes(model, tp, moe.expert_intermediate_size):
        compute = 2.0 * rows * n * k / (c.flops * g.eff_flops) * 1e6
        moved = weight * touched * n * k + m * moe.experts_per_token * (act * k + 2.0 * n)
        memory = moved / (c.bandwidth * g.eff_bw) * 1e6
        total += g.launch_us + np.hypot(compute, memory)
    return total


def layer_gemm_us(gpu: GpuProfile, model: ModelProfile, dtype: str, tp: int, m: F64) -> F64:
    """All GEMMs of one layer in µs (mean over layers where some are dense, some have experts), for m >= 1 (N,)."""

    def dense(shapes: list[Shape], kind: str) -> F64:
        g, c = gemm_numbers(gpu, kind), chip(gpu, kind)
        weight, act = dtype_bytes(kind)
        total = np.zeros_like(m)
        for _, n, k in shapes:
            total += gemm_us(g, c, m, n, k, weight_bytes=weight, act_bytes=act)
        return total

    plain = "bfloat16" if dtype == "mxfp4" else dtype
    total = dense(attention_shapes(model, tp), plain)
    moe = model.moe
    share = (model.layers - moe.dense_layers) / model.layers if moe else 0.0
    if share < 1.0:
        total = total + (1 - share) * dense(mlp_shapes(model, tp, model.intermediate_size), plain)
    if moe:
        sparse = experts_us(gpu, model, dtype, tp, m) + dense([("router", moe.experts, model.hidden_size)], "bfloat16")
        if moe.shared_intermediate_size:
            sparse += dense(mlp_shapes(model, tp, moe.shared_intermediate_size), plain)
        total = total + share * sparse
    return total


def allreduce_us(gpu: GpuProfile, tp: int, size_bytes: F64) -> F64:
    """One all-reduce over `tp` GPUs in µs; TP 1: zeros. Raises NotModelledError where the profile has no such numbers."""
    if tp == 1:
        return np.zeros_like(size_bytes)
    fit: AllReduceSize | None = getattr(gpu.allreduce, f"gpus{tp}", None) if gpu.allreduce else None
    if fit is None:
        raise NotModelledError(f"{gpu.name}: the profile has no all-reduce times over {tp} GPUs")
    mib = size_bytes / MIB
    return np.minimum(
        fit.small_us.value + fit.small_us_per_mib.value * mib, fit.large_us.value + fit.large_us_per_mib.value * mib
    )


def overhead(gpu: GpuProfile, family: str) -> EngineOverhead:
    """An engine's step overheads. Raises NotModelledError for an engine without."""
    found: EngineOverhead | None = getattr(gpu, f"engine_{family}", None)
    if found is None:
        raise NotModelledError(f"{gpu.name}: no step overheads for engine {family!r}")
    return found


def per_token_us(gpu: GpuProfile, model: ModelProfile, passes: float) -> float:
    """Elementwise work of one token in all layers, µs: `passes` times the hidden state through the GPU's memory."""
    return passes * model.layers * model.hidden_size * 2.0 / (gpu.device.mem_bandwidth_gb_per_s.value * 1e9) * 1e6


def step_costs(
    gpu: GpuProfile, model: ModelProfile, *, dtype: str, kv_bytes: float, tp: int, family: str, host: HostCosts
) -> StepCosts:
    """Coefficients and tables of one replica."""
    if dtype == "float32":
        raise NotModelledError(f"{gpu.name}: step times of float32 weights are not modelled (KV capacity is)")
    device, prefill, decode = gpu.device, gpu.prefill_attention, gpu.decode_attention
    sms, bw = device.sm_count.value, device.mem_bandwidth_gb_per_s.value * 1e9
    peak = device.peak_dense_bf16_tflops.value * 1e12
    heads, kv_heads = model.attention_heads // tp, max(1, model.kv_heads // tp)
    coef = np.zeros(sk.N_COEF, dtype=np.float64)
    coef[sk.C_LAYERS], coef[sk.C_SMS] = model.layers, sms
    coef[sk.C_PF_T0_US], coef[sk.C_PF_TILE_US] = prefill.t0_us.value, prefill.tile_us.value
    coef[sk.C_PF_LONGEST] = prefill.longest_share.value
    widths = 2.0 * model.head_dim
    reading = model.kv_elements_per_gpu(tp) * kv_bytes / (bw * decode.eff_bw_ratio.value) * 1e6
    coef[sk.C_PF_GROUP], coef[sk.C_PF_KV_HEADS], coef[sk.C_DEC_KV_HEADS] = heads / kv_heads, kv_heads, kv_heads
    if model.mla:
        a = model.mla
        widths = a.qk_nope_head_dim + a.qk_rope_head_dim + a.v_head_dim
        coef[sk.C_PF_GROUP], coef[sk.C_PF_KV_HEADS], coef[sk.C_DEC_KV_HEADS] = 1.0, heads, 1.0
        absorbed = 2.0 * heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim)
        reading = max(reading, absorbed / (peak * prefill.eff_flops_ratio.value) * 1e6)
    coef[sk.C_PF_US_PER_UNIT] = 2.0 * widths * sk.TILE_ROWS / (peak * prefill.eff_flops_ratio.value / sms) * 1e6
    coef[sk.C_DEC_T0_US], coef[sk.C_DEC_CTA_US] = decode.t0_us.value, decode.cta_us.value
    coef[sk.C_DEC_RAMP], coef[sk.C_DEC_US_PER_KV_TOKEN] = decode.ramp_heads.value, reading
    coef[sk.C_MIXED_PENALTY] = gpu.mixed_decode_penalty_ratio.value
    if model.sliding_window and model.window_layers:
        coef[sk.C_WINDOW], coef[sk.C_WINDOW_SHARE] = model.sliding_window, model.window_layers / model.layers
    engine = overhead(gpu, family)
    coef[sk.C_ENGINE_STEP_US] = engine.step_us.value
    coef[sk.C_ENGINE_PER_LAYER_US] = engine.per_layer_us.value
    coef[sk.C_ENGINE_PER_SEQ_US] = engine.per_seq_us.value
    coef[sk.C_ENGINE_PER_TOKEN_US] = per_token_us(gpu, model, engine.elementwise_passes.value)
    m = np.arange(1, TABLE_TOKENS + 1, dtype=np.float64)
    reduce = 2.0 * allreduce_us(gpu, tp, 2.0 * model.hidden_size * m)
    ratio = engine.kernel_time_ratio.value if engine.kernel_time_ratio else 1.0
    reduce *= ratio
    layer = layer_gemm_us(gpu, model, dtype, tp, m) * ratio + reduce
    seqs = np.arange(1, TABLE_SEQS + 1, dtype=np.float64)
    vocab = -(-model.vocab_size // tp)
    lm_head = gemm_us(
        GemmNumbers.of(gpu.gemm_bf16),
        chip(gpu, "bfloat16"),
        seqs,
        vocab,
        model.hidden_size,
        weight_bytes=2.0,
        act_bytes=2.0,
    )
    zero = np.zeros(1)
    return StepCosts(
        coef=coef,
        gemm_us=_smooth(np.concatenate([zero, layer])),
        lm_head_us=np.concatenate([zero, lm_head]),
        host=host,
        allreduce_us=np.concatenate([zero, reduce]),
    )


def _smooth(table: F64) -> F64:
    """The table with its last step set to the slope of its last quarter: beyond it, that slope goes on, not one jump."""
    last = len(table) - 1
    quarter = last - last // 4
    table[last] = table[last - 1] + (table[last - 1] - table[quarter]) / (last - 1 - quarter)
    return table
