"""Time of one GEMM: the formula, on plain numbers (fits search over them) and on a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefixsim.hardware.profiles import Gemm

F64 = npt.NDArray[np.float64]
KNOTS_M = (1, 32, 128, 256, 1024, 4096, 16384)
TILES = ((64, 64), (64, 128), (128, 128), (128, 256))


@dataclass(frozen=True, slots=True)
class Chip:
    """What the formula needs of a GPU: FLOP/s (dense, of the dtype), bytes/s, SMs."""

    flops: float
    bandwidth: float
    sms: float


@dataclass(frozen=True, slots=True)
class GemmNumbers:
    """The numbers of `profiles.Gemm`. tiles: speed of the four tile shapes against the last. factors: by KNOTS_M."""

    launch_us: float
    eff_flops: float
    eff_bw: float
    p: float
    k_ramp: float
    wave_share: float
    tiles: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    factors: tuple[float, ...] = (1.0,) * len(KNOTS_M)
    n_ramp: float = 0.0

    @classmethod
    def of(cls, fit: Gemm) -> GemmNumbers:
        """From a profile."""
        by = fit.by_tokens
        factors = (1.0,) * len(KNOTS_M)
        if by is not None:
            factors = (
                by.m1_factor.value, by.m32_factor.value, by.m128_factor.value, 1.0,
                by.m1024_factor.value, by.m4096_factor.value, by.m16384_factor.value,
            )  # fmt: skip
        return cls(
            fit.launch_us.value,
            fit.eff_flops_ratio.value,
            fit.eff_bw_ratio.value,
            fit.p_exponent.value,
            fit.k_ramp_elements.value,
            fit.wave_share.value,
            (fit.tile_64x64_ratio.value, fit.tile_64x128_ratio.value, fit.tile_128x128_ratio.value, 1.0),
            factors,
            fit.n_ramp_elements.value if fit.n_ramp_elements else 0.0,
        )

    @classmethod
    def from_vector(cls, v: Sequence[float] | F64) -> GemmNumbers:
        """From the 6 or 16 numbers a fit searches: launch, eff_flops, eff_bw, p, k_ramp, wave_share, 3 tiles, 6 log factors, n_ramp."""
        launch, flops, bw, p, ramp, waves = (float(x) for x in v[:6])
        if len(v) <= 6:
            return cls(launch, flops, bw, p, ramp, waves)
        f = [float(x) for x in np.exp(np.asarray(v[9:15]))]
        tiles = (float(v[6]), float(v[7]), float(v[8]), 1.0)
        return cls(launch, flops, bw, p, ramp, waves, tiles, (*f[:3], 1.0, *f[3:]), float(v[15]))


def gemm_us(
    g: GemmNumbers, chip: Chip, m: F64, n: F64 | float, k: F64 | float, *, weight_bytes: float, act_bytes: float
) -> F64:
    """Time in µs of (m, k) x (k, n). m: float64 (N,) >= 1; n, k: scalars or (N,). Bytes are per element; the output has 2."""
    compute = np.full(np.shape(m), np.inf)
    for (rows, columns), speed in zip(TILES, g.tiles, strict=True):
        waves = np.ceil(m / rows) * np.ceil(n / columns) / chip.sms
        waves = (1 - g.wave_share) * waves + g.wave_share * np.ceil(waves)
        one = 2.0 * rows * columns * (k + g.k_ramp) / (chip.flops / chip.sms * g.eff_flops * speed) * 1e6
        compute = np.minimum(compute, waves * one)
    compute = compute * (1.0 + g.n_ramp / n)
    moved = weight_bytes * n * k + act_bytes * m * k + 2.0 * m * n
    memory = moved / (chip.bandwidth * g.eff_bw) * 1e6
    high, low = np.maximum(compute, memory), np.minimum(compute, memory)
    both = high * (1.0 + (low / high) ** g.p) ** (1.0 / g.p)
    return (g.launch_us + both) * factor(g, m)


def factor(g: GemmNumbers, m: F64) -> F64:
    """The correction by number of tokens."""
    if all(f == 1.0 for f in g.factors):
        return np.ones(np.shape(m))
    return np.exp(np.interp(np.log(np.maximum(m, 1.0)), np.log(KNOTS_M), np.log(g.factors)))


def dtype_bytes(dtype: str) -> tuple[float, float]:
    """(bytes of a weight, bytes of an input) as a GEMM of this weights dtype reads them."""
    return {"fp8": (1.0, 1.0), "fp8_block": (1.0, 1.0), "mxfp4": (0.53125, 2.0)}.get(dtype, (2.0, 2.0))
