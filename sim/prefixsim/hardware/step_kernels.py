"""Step time of one engine iteration, compiled. All times in µs inside, int64 ns out. Coefficients come from
`hardware.steptime.StepCosts`; the formula is that of docs/hardware.md. Twin: `hardware.steptime.StepCosts.explain`.

The caller adds up the batch as it schedules: for every prefill item `prefill_item`, for every decode its KV length.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from prefixsim.jit import kernel

# Indices into the float64 coefficient vector.
(
    C_CLOCK_STEPS,  # > 0: every step lasts this many ns whatever the batch (clock: steps)
    C_LAYERS,
    C_PF_T0_US,
    C_PF_TILE_US,
    C_PF_US_PER_UNIT,  # 4*hd*128 / (FLOP/s per SM) in µs: one tile row times one KV token
    C_PF_GROUP,  # query heads per KV head on this GPU
    C_PF_KV_HEADS,  # KV heads on this GPU
    C_SMS,
    C_DEC_T0_US,
    C_DEC_CTA_US,  # per sequence and KV head
    C_DEC_US_PER_KV_TOKEN,  # KV bytes of one token and layer / achieved bandwidth
    C_MIXED_PENALTY,
    C_AR_T0_US,  # both all-reduces of a layer, fixed part (0 at TP 1)
    C_AR_US_PER_TOKEN,
    C_ENGINE_STEP_US,
    C_ENGINE_PER_LAYER_US,
    C_ENGINE_PER_SEQ_US,
    N_COEF,
) = range(18)


@kernel
def prefill_item(coef, q, past):
    """Attention work of one request's chunk: q new tokens after `past` cached ones, one layer.

    Returns (work_us summed over SMs, longest_us of its slowest tile).
    """
    tiles = math.ceil(q * coef[C_PF_GROUP] / 128.0) * coef[C_PF_KV_HEADS]
    per_kv = coef[C_PF_US_PER_UNIT]
    work = tiles * (coef[C_PF_TILE_US] + per_kv * (past + 0.5 * q + 32.0))
    longest = coef[C_PF_TILE_US] + per_kv * (past + q)
    return work, longest


@kernel
def step_ns(coef, gemm_us, lm_head_us, tokens, n_prefill, pf_work, pf_longest, n_decode, kv_tokens, n_sampled):
    """Duration of one step in ns (int64, at least 1).

    coef: float64 (N_COEF,). gemm_us: float64, GEMM time of one layer by number of tokens in the step (index clamped to
    the last two entries' slope beyond the table). lm_head_us: float64, by number of sampled sequences, same rule.
    tokens: all tokens of the step; n_prefill / pf_work / pf_longest: number of prefill items, sum of their work, maximum of
    their longest tile; n_decode: decoding sequences; kv_tokens: sum of their KV lengths; n_sampled: sequences that sample.
    """
    if coef[C_CLOCK_STEPS] > 0.0:
        return int(coef[C_CLOCK_STEPS])
    layer = table_us(gemm_us, tokens)
    if n_prefill > 0:
        spread = pf_work / coef[C_SMS]
        layer += coef[C_PF_T0_US] + (spread if spread > pf_longest else pf_longest)
    if n_decode > 0:
        decode = (
            coef[C_DEC_CTA_US] * n_decode * coef[C_PF_KV_HEADS] / coef[C_SMS] + kv_tokens * coef[C_DEC_US_PER_KV_TOKEN]
        )
        if n_prefill > 0:
            layer += decode * coef[C_MIXED_PENALTY]
        else:
            layer += coef[C_DEC_T0_US] + decode
    layer += coef[C_AR_T0_US] + coef[C_AR_US_PER_TOKEN] * tokens
    n_seqs = n_prefill + n_decode
    total = coef[C_LAYERS] * (layer + coef[C_ENGINE_PER_LAYER_US]) + coef[C_ENGINE_STEP_US]
    total += coef[C_ENGINE_PER_SEQ_US] * n_seqs
    if n_sampled > 0:
        total += table_us(lm_head_us, n_sampled)
    ns = round(total * 1000.0)
    return ns if ns > 0 else 1


@kernel
def table_us(table, m):
    """Value of a table indexed by m, continued linearly beyond its end."""
    last = table.shape[0] - 1
    if m <= last:
        return table[m]
    return table[last] + (m - last) * (table[last] - table[last - 1])
