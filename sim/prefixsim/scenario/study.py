"""Study files: a base scenario, axes, repeats (`sweep`); goals and limits (`plan`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from prefixsim.scenario.base import Strict
from prefixsim.scenario.models import MAX_REPLICAS

MOST = 1e15
"""No axis goes beyond it."""
Scalar = bool | int | float | str | None
Value = Scalar | list[Any] | dict[str, Any]


class Range(Strict):
    """start, start + step, ... up to and including stop."""

    start: float | int = Field(ge=-MOST, le=MOST)
    """First value."""
    stop: float | int = Field(ge=-MOST, le=MOST)
    """Last value, included."""
    step: float | int = Field(ge=1 / MOST)
    """Distance."""

    def values(self) -> list[Any]:
        """The points; ints stay ints."""
        count = int((self.stop - self.start) / self.step + 1e-9) + 1
        return [self.start + i * self.step for i in range(max(count, 0))]

    def size(self) -> int:
        """Number of points, without making them."""
        return max(int((self.stop - self.start) / self.step + 1e-9) + 1, 0)


class Geometric(Strict):
    """`points` values from start to stop in equal ratios; rounded to ints when both ends are ints."""

    start: float | int = Field(ge=1 / MOST, le=MOST)
    """First value."""
    stop: float | int = Field(ge=1 / MOST, le=MOST)
    """Last value, included."""
    points: int = Field(ge=2)
    """Number of values."""

    def values(self) -> list[Any]:
        """The points."""
        ratio = (self.stop / self.start) ** (1 / (self.points - 1))
        raw = [self.start * ratio**i for i in range(self.points)]
        whole = isinstance(self.start, int) and isinstance(self.stop, int)
        return list(dict.fromkeys(round(v) for v in raw)) if whole else raw

    def size(self) -> int:
        """Number of points, without making them where they are many; equal ints count once."""
        return len(self.values()) if self.points <= 10_000 else self.points


class Axis(Strict):
    """One axis: a key of the scenario and its values. Engines may be named: `engines.vllm.block_size`.

    Example:
        axes: [{key: workload.arrivals.rate_per_s, range: {start: 2, stop: 8, step: 2}}]
    """

    key: str
    """Path in the scenario, e.g. engines.vllm.block_size."""
    values: list[Value] | None = None
    """The values, or ..."""
    range: Range | None = None
    """... evenly spaced ones, or ..."""
    geometric: Geometric | None = None
    """... ones in equal ratios."""

    @model_validator(mode="after")
    def _one_way(self) -> Axis:
        given = [n for n in ("values", "range", "geometric") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"an axis needs exactly one of values, range, geometric (found {given or 'none'})")
        return self

    def points(self) -> list[Any]:
        """The values of the axis."""
        if self.values is not None:
            return list(self.values)
        spread = self.range or self.geometric
        return spread.values() if spread else []

    def size(self) -> int:
        """Number of values, without making them."""
        if self.values is not None:
            return len(self.values)
        spread = self.range or self.geometric
        return spread.size() if spread else 0


class ZippedAxes(Strict):
    """Axes that move together: all of the same length.

    Example:
        axes:
          - zip:
              - {key: replicas, values: [2, 4]}
              - {key: workload.arrivals.rate_per_s, values: [5, 10]}
    """

    zip: list[Axis] = Field(min_length=2)
    """The k-th values of all go together."""

    @model_validator(mode="after")
    def _same_length(self) -> ZippedAxes:
        sizes = [axis.size() for axis in self.zip]
        if len(set(sizes)) > 1:
            raise ValueError(f"zipped axes have different lengths: {sizes}")
        return self


AnyAxis = Axis | ZippedAxes


class Price(Strict):
    """What one GPU costs an hour.

    Example:
        prices: {l40s: {usd_per_hour: 0.9, source: my provider, date: 2026-11-01}}
    """

    usd_per_hour: float = Field(gt=0)
    """US dollars an hour of one GPU."""
    source: str
    """Whose price."""
    date: str
    """Of when."""


class StudySpec(Strict):
    """A sweep: every point of the grid, `repeats` seeds each.

    Example:
        name: blocks
        base: quickstart
        axes: [{key: engines.vllm.block_size, values: [16, 64]}]
        columns: [vllm.hit_rate]
    """

    name: str
    """Names the results' folder."""
    description: str = ""
    """For people."""
    base: str
    """A scenario: a path relative to the study file, or the name of a shipped one."""
    set: dict[str, Value] = {}
    """Keys changed in the base before the axes are applied."""
    axes: list[AnyAxis] = Field(min_length=1)
    """The grid is their product, the last one fastest."""
    exclude: list[dict[str, Value]] = []
    """Points that have all of these values are left out."""
    repeats: int = Field(1, ge=1, le=1000)
    """Seeds a point: seed, seed + 1, ..."""
    columns: list[str] = []
    """Summary metrics shown in the table, e.g. vllm.hit_rate; default: hit rate, p99 TTFT, throughput of each engine."""
    cost: str | None = None
    """Metric on the cost side of the Pareto front."""
    latency: str | None = None
    """Metric on the latency side."""


