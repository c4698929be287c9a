"""What `explain` and `curve` are pointed at: a scenario file (or shipped name), or a bare trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem, TraceError, nearest
from prefixsim.scenario.models import Scenario, granularity_of, rule_of
from prefixsim.workload.intern import NamespaceRule
from prefixsim.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Input:
    """name for people; the workload; the scenario, or None for a bare trace; the file given; keys overridden in it."""

    name: str
    workload: Workload
    scenario: Scenario | None
    path: str
    overrides: dict[str, Any]
    notice: str = ""
    """What of the scenario is left aside."""

    @property
    def rule(self) -> NamespaceRule:
        """Namespace rule of the first engine; vLLM's for a bare trace."""
        return rule_of(self.scenario.engines[0]) if self.scenario is not None else "vllm"

    @property
    def granularities(self) -> dict[str, int]:
        """Engine name -> tokens in its block or page; {} for a bare trace."""
        if self.scenario is None:
            return {}
        return {e.name: granularity_of(e) for e in self.scenario.engines}


def is_scenario(text: str) -> bool:
    """True for YAML files and for names of shipped scenarios; everything else is read as a trace."""
    from prefixsim.scenario.load import shipped_scenarios

    path = Path(text)
    return path.suffix.lower() in (".yaml", ".yml") or (
        not path.exists() and "/" not in text and text in shipped_scenarios()
    )


def load_input(text: str, *, format: str | None = None, settings: Sequence[str] = ()) -> Input:
    """Loads a scenario or a trace. settings: "KEY=VALUE" texts, keys of the scenario or of a `trace:` section.

    Raises ScenarioError or TraceError with the place of every fault, InputError for faulty settings.
    """
    from prefixsim.scenario.load import load_scenario, parse_override, shipped_scenarios
    from prefixsim.workload.edit import add_to_source
    from prefixsim.workload.load import load_trace, load_workload, trace_options

    if is_scenario(text):
        if format is not None:
            raise InputError("--format is for a bare trace; a scenario says it in workload.trace.format")
        overrides = dict(parse_override(s) for s in settings)
        scenario = load_scenario(text, overrides)
        notice = ""
        if scenario.prime is not None or scenario.warm_up is not None:
            notice = (
                "the scenario's `prime` and `warm_up` are left aside: this is the whole workload, from an empty cache"
            )
            overrides |= {"prime": None, "warm_up": None}
            scenario = load_scenario(text, overrides)
        workload = load_workload(scenario.workload, base_dir=scenario.base_dir, seed=scenario.seed)
        if notice:
            workload = replace(workload, source=add_to_source(workload.source, notes=(notice,)))
        loaded = Input(scenario.name, workload, scenario, text, overrides, notice)
    else:
        path = Path(text)
        if not path.exists():
            hint = nearest(text, shipped_scenarios())
            raise TraceError(Problem(f"no such file, nor a shipped scenario{hint}", file=text))
        workload = load_trace(trace_options(text, format=format, settings=settings), base_dir=Path())
        loaded = Input(path.name, workload, None, text, {})
    if workload.n == 0:
        raise TraceError(Problem("has no requests: there is nothing to explain", file=text))
    return loaded
