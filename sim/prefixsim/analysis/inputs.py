"""What `explain` and `curve` are pointed at: a scenario file (or shipped name), or a bare trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefixsim.errors import InputError, Problem, TraceError, nearest
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.workload import Trace
from prefixsim.workload.intern import NamespaceRule
from prefixsim.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Input:
    """name for people; the workload; the scenario, or None for a bare trace; the file given."""

    name: str
    workload: Workload
    scenario: Scenario | None
    path: str

    @property
    def rule(self) -> NamespaceRule:
        """Namespace rule of the first engine; vLLM's for a bare trace."""
        return namespace_rule(self.scenario.engines[0].kind) if self.scenario is not None else "vllm"

    @property
    def granularities(self) -> dict[str, int]:
        """Engine name -> tokens in its block or page; {} for a bare trace."""
        if self.scenario is None:
            return {}
        return {e.name: int(getattr(e, "block_size", 0) or getattr(e, "page_size", 1)) for e in self.scenario.engines}


def namespace_rule(kind: str) -> NamespaceRule:
    """Namespace rule of an engine kind ("vllm@0.33" -> "vllm")."""
    return "sglang" if kind.startswith("sglang") else "vllm"


def is_scenario(text: str) -> bool:
    """True for YAML files and for names of shipped scenarios; everything else is read as a trace."""
    from prefixsim.scenario.load import shipped_scenarios

    path = Path(text)
    return path.suffix.lower() in (".yaml", ".yml") or (
        not path.exists() and "/" not in text and text in shipped_scenarios()
    )


def load_input(text: str, *, format: str | None = None, options: Mapping[str, Any] | None = None) -> Input:
    """Loads a scenario (`options` override its keys) or a trace (`options` are keys of a `trace:` section).

    Raises ScenarioError or TraceError with the place of every fault.
    """
    from prefixsim.workload.load import load_trace, load_workload

    if is_scenario(text):
        if format is not None:
            raise InputError("--format is for a bare trace; a scenario says it in workload.trace.format")
        from prefixsim.scenario.load import load_scenario

        scenario = load_scenario(text, options)
        workload = load_workload(scenario.workload, base_dir=scenario.base_dir, seed=scenario.seed)
        return Input(scenario.name, workload, scenario, text)
    path = Path(text)
    if not path.exists():
        from prefixsim.scenario.load import shipped_scenarios

        raise TraceError(
            Problem(f"no such file, nor a shipped scenario{nearest(text, shipped_scenarios())}", file=text)
        )
    try:
        trace = Trace(path=text, format=format, **(options or {}))
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        key = str(fault["loc"][0]) if fault["loc"] else ""
        hint = (
            nearest(key, Trace.model_fields)
            if fault["type"] == "extra_forbidden"
            else f" (found {fault.get('input')!r:.60})"
        )
        raise InputError(f"--set {key}: {fault['msg']}{hint}") from None
    return Input(path.name, load_trace(trace, base_dir=Path()), None, text)
