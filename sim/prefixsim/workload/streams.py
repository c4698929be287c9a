"""Named random streams and sampling: each part of a workload has its own stream, so adding one part changes no other."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from prefixsim.scenario.distribution import Distribution
from prefixsim.workload.table import I64

_NORMAL_95 = 1.6448536269514722


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream called `name` of a seed."""
    sequence = np.random.SeedSequence(seed & (1 << 64) - 1, spawn_key=(zlib.crc32(name.encode()),))
    return np.random.Generator(np.random.PCG64(sequence))


def sample(d: Distribution, n: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """n draws, float64 (n,), clipped to the distribution's bounds and to >= 0."""
    kind = d.kind
    if kind == "constant":
        out = np.full(n, float(d.constant or 0))
    elif d.uniform is not None:
        out = rng.uniform(d.uniform.low, d.uniform.high, n)
    elif d.normal is not None:
        out = rng.normal(d.normal.mean, d.normal.std, n)
    elif d.lognormal is not None:
        log = d.lognormal
        if log.p95 is not None and log.median is not None:
            sigma = np.log(log.p95 / log.median) / _NORMAL_95
        else:
            sigma = log.sigma or 0.0
        median = log.median if log.median is not None else (log.mean or 1.0) * np.exp(-sigma * sigma / 2)
        out = median * np.exp(sigma * rng.standard_normal(n))
    elif d.exponential is not None:
        out = rng.exponential(d.exponential.mean, n)
    elif d.geometric is not None:
        out = rng.geometric(1.0 / d.geometric.mean, n).astype(np.float64)
    elif d.poisson is not None:
        out = rng.poisson(d.poisson.mean, n).astype(np.float64)
    elif d.choice is not None:
        weights = d.choice.weights
        p = None if weights is None else np.asarray(weights, float) / sum(weights)
        out = rng.choice(np.asarray(d.choice.values, float), size=n, p=p)
    else:
        assert d.quantiles is not None
        points = np.asarray(d.quantiles.values, float)
        out = np.interp(rng.random(n) * (len(points) - 1), np.arange(len(points)), points)
    return np.clip(out, d.min or 0.0, np.inf if d.max is None else d.max)


def sample_tokens(d: Distribution, n: int, rng: np.random.Generator, least: int = 1) -> I64:
    """n whole token counts, int64 (n,), each at least `least` and at most 10^9."""
    if d.uniform is not None:  # whole numbers, both ends alike
        whole = rng.integers(round(d.uniform.low), round(d.uniform.high), n, endpoint=True).astype(np.float64)
        out = np.clip(whole, d.min or 0.0, np.inf if d.max is None else d.max)
    else:
        out = sample(d, n, rng)
    return np.clip(np.rint(out), least, 1e9).astype(np.int64)


def zipf_choice(n_items: int, skew: float, n: int, rng: np.random.Generator) -> I64:
    """n draws of 0..n_items-1, item k with weight 1 / (k+1)^skew."""
    if n_items == 1:
        return np.zeros(n, dtype=np.int64)
    if skew == 0:
        return rng.integers(0, n_items, n, dtype=np.int64)
    weights = np.cumsum(np.arange(1, n_items + 1, dtype=np.float64) ** -skew)
    return np.searchsorted(weights, rng.random(n) * weights[-1], side="right").astype(np.int64)


def weighted_choice(weights: list[float], n: int, rng: np.random.Generator) -> I64:
    """n draws of an index by weight."""
    edges = np.cumsum(np.asarray(weights, float))
    return np.minimum(np.searchsorted(edges, rng.random(n) * edges[-1], side="right"), len(weights) - 1).astype(
        np.int64
    )
