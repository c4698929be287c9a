"""What a step costs: the coefficient vector and tables that `step_kernels.step_ns` reads, and its readable twin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.step_kernels import C_CLOCK_STEPS, N_COEF

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Costs on the scheduler's CPU, ns (float). hash_ns_per_token: block hashing at request creation;
    the rest: radix-tree work per node touched, on the scheduler's one thread. tree_node_bytes: memory of one node."""

    hash_ns_per_token: float = 0.0
    match_ns_per_node: float = 0.0
    insert_ns_per_node: float = 0.0
    split_ns_per_node: float = 0.0
    evict_ns_per_node: float = 0.0
    tree_node_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class StepParts:
    """One step in µs, by part; `layers_us`: all layers without lm_head and engine overhead."""

    gemm_us: float
    prefill_attention_us: float
    decode_attention_us: float
    allreduce_us: float
    lm_head_us: float
    engine_us: float

    @property
    def layers_us(self) -> float:
        """GEMMs, attention and all-reduces of all layers."""
        return self.gemm_us + self.prefill_attention_us + self.decode_attention_us + self.allreduce_us

    @property
    def total_us(self) -> float:
        """The whole step."""
        return self.layers_us + self.lm_head_us + self.engine_us


@dataclass(frozen=True, slots=True)
class StepCosts:
    """coef: float64 (N_COEF,); gemm_us: float64 (M,) GEMMs *and* all-reduces of one layer by tokens in the step;
    lm_head_us: float64 (S,) by sampled sequences; allreduce_us: float64 (M,) the all-reduces inside gemm_us, for reports."""

    coef: F64
    gemm_us: F64
    lm_head_us: F64
    host: HostCosts = HostCosts()
    allreduce_us: F64 = field(default_factory=lambda: np.zeros(2))

    @classmethod
    def steps(cls, unit_ns: int = 1) -> StepCosts:
        """`clock: steps`: every step lasts `unit_ns` ns, the host costs nothing. How golden cases run."""
        coef = np.zeros(N_COEF, dtype=np.float64)
        coef[C_CLOCK_STEPS] = unit_ns
        return cls(coef=coef, gemm_us=np.zeros(2), lm_head_us=np.zeros(2))

    def explain(self, prefill: Sequence[tuple[int, int]], decode: Sequence[tuple[int, int]]) -> StepParts:
        """One step in plain Python: the formula of docs/hardware.md. The sum is what `step_ns` returns, unrounded.

        prefill: (new tokens, tokens already cached) of each request; decode: (sequences, KV tokens of each, the new one
        included).
        """
        c = self.coef
        layers, sms = c[sk.C_LAYERS], c[sk.C_SMS]
        n_decode = sum(b for b, _ in decode)
        tokens = sum(q for q, _ in prefill) + n_decode
        prefill_us = decode_us = 0.0
        if prefill:
            work = longest = 0.0
            for q, past in prefill:
                tiles = math.ceil(q * c[sk.C_PF_GROUP] / sk.TILE_ROWS) * c[sk.C_PF_KV_HEADS]
                mean_kv, most_kv = past + q / 2, float(past + q)
                if c[sk.C_WINDOW_SHARE] > 0:
                    mean_kv += c[sk.C_WINDOW_SHARE] * (_window_mean(c[sk.C_WINDOW], q, past) - mean_kv)
                    most_kv += c[sk.C_WINDOW_SHARE] * (min(most_kv, c[sk.C_WINDOW]) - most_kv)
                unit = c[sk.C_PF_US_PER_UNIT]
                work += tiles * (c[sk.C_PF_TILE_US] + unit * (mean_kv + sk.HALF_BLOCK))
                longest = max(longest, c[sk.C_PF_TILE_US] + unit * most_kv)
            prefill_us = c[sk.C_PF_T0_US] + work / sms + c[sk.C_PF_LONGEST] * longest
        if n_decode:
            kv = float(sum(b * s for b, s in decode))
            kv += c[sk.C_WINDOW_SHARE] * (min(kv, n_decode * c[sk.C_WINDOW]) - kv)
            heads = n_decode * c[sk.C_DEC_KV_HEADS]
            reading = kv * c[sk.C_DEC_US_PER_KV_TOKEN] * (1 + c[sk.C_DEC_RAMP] / heads)
            decode_us = math.hypot(c[sk.C_DEC_CTA_US] * heads / sms, reading)
            decode_us = decode_us * c[sk.C_MIXED_PENALTY] if prefill else decode_us + c[sk.C_DEC_T0_US]
        sequences = len(prefill) + n_decode
        allreduce = _table(self.allreduce_us, tokens)
        return StepParts(
            gemm_us=float(layers * (_table(self.gemm_us, tokens) - allreduce)),
            prefill_attention_us=float(layers * prefill_us),
            decode_attention_us=float(layers * decode_us),
            allreduce_us=float(layers * allreduce),
            lm_head_us=float(_table(self.lm_head_us, sequences)) if sequences else 0.0,
            engine_us=float(
                c[sk.C_ENGINE_STEP_US]
                + layers * c[sk.C_ENGINE_PER_LAYER_US]
                + sequences * c[sk.C_ENGINE_PER_SEQ_US]
                + tokens * c[sk.C_ENGINE_PER_TOKEN_US]
            ),
        )


def _window_mean(window: float, q: int, past: int) -> float:
    """Mean KV tokens that each of q tokens after `past` sees: min(past + i, window) for the i-th, i in (0, q)."""
    inside = min(q, max(0.0, window - past))
    return float((inside * (past + inside / 2) + (q - inside) * window) / q)


def _table(table: F64, m: int) -> float:
    """Value of a table at m, continued linearly beyond its end."""
    last = len(table) - 1
    return float(table[m] if m <= last else table[last] + (m - last) * (table[last] - table[last - 1]))
