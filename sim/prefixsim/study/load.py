"""Study files from disk, and the scenarios of their points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from prefixsim.errors import InputError, Problem, ScenarioError
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import find_scenario, load_scenario
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.study import PlanSpec, StudySpec
from prefixsim.study.grid import for_all_engines

S = TypeVar("S", StudySpec, PlanSpec)


_KEYS: dict[type[StudySpec] | type[PlanSpec], set[str]] = {StudySpec: {"axes"}, PlanSpec: {"limits", "find"}}
"""Keys that tell one kind of study from the other."""


@dataclass(frozen=True, slots=True)
class Study(Generic[S]):
    """A study file: its spec, where it lies, and the base scenario's file."""

    spec: S
    file: Path
    base: Path

    def scenario(self, settings: Mapping[str, Any], repeat: int = 0) -> Scenario:
        """The base with the study's `set:`, then `settings`, then the repeat's seed. Raises ScenarioError naming the key."""
        first = load_scenario(self.base)
        fixed: dict[str, Any] = self.spec.set
        keys = for_all_engines({**fixed, **settings}, [e.name for e in first.engines])
        try:
            one = load_scenario(self.base, {**keys, "also": []})
            return load_scenario(self.base, {**keys, "also": [], "seed": one.seed + repeat}) if repeat else one
        except InputError as exc:
            raise ScenarioError([p if p.file else replace(p, file=str(self.file)) for p in exc.problems]) from None


def load_study(path: Path, model: type[S]) -> Study[S]:
    """Reads a study file. Raises ScenarioError with every fault and its place."""
    document = strict_yaml.read(path)
    if not isinstance(document.data, dict):
        raise ScenarioError(Problem("a study is a mapping of keys (name, base, axes, ...)", file=str(path)))
    for other, command in ((PlanSpec, "plan"), (StudySpec, "sweep")):
        if model is not other and _KEYS[other] & document.data.keys() and not _KEYS[model] & document.data.keys():
            raise ScenarioError(Problem(f"this is a study for `prefixsim {command}`", file=str(path)))
    if "workload" in document.data and "base" not in document.data:
        raise ScenarioError(Problem("this is a scenario, not a study: a study has `base:`", file=str(path)))
    spec = strict_yaml.validate(document, model)
    near = path.parent / spec.base
    try:
        base = near if near.is_file() else find_scenario(spec.base)
    except ScenarioError as exc:
        raise ScenarioError([document.problem(("base",), p.message) for p in exc.problems]) from None
    return Study(spec, path, base)
