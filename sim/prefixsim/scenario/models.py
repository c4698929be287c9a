"""The `Scenario`: everything that decides the result of a run, as a person writes it in YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from prefixsim.scenario.base import Strict
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec
from prefixsim.scenario.router import RoundRobin, RouterField
from prefixsim.scenario.warm import Prime, WarmUp, WarmUpField
from prefixsim.scenario.workload import WorkloadSpec

SCHEMA_VERSION = 1
"""Version of scenario files and run folders. Part of the run identity."""
ENGINES: dict[str, type[VllmOptions] | type[SglangOptions]] = {"vllm": VllmOptions, "sglang": SglangOptions}
"""Engine families by the part of `kind` before "@"."""
MAX_REPLICAS = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,79}\Z")
_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,39}\Z")


def family(engine: Any) -> str:
    """ "vllm" or "sglang" from an engine's options, or from the mapping they are read from; "" where it has no kind."""
    kind = engine.get("kind", "") if isinstance(engine, dict) else getattr(engine, "kind", "")
    return str(kind).partition("@")[0]


def rule_of(engine: Any) -> Literal["vllm", "sglang"]:
    """Whose namespaces count for an engine's options (`workload.intern.NamespaceRule`)."""
    return "sglang" if family(engine) == "sglang" else "vllm"


def granularity_of(engine: Any) -> int:
    """Tokens in a block or page of an engine's options."""
    return int(engine.page_size if family(engine) == "sglang" else engine.block_size)


EngineOptions = Annotated[
    Annotated[VllmOptions, Tag("vllm")] | Annotated[SglangOptions, Tag("sglang")],
    Discriminator(
        family,
        custom_error_type="engine_kind",
        custom_error_message="an engine needs `kind:`, one of vllm, vllm@0.33, vllm@0.11, sglang, sglang@0.5.23",
    ),
]


class ReplicaGroup(Strict):
    """Some replicas that are alike.

    Example:
        replicas: [{count: 2}, {count: 2, hardware: {gpu: a100-sxm-80g, model: llama-3.1-8b}}]
    """

    count: int = Field(ge=1, le=MAX_REPLICAS)
    """Replicas of this kind."""
    hardware: HardwareSpec | None = None
    """Default: the scenario's."""


class OutputOptions(Strict):
    """What a run writes.

    Example:
        output: {requests: none, timeline: false}
    """

    requests: Literal["auto", "csv", "npz", "none"] = "auto"
    """One row for each engine and request; auto: CSV up to 200,000 rows, else a compressed NumPy file."""
    timeline: bool = True
    """Write timeline.csv, one row an engine step."""
    report: bool = True
    """Write report.html."""


class Expect(Strict):
    """A condition on one summary metric, e.g. {metric: vllm.hit_rate, at_least: 0.5}. All bounds given must hold.

    Example:
        expect: [{metric: ceiling.token, equals: 0.31, within: 0.01}, {metric: vllm.ttft_s.p99, at_most: 0.5, repeats: 5}]
    """

    metric: str
    """Path in summary.json without `engines.`, e.g. vllm.ttft_s.p99."""
    at_least: float | None = None
    """Lower bound, itself allowed."""
    at_most: float | None = None
    """Upper bound, itself allowed."""
    equals: float | bool | None = None
    """The exact value, or with `within: DISTANCE` about it."""
    within: float | Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    """[low, high], or with `equals` the allowed distance from it."""
    repeats: int = Field(1, ge=1, le=100)
    """Runs with so many seeds; the mean is compared, and its 95 % confidence interval must lie outside to fail."""

    @model_validator(mode="after")
    def _any(self) -> Self:
        if self.at_least is None and self.at_most is None and self.equals is None and not isinstance(self.within, list):
            raise ValueError("an expectation needs at_least, at_most, equals or within: [low, high]")
        if isinstance(self.within, list) and self.within[0] > self.within[1]:
            raise ValueError(f"within: {self.within[0]} is above {self.within[1]}")
        if isinstance(self.within, float) and (self.equals is None or isinstance(self.equals, bool)):
            raise ValueError("within: with one number needs equals: a number")
        return self