class Limit(Strict):
    """One service-level objective on a summary metric, e.g. {metric: ttft_s.p99, at_most: 0.5}, for the planned engine."""

    metric: str
    """Of the planned engine, e.g. ttft_s.p99; or any metric of summary.json."""
    at_most: float | None = None
    """Upper bound, itself allowed."""
    at_least: float | None = None
    """Lower bound, itself allowed."""

    @model_validator(mode="after")
    def _one(self) -> Limit:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a limit needs exactly one of at_most, at_least")
        return self


class PlanSpec(Strict):
    """The highest rate a fleet sustains, or the cheapest fleet for a rate, under limits.

    Example:
        name: how-fast
        base: quickstart
        engines: [vllm]
        limits: [{metric: ttft_s.p99, at_most: 0.5}]
        window_s: 600
    """

    name: str
    """Names the results' folder."""
    description: str = ""
    """For people."""
    base: str
    """A scenario: a path relative to the study file, or the name of a shipped one."""
    set: dict[str, Value] = {}
    """Keys changed in the base."""
    find: Literal["max_rate", "cheapest_fleet"] = "max_rate"
    """The highest rate that the base's fleet sustains, or the fewest replicas for the base's rate."""
    engines: list[str] = []
    """Engines to plan for; default: every engine of the base."""
    limits: list[Limit] = Field(min_length=1)
    """All must hold; a run whose queue grows never passes."""
    rate_key: str = "workload.arrivals.rate_per_s"
    """The scenario key that holds the rate."""
    rate: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.1, 1000.0]
    """Bounds of the rate searched, requests a second (max_rate)."""
    window_s: float | None = Field(None, gt=0, le=1e7)
    """How long sessions keep arriving in each simulation: the number of requests follows from the rate. Should be several
    times as long as a session; default: the base's own number of requests, whatever time that is."""
    replicas: Annotated[list[int], Field(min_length=2, max_length=2)] = [1, 64]
    """Bounds of the number of replicas searched (cheapest_fleet)."""
    tolerance: float = Field(0.02, ge=1e-6, lt=1)
    """Relative width at which bisection of the rate stops."""
    over: list[AnyAxis] = []
    """Fleet shapes compared: GPU, tensor_parallel_size, block_size, router, ..."""
    repeats: int = Field(3, ge=1, le=100)
    """Seeds; the same seeds at every rate and fleet (common random numbers)."""
    prices: dict[str, Price] = {}
    """By GPU profile name; missing ones are taken from the profile where it has one."""
    compare_without_caching: bool = True
    """Also plan with prefix caching off, to state what caching saves."""

    @field_validator("rate")
    @classmethod
    def _rates(cls, value: list[float]) -> list[float]:
        if not 0 < value[0] <= value[1] <= 1e9:
            raise ValueError("expected two rates, the lower one first, above 0 and at most 1e9 a second")
        return value

    @field_validator("replicas")
    @classmethod
    def _fleets(cls, value: list[int]) -> list[int]:
        if not 1 <= value[0] <= value[1] <= MAX_REPLICAS:
            raise ValueError(f"expected two numbers of replicas, the lower one first, from 1 to {MAX_REPLICAS}")
        return value
