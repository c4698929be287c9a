"""Step time of one engine iteration, compiled. All times in µs inside, int64 ns out. Coefficients come from
`hardware.costs.step_costs`; the formula is that of docs/hardware.md. Twin: `hardware.steptime.StepCosts.explain`.

The caller adds up the batch as it schedules: for every prefill item `prefill_item`, for every decode its KV length.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

from prefixsim.jit import lean_kernel

# Indices into the float64 coefficient vector.
(
    C_CLOCK_STEPS,  # > 0: every step lasts this many ns whatever the batch (clock: steps)
    C_LAYERS,
    C_PF_T0_US,
    C_PF_TILE_US,
    C_PF_US_PER_UNIT,  # one tile row block times one KV token, on one SM
    C_PF_LONGEST,  # share of the slowest tile that is not hidden behind the others
    C_PF_GROUP,  # query heads per KV head on this GPU
    C_PF_KV_HEADS,  # KV heads on this GPU, as prefill computes them
    C_SMS,
    C_DEC_T0_US,
    C_DEC_CTA_US,  # per sequence and KV head
    C_DEC_KV_HEADS,  # KV heads on this GPU, as decode reads them
    C_DEC_RAMP,  # (sequences x KV heads) at which half the bandwidth is reached
    C_DEC_US_PER_KV_TOKEN,  # KV bytes of one token and layer / achieved bandwidth
    C_MIXED_PENALTY,
    C_WINDOW,  # tokens seen by sliding-window layers; 0: none
    C_WINDOW_SHARE,  # their share of all layers
    C_ENGINE_STEP_US,
    C_ENGINE_PER_LAYER_US,
    C_ENGINE_PER_SEQ_US,
    C_ENGINE_PER_TOKEN_US,  # norms, activations, copies of all layers
    N_COEF,
) = range(22)
TILE_ROWS = 128
HALF_BLOCK = 32.0
"""Mean of the masked part of a diagonal tile, tokens."""


@lean_kernel
def prefill_item(coef, q, past):
    """Attention work of one request's chunk: q new tokens after `past` cached ones, one layer.

    Returns (work_us summed over SMs, longest_us of its slowest tile).
    """
    tiles = math.ceil(q * coef[C_PF_GROUP] / TILE_ROWS) * coef[C_PF_KV_HEADS]
    per_kv = coef[C_PF_US_PER_UNIT]
    mean_kv = past + 0.5 * q
    most_kv = float(past + q)
    share = coef[C_WINDOW_SHARE]
    if share > 0.0:
        mean_kv = (1.0 - share) * mean_kv + share * window_mean(coef[C_WINDOW], q, past)
        most_kv = (1.0 - share) * most_kv + share * min(most_kv, coef[C_WINDOW])
    work = tiles * (coef[C_PF_TILE_US] + per_kv * (mean_kv + HALF_BLOCK))
    longest = coef[C_PF_TILE_US] + per_kv * most_kv
    return work, longest


@lean_kernel
def window_mean(window, q, past):
    """Mean over q new tokens after `past` of the KV tokens each sees through a sliding window."""
    if past + q <= window:
        return past + 0.5 * q
    if past >= window:
        return window
    rising = window - past
    return (rising * 0.5 * (past + window) + (q - rising) * window) / q


@lean_kernel
def step_ns(coef, gemm_us, lm_head_us, tokens, n_prefill, pf_work, pf_longest, n_decode, kv_tokens, n_sampled):
    """Duration of one step in ns (int64, at least 1).

    coef: float64 (N_COEF,). gemm_us: float64, GEMMs and all-reduces of one layer by number of tokens in the step
    (continued linearly beyond the table). lm_head_us: float64, by number of sampled sequences, same rule.
    tokens: all tokens of the step; n_prefill / pf_work / pf_longest: number of prefill items, sum of their work, maximum of
    their longest tile; n_decode: decoding sequences; kv_tokens: sum of their KV lengths; n_sampled: sequences that sample.
    """
    if coef[C_CLOCK_STEPS] > 0.0:
        return int(coef[C_CLOCK_STEPS])
    layer = table_us(gemm_us, tokens)
    if n_prefill > 0:
        layer += coef[C_PF_T0_US] + pf_work / coef[C_SMS] + coef[C_PF_LONGEST] * pf_longest
    if n_decode > 0:
        decode = decode_us(coef, n_decode, kv_tokens)
        if n_prefill > 0:
            layer += decode * coef[C_MIXED_PENALTY]
        else:
            layer += coef[C_DEC_T0_US] + decode
    total = coef[C_LAYERS] * (layer + coef[C_ENGINE_PER_LAYER_US]) + coef[C_ENGINE_STEP_US]
    total += coef[C_ENGINE_PER_SEQ_US] * (n_prefill + n_decode) + coef[C_ENGINE_PER_TOKEN_US] * tokens
    if n_sampled > 0:
        total += table_us(lm_head_us, n_sampled)
    ns = round(total * 1000.0)
    return ns if ns > 0 else 1


@lean_kernel
def decode_us(coef, n_decode, kv_tokens):
    """Decode attention of one layer without its fixed part: per-head work and KV bytes, overlapped (root of squares)."""
    share = coef[C_WINDOW_SHARE]
    kv = float(kv_tokens)
    if share > 0.0:
        kv = (1.0 - share) * kv + share * min(kv, n_decode * coef[C_WINDOW])
    heads = n_decode * coef[C_DEC_KV_HEADS]
    per_head = coef[C_DEC_CTA_US] * heads / coef[C_SMS]
    reading = kv * coef[C_DEC_US_PER_KV_TOKEN] * (1.0 + coef[C_DEC_RAMP] / heads)
    return math.sqrt(per_head * per_head + reading * reading)


@lean_kernel
def table_us(table, m):
    """Value of a table indexed by m, continued linearly beyond its end."""
    last = table.shape[0] - 1
    if m <= last:
        return table[m]
    return table[last] + (m - last) * (table[last] - table[last - 1])