class Variant(Strict):
    """The same scenario with some keys changed, run and shown beside it.

    Example:
        also: [{name: small-blocks, set: {engines.vllm.block_size: 8}}]
    """

    name: str
    """Appended to the scenario's name."""
    set: dict[str, bool | int | float | str | None]
    """Key -> value, e.g. {workload.trace.time_scale: 1}."""
    expect: list[Expect] = []
    """What `prefixsim check` tests of the variant; without any it does not run it. The scenario's own `expect:` is not
    tested here."""

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        return _check_name(value)


class Scenario(Strict):
    """One workload, one fleet, one or more engines that each serve all of it."""

    name: str
    """Names the run folder: letters, digits and _ . + -"""
    description: str = ""
    """For people; shown at the top of reports."""
    workload: WorkloadSpec
    """The requests: exactly one of `trace:`, `generator:`, `mix:`."""
    prime: Prime | None = None
    """Served first, on the same engines, and counted nowhere: a workload, `first_requests: N` of this one, or `saved: FILE`."""
    warm_up: WarmUpField | None = None
    """First part of the workload, simulated and not counted: `requests: N`, `seconds: S`, or auto. Default: none."""
    hardware: HardwareSpec | None = None
    """Of each replica. May be left out only with `clock: steps` and explicit cache sizes."""
    engines: list[EngineOptions] = Field(min_length=1, max_length=64)
    """Each one serves the whole workload, on its own."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | list[ReplicaGroup] = 1
    """Copies of an engine behind the router; a number, or groups that differ in hardware."""
    router: RouterField = RoundRobin()
    """Which replica a request goes to: a name, or `{kind: NAME, ...}` with options."""
    clock: Literal["time", "steps"] = "time"
    """steps: every engine step lasts one unit (1 ns), requests arrive by their `step`."""
    granularity: Literal["jump", "step"] = "jump"
    """step: one event of the simulation for every engine step. Slow, and the same results."""
    oversized: Literal["error", "reject"] = "error"
    """A prompt that can never fit an engine's KV cache: stop, or have it rejected and counted."""
    seed: int = Field(0, ge=0, lt=1 << 63)
    """Everything random hangs on it; same scenario and seed, same bytes."""
    output: OutputOptions = OutputOptions()
    """What a run writes besides summary.json."""
    expect: list[Expect] = []
    """What `prefixsim check` tests."""
    also: list[Variant] = []
    """Variants that `prefixsim run` runs and shows too."""
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @property
    def base_dir(self) -> Path:
        """Folder that relative paths of the scenario start from."""
        return self._base_dir

    @property
    def replica_groups(self) -> list[ReplicaGroup]:
        """The replicas, as groups that are alike."""
        return [ReplicaGroup(count=self.replicas)] if isinstance(self.replicas, int) else list(self.replicas)

    @property
    def n_replicas(self) -> int:
        """Number of replicas."""
        return sum(group.count for group in self.replica_groups)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        return _check_name(value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [e.name for e in self.engines]
        for name in names:
            if not _ENGINE_NAME.match(name):
                raise ValueError(
                    f"engine name {name!r:.60}: letters, digits, _ + - only, at most 40 (metrics are NAME.hit_rate)"
                )
            if names.count(name) > 1:
                raise ValueError(f"two engines are called {name!r}")
        if isinstance(self.replicas, list) and not self.replicas:
            raise ValueError("replicas: an empty list; at least one replica is needed")
        if self.n_replicas > MAX_REPLICAS:
            raise ValueError(f"replicas: {self.n_replicas} asked for, at most {MAX_REPLICAS} are simulated in one run")
        if self.hardware is None and any(g.hardware is None for g in self.replica_groups):
            if self.clock == "time":
                raise ValueError("hardware: missing; step times come from it (only `clock: steps` can do without)")
            for engine in self.engines:
                size = "num_gpu_blocks_override" if isinstance(engine, VllmOptions) else "max_total_tokens"
                if getattr(engine, size) is None:
                    raise ValueError(f"engine {engine.name!r}: without hardware its cache size must be given: {size}")
        if self.clock == "steps" and isinstance(self.warm_up, WarmUp) and self.warm_up.seconds is not None:
            raise ValueError("warm_up: seconds mean nothing with `clock: steps`; give requests")
        variants = [v.name for v in self.also]
        if len(set(variants)) < len(variants):
            raise ValueError("also: two variants have the same name")
        return self


def _check_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("letters, digits and _ . + - only, starting with a letter or digit, at most 80 characters")
    return value
