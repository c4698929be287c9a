"""What a run needs before it simulates: workload, tries, chains, segments, ceilings. Made once, shared by all engines of a
scenario and by all points of a study."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixsim.errors import InputError, Problem, ScenarioError, nearest
from prefixsim.hardware.load import Hardware, load_hardware
from prefixsim.jit import compile_seconds
from prefixsim.scenario.models import Scenario, family
from prefixsim.workload.intern import ChainIndex, NamespaceRule, Trie, build_chains, build_trie, namespaces
from prefixsim.workload.load import load_workload
from prefixsim.workload.numbering import Numbering
from prefixsim.workload.prime import Primed, load_numbered, load_primed
from prefixsim.workload.table import Workload


class Prepared:
    """One workload with all that is derived from it, each made when first asked for. seconds: wall time by phase.

    workload: all that is simulated; its first `first` requests prime the cache for `main`, which is all of it without
    priming. numbering: names of contents, where they were asked for, and what they go by."""

    def __init__(self, workload: Workload, read_s: float = 0.0, primed: Primed | None = None) -> None:
        self.workload = workload
        self.primed = primed
        self.main = workload if primed is None else primed.main
        self.first = 0 if primed is None else primed.first
        self.numbering: tuple[Numbering, str] | None = None
        self.seconds = {"read": read_s, "intern": 0.0}
        self._tries: dict[bytes, Trie] = {}
        self._spaces: dict[str, bytes] = {}
        self._chains: dict[tuple[bytes, int], ChainIndex] = {}
        self._derived: dict[Any, Any] = {}

    def _space(self, rule: NamespaceRule) -> bytes:
        if rule not in self._spaces:
            spaces = namespaces(self.workload, rule)
            self._spaces[rule] = spaces.tobytes() if spaces.any() else b""
        return self._spaces[rule]

    def trie(self, rule: NamespaceRule) -> Trie:
        """The workload interned under a namespace rule; rules that separate the same requests share one."""
        space = self._space(rule)
        if space not in self._tries:
            with _adding(self.seconds, "intern"):
                self._tries[space] = build_trie(self.workload, rule)
        return self._tries[space]

    def chains(self, rule: NamespaceRule, granularity: int) -> ChainIndex:
        """Chain ids of a granularity."""
        key = (self._space(rule), granularity)
        if key not in self._chains:
            trie = self.trie(rule)
            with _adding(self.seconds, "intern"):
                self._chains[key] = build_chains(trie, granularity)
        return self._chains[key]

    def segments(self, rule: NamespaceRule) -> Any:
        """The analysis' segments under a namespace rule."""
        from prefixsim.analysis.segments import build_segments

        key = ("segments", self._space(rule))
        if key not in self._derived:
            self._derived[key] = build_segments(self.trie(rule))
        return self._derived[key]

    def ceilings(self, rule: NamespaceRule) -> Any:
        """Ceilings at every granularity (`analysis.ceilings.Ceilings`)."""
        from prefixsim.analysis.ceilings import ceilings

        key = ("ceilings", self._space(rule))
        if key not in self._derived:
            self._derived[key] = ceilings(self.workload, rule=rule, segments=self.segments(rule))
        return self._derived[key]


@dataclass
class Library:
    """Prepared workloads by what makes them: a study over one workload reads and interns it once. keep: how many."""

    keep: int = 4
    known: dict[str, Prepared] = field(default_factory=dict)

    def get(self, scenario: Scenario) -> Prepared:
        """The scenario's workload, from memory where it was read before. Raises InputError for an empty one."""
        key = json.dumps(
            [
                scenario.workload.model_dump(mode="json"),
                None if scenario.prime is None else scenario.prime.model_dump(mode="json"),
                scenario.seed,
                str(scenario.base_dir),
                scenario.clock,
            ],
            sort_keys=True,
        )
        if key not in self.known:
            while len(self.known) >= self.keep:
                self.known.pop(next(iter(self.known)))
            self.known[key] = prepare(scenario)
        return self.known[key]


def prepare(scenario: Scenario, named: bool = False) -> Prepared:
    """Reads or generates the scenario's workload, and what primes it. named: names of contents are kept, for saving what a
    cache holds (not with priming). Raises InputError when it has no requests."""
    seconds = {"read": 0.0}
    where: dict[str, Any] = {"base_dir": scenario.base_dir, "seed": scenario.seed}
    numbering, primed, how = Numbering(), None, ""
    with _adding(seconds, "read"):
        if scenario.prime is not None:
            primed = load_primed(scenario.prime, scenario.workload, **where)
            workload = primed.workload
        elif named:
            workload, how = load_numbered(scenario.workload, numbering, **where)
        else:
            workload = load_workload(scenario.workload, **where)
    if workload.n == 0:
        place = workload.source.path or "workload"
        raise ScenarioError(Problem("has no requests: there is nothing to simulate", file=place))
    out = Prepared(workload, seconds["read"], primed)
    if how:
        out.numbering = (numbering, how)
    return out


@contextlib.contextmanager
def _adding(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Adds the block's wall time, compilation left out, to a phase."""
    started = time.perf_counter()
    with compile_seconds() as compiled:
        yield
    seconds[phase] += max(time.perf_counter() - started - compiled(), 0.0)


def arrivals_ns(scenario: Scenario, workload: Workload) -> np.ndarray:
    """When requests arrive, int64 (n,) ns: by `arrival`, or by `step` where the clock counts steps."""
    return workload.step if scenario.clock == "steps" else workload.arrival_ns


def replica_hardware(scenario: Scenario) -> list[Hardware | None]:
    """The hardware of each replica."""
    out: list[Hardware | None] = []
    for group in scenario.replica_groups:
        spec = group.hardware or scenario.hardware
        hw = None if spec is None else load_hardware(spec, base_dir=scenario.base_dir)
        out += [hw] * group.count
    return out


def has_window_groups(engine: Any, hardware: Sequence[Hardware | None]) -> bool:
    """Whether some replica's cache has sliding-window groups. Raises as `Hardware.with_layout`."""
    if family(engine) != "vllm":
        return False
    return any((engine if hw is None else hw.with_layout(engine)[0]).layout in ("swa", "hybrid") for hw in hardware)


def pick_engines(scenario: Scenario, names: Sequence[str] | None) -> list[Any]:
    """The engines asked for by name, or all. Raises InputError naming the nearest."""
    if not names:
        return list(scenario.engines)
    by_name = {e.name: e for e in scenario.engines}
    for name in names:
        if name not in by_name:
            raise InputError(f"--engine {name}: the scenario has no such engine{nearest(name, by_name)}")
    return [e for e in scenario.engines if e.name in names]
