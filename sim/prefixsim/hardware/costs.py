"""From profiles to the coefficients and tables that the step kernel reads."""

from __future__ import annotations

import numpy as np

from prefixsim.errors import NotModelledError
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.models import ModelProfile
from prefixsim.hardware.profiles import Gemm, GpuProfile
from prefixsim.hardware.steptime import F64, HostCosts, StepCosts

TABLE_TOKENS = 16384
TABLE_SEQS = 2048
TILE_ROWS = 128


def gemm_us(fit: Gemm, peak_flops: float, bw: float, m: F64, n: float, k: float, width: float, out: float = 2.0) -> F64:
    """Time of one (m, k) x (k, n) GEMM in µs, for an array of m. width: bytes of a weight or input element."""
    compute = 2.0 * m * n * k / (peak_flops * fit.eff_flops_ratio.value) * 1e6
    memory = (width * (n * k + m * k) + out * m * n) / (bw * fit.eff_bw_ratio.value) * 1e6
    p = fit.p_exponent.value
    return fit.launch_us.value + (compute**p + memory**p) ** (1.0 / p)


def gemm_fit(gpu: GpuProfile, dtype: str) -> tuple[Gemm, float, float]:
    """(fit, peak FLOP/s, bytes an element) for a weights dtype. Raises NotModelledError where the profile has none."""
    if dtype in ("bfloat16", "mxfp4"):
        return gpu.gemm_bf16, gpu.device.peak_dense_bf16_tflops.value * 1e12, 2.0
    fit = gpu.gemm_fp8 if dtype == "fp8" else gpu.gemm_fp8_block
    peak = gpu.device.peak_dense_fp8_tflops
    if dtype not in ("fp8", "fp8_block") or fit is None or peak is None:
        raise NotModelledError(f"{gpu.name}: the profile has no GEMM times for {dtype} weights")
    return fit, peak.value * 1e12, 1.0


def linear_shapes(model: ModelProfile, tp: int) -> list[tuple[str, int, int]]:
    """(name, n, k) of one dense layer's GEMMs on one GPU."""
    h, hd = model.hidden_size, model.head_dim
    q = model.attention_heads // tp * hd
    kv = max(1, model.kv_heads // tp) * hd
    inter = -(-model.intermediate_size // tp)
    return [("qkv", q + 2 * kv, h), ("o", h, q), ("gate_up", 2 * inter, h), ("down", h, inter)]


def layer_gemm_us(gpu: GpuProfile, model: ModelProfile, dtype: str, tp: int, m: F64) -> F64:
    """All GEMMs of one layer in µs, for an array of m."""
    fit, peak, width = gemm_fit(gpu, dtype)
    bw = gpu.device.mem_bandwidth_gb_per_s.value * 1e9
    total = np.zeros_like(m)
    for _, n, k in linear_shapes(model, tp):
        total += gemm_us(fit, peak, bw, m, n, k, width)
    return total


def step_costs(
    gpu: GpuProfile, model: ModelProfile, *, dtype: str, kv_bytes: float, tp: int, family: str, host: HostCosts
) -> StepCosts:
    """Coefficients and tables of one replica."""
    device = gpu.device
    sms = device.sm_count.value
    bw = device.mem_bandwidth_gb_per_s.value * 1e9
    peak = device.peak_dense_bf16_tflops.value * 1e12
    kv_heads = max(1, model.kv_heads // tp)
    coef = np.zeros(sk.N_COEF, dtype=np.float64)
    coef[sk.C_LAYERS] = model.layers
    prefill, decode = gpu.prefill_attention, gpu.decode_attention
    rate = peak * prefill.eff_flops_ratio.value / sms
    coef[sk.C_PF_T0_US] = prefill.t0_us.value
    coef[sk.C_PF_TILE_US] = prefill.tile_us.value
    coef[sk.C_PF_US_PER_UNIT] = 4.0 * model.head_dim * TILE_ROWS / rate * 1e6
    coef[sk.C_PF_GROUP] = model.attention_heads // tp / kv_heads
    coef[sk.C_PF_KV_HEADS] = kv_heads
    coef[sk.C_SMS] = sms
    coef[sk.C_DEC_T0_US] = decode.t0_us.value
    coef[sk.C_DEC_CTA_US] = decode.cta_us.value
    coef[sk.C_DEC_US_PER_KV_TOKEN] = model.kv_elements_per_gpu(tp) * kv_bytes / (bw * decode.eff_bw_ratio.value) * 1e6
    coef[sk.C_MIXED_PENALTY] = gpu.mixed_decode_penalty_ratio.value
    if tp > 1:
        if gpu.allreduce is None:
            raise NotModelledError(f"{gpu.name}: the profile has no all-reduce times for tensor_parallel_size {tp}")
        ar = gpu.allreduce
        link = device.link_bandwidth_gb_per_s.value * 1e9
        coef[sk.C_AR_T0_US] = 2 * (ar.t0_us.value + ar.per_rank_us.value * tp)
        coef[sk.C_AR_US_PER_TOKEN] = (
            2 * 2 * (tp - 1) / tp * 2 * model.hidden_size / (link * ar.eff_link_ratio.value) * 1e6
        )
    engine = {"vllm": gpu.engine_vllm, "sglang": gpu.engine_sglang, "trtllm": gpu.engine_trtllm}.get(family)
    if engine is None:
        raise NotModelledError(f"{gpu.name}: no step overheads for engine {family!r}")
    coef[sk.C_ENGINE_STEP_US] = engine.step_us.value
    coef[sk.C_ENGINE_PER_LAYER_US] = engine.per_layer_us.value
    coef[sk.C_ENGINE_PER_SEQ_US] = engine.per_seq_us.value
    m = np.arange(TABLE_TOKENS + 1, dtype=np.float64)
    gemm = layer_gemm_us(gpu, model, dtype, tp, m)
    gemm[0] = 0.0
    s = np.arange(TABLE_SEQS + 1, dtype=np.float64)
    lm_head = gemm_us(gpu.gemm_bf16, peak, bw, s, -(-model.vocab_size // tp), model.hidden_size, 2.0)
    lm_head[0] = 0.0
    return StepCosts(coef=coef, gemm_us=gemm, lm_head_us=lm_head, host=host)
