"""Random quantities in a scenario: a plain number, or one named distribution with optional bounds."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from prefixsim.scenario.base import Strict


class Uniform(Strict):
    """Uniform between `low` and `high`, both included for token counts."""

    low: float = Field(ge=0)
    """Smallest value."""
    high: float = Field(ge=0)
    """Largest value."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high:g}) is below low ({self.low:g})")
        return self


class Normal(Strict):
    """Normal, cut at 0 (or at `min`)."""

    mean: float = Field(ge=0)
    """Mean before clipping."""
    std: float = Field(ge=0)
    """Standard deviation."""


class LogNormal(Strict):
    """Log-normal by its median and 95th percentile, or by median and sigma (of the logarithm), or by mean and sigma."""

    median: float | None = Field(None, gt=0)
    """Half of the values are below."""
    p95: float | None = Field(None, gt=0)
    """95 % of the values are below."""
    mean: float | None = Field(None, gt=0)
    """Arithmetic mean."""
    sigma: float | None = Field(None, ge=0, le=10)
    """Standard deviation of the logarithm."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = {k for k in ("median", "p95", "mean", "sigma") if getattr(self, k) is not None}
        if given not in ({"median", "p95"}, {"median", "sigma"}, {"mean", "sigma"}):
            raise ValueError("give median and p95, or median and sigma, or mean and sigma")
        if self.p95 is not None and self.median is not None and self.p95 < self.median:
            raise ValueError(f"p95 ({self.p95:g}) is below the median ({self.median:g})")
        return self


class Mean(Strict):
    """A distribution with one parameter, its mean."""

    mean: float = Field(gt=0)
    """The mean."""


class Choice(Strict):
    """One of `values`, with `weights` (default: all alike)."""

    values: list[float] = Field(min_length=1, max_length=100_000)
    """One of these is drawn."""
    weights: list[float] | None = None
    """How often each; default: all alike."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(v < 0 for v in self.values):
            raise ValueError("values must not be negative")
        if self.weights is not None:
            if len(self.weights) != len(self.values):
                raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values")
            if any(w < 0 for w in self.weights) or sum(self.weights) <= 0:
                raise ValueError("weights must not be negative and not all 0")
        return self


class Quantiles(Strict):
    """Piecewise linear between evenly spaced quantiles (first = minimum, last = maximum): what `trace fit` writes."""

    values: list[float] = Field(min_length=2, max_length=10_000)
    """Ascending, evenly spaced in probability."""

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        if any(b < a for a, b in zip(self.values, self.values[1:], strict=False)) or self.values[0] < 0:
            raise ValueError("quantiles must be non-negative and in ascending order")
        return self


class Distribution(Strict):
    """A number, or exactly one of the distributions below; `min` and `max` clip it.

    Token counts are rounded to whole tokens.

    Example:
        output_tokens: {lognormal: {median: 180, p95: 700}, max: 2048}
    """

    constant: float | None = Field(None, ge=0)
    """Always this: what a plain number stands for."""
    uniform: Uniform | None = None
    """All values alike between two ends."""
    normal: Normal | None = None
    """Bell curve."""
    lognormal: LogNormal | None = None
    """Lengths and pauses of people: most short, few very long."""
    exponential: Mean | None = None
    """Gaps of a Poisson process."""
    geometric: Mean | None = None
    """Number of trials up to the first success: 1, 2, 3, ... with this mean (at least 1)."""
    poisson: Mean | None = None
    """Counts of rare things."""
    choice: Choice | None = None
    """A few values, weighted."""
    quantiles: Quantiles | None = None
    """Measured quantiles."""
    min: float | None = Field(None, ge=0)
    """Smaller values become this."""
    max: float | None = Field(None, ge=0)
    """Larger values become this."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"constant": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [k for k in KINDS if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give a number or exactly one of {', '.join(KINDS)}" + (f"; found {given}" if given else "")
            )
        if self.min is not None and self.max is not None and self.max < self.min:
            raise ValueError(f"max ({self.max:g}) is below min ({self.min:g})")
        if self.geometric is not None and self.geometric.mean < 1:
            raise ValueError("a geometric mean is at least 1")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "number", "minimum": 0}, dict(schema)]}

    @property
    def kind(self) -> str:
        """Which one it is."""
        return next(k for k in KINDS if getattr(self, k) is not None)


KINDS = ("constant", "uniform", "normal", "lognormal", "exponential", "geometric", "poisson", "choice", "quantiles")


def constant(value: float) -> Distribution:
    """The distribution that is always `value`."""
    return Distribution(constant=value)
