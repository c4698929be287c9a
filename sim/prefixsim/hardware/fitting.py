"""Robust least squares on log ratios: a small Levenberg-Marquardt, so that the product needs no SciPy.

Residuals are log(predicted / observed), so that a 10 % error counts alike at 5 µs and at 50 ms; outliers beyond `scale`
are down-weighted (soft L1). Parameters are bounded and searched in a transformed space: log for open ones, logit for
bounded ones. Deterministic: no random starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Model = Callable[[F64], F64]
"""Parameters (P,) -> predictions (N,), all positive."""


MAX_ITERATIONS = 100
HELD_OUT = 0.25
"""Share of the shapes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """params (P,); loss: mean robust loss; iterations done."""

    params: F64
    loss: float
    iterations: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions: n rows, mean and percentiles of |predicted/observed - 1| and the median bias, in %."""

    n: int
    mape_pct: float
    p90_pct: float
    bias_pct: float

    @classmethod
    def of(cls, predicted: F64, observed: F64) -> Errors:
        """Errors of predictions against observations (both (N,), observed > 0)."""
        if len(observed) == 0:
            return cls(0, float("nan"), float("nan"), float("nan"))
        ratio = predicted / observed - 1.0
        size = np.abs(ratio)
        return cls(
            len(ratio),
            float(100 * size.mean()),
            float(100 * np.quantile(size, 0.9)),
            float(100 * np.median(ratio)),
        )

    def __str__(self) -> str:
        return f"n {self.n}, MAPE {self.mape_pct:.1f} %, p90 {self.p90_pct:.1f} %, bias {self.bias_pct:+.1f} %"


def fit_log(
    model: Model,
    observed: F64,
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    *,
    scale: float = 0.3,
) -> Fit:
    """Fits `model(params)` to `observed` (N,) on log ratios within bounds (P pairs, low < high; all parameters > low).

    Raises ValueError when no row is given or a start is out of bounds.
    """
    if len(observed) == 0:
        raise ValueError("no rows to fit")
    low = np.array([b[0] for b in bounds])
    high = np.array([b[1] for b in bounds])
    x = np.asarray(start, dtype=np.float64)
    if np.any(x < low) or np.any(x > high):
        raise ValueError(f"start {x} is outside the bounds")
    span = high - low
    w = 1.0 / len(observed)
    log_observed = np.log(observed)

    def to_free(p: F64) -> F64:
        u = np.clip((p - low) / span, 1e-9, 1 - 1e-9)
        return np.log(u / (1 - u))

    def to_params(z: F64) -> F64:
        return low + span / (1.0 + np.exp(-np.clip(z, -30, 30)))

    def residuals(z: F64) -> F64:
        return np.log(np.maximum(model(to_params(z)), 1e-12)) - log_observed

    def loss_of(r: F64) -> float:
        return float(np.sum(w * 2 * scale**2 * (np.sqrt(1 + (r / scale) ** 2) - 1)))

    z = to_free(x)
    r = residuals(z)
    loss, damping, done = loss_of(r), 1e-3, 0
    while done < MAX_ITERATIONS:
        done += 1
        jac = np.empty((len(r), len(z)))
        for j in range(len(z)):
            step = 1e-4 * max(1.0, abs(z[j]))
            moved = z.copy()
            moved[j] += step
            jac[:, j] = (residuals(moved) - r) / step
        robust = w / np.sqrt(1 + (r / scale) ** 2)
        normal = jac.T @ (jac * robust[:, None])
        gradient = jac.T @ (robust * r)
        improved = False
        for _ in range(12):
            system = normal + damping * np.diag(np.diag(normal) + 1e-12)
            try:
                move = np.linalg.solve(system, gradient)
            except np.linalg.LinAlgError:
                damping *= 10
                continue
            trial = z - np.clip(move, -2, 2)
            r_trial = residuals(trial)
            loss_trial = loss_of(r_trial)
            if loss_trial < loss:
                gain = loss - loss_trial
                z, r, loss, improved = trial, r_trial, loss_trial, gain > 1e-9 * loss
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if not improved:
            break
    return Fit(to_params(z), loss, done)


def held_out(keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows are held out, decided by a hash of each row's key: whole shapes go one way, the same in every run."""
    order = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode()).digest())
    below = [k for k in order if hashlib.sha256(k.encode()).digest()[0] < HELD_OUT * 256]
    if len(below) < HELD_OUT * len(order) / 2:  # few keys and bad luck: then the lowest hashes, at least one
        below = order[: max(1, round(HELD_OUT * len(order)))]
    chosen = set(below)
    return np.array([k in chosen for k in keys], dtype=np.bool_)
