"""The models that files are read with say what each key means, and their examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import pytest

from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.strict_yaml import Document, parse
from prefixsim.scenario.study import PlanSpec, StudySpec

BASE = {
    "name": "example",
    "workload": {"generator": "scan", "arrivals": {"process": "poisson", "rate_per_s": 1}, "requests": 10},
    "hardware": {"gpu": "h100-sxm-80g", "model": "llama-3.1-8b"},
    "engines": [{"name": "vllm", "kind": "vllm@0.33"}],
}
SESSIONS = {
    "generator": "sessions",
    "arrivals": {"process": "poisson", "rate_per_s": 1},
    "requests": 10,
    "templates": [{"name": "t", "segments": [{"unique": "q", "tokens": 10}]}],
}
STUDY = {
    StudySpec: {"name": "s", "base": "quickstart", "axes": [{"key": "seed", "values": [1, 2]}]},
    PlanSpec: {"name": "p", "base": "quickstart", "limits": [{"metric": "ttft_s.p99", "at_most": 1}]},
}


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, JSON Schema) of every model of the three kinds of files."""
    for model in (Scenario, StudySpec, PlanSpec):
        schema = model.model_json_schema()
        for name, part in {**schema.get("$defs", {}), model.__name__: schema}.items():
            yield name, next((p for p in part.get("anyOf", []) if "properties" in p), part)


def test_every_key_says_what_it_means() -> None:
    silent = [
        f"{name}.{key}"
        for name, part in definitions()
        for key, value in part.get("properties", {}).items()
        if key not in ("generator", "kind") and len(value.get("description", "")) < 5
    ]
    assert not silent
    assert not [name for name, part in definitions() if not part.get("description")]


def examples() -> dict[str, Any]:
    """Model -> what its docstring gives as an example."""
    found = {}
    for name, part in definitions():
        _, is_there, text = part.get("description", "").partition("Example:")
        if is_there:
            found[name] = parse(cleandoc(text), name).data
    return found


@pytest.mark.parametrize("name", sorted(examples()))
def test_examples_are_valid(name: str) -> None:
    example = examples()[name]
    for model, base in STUDY.items():
        if name == model.__name__ or name in ("Axis", "ZippedAxes", "Price"):
            model.model_validate({k: v for k, v in {**base, **example}.items() if k in model.model_fields})
    if name in ("StudySpec", "PlanSpec", "Axis", "ZippedAxes", "Price"):
        return
    data = {**BASE, **{k: v for k, v in example.items() if k in Scenario.model_fields}}
    inside = {k: v for k, v in example.items() if k not in Scenario.model_fields}
    if "segments" in inside:
        inside = {"templates": [{"name": "t", **inside}]}
    if inside:
        data["workload"] = {**SESSIONS, **inside}
    scenario_from(Document(data, {}, {}, name), Path.cwd())


def test_most_sections_have_an_example() -> None:
    without = (
        {name for name, _ in definitions()} - set(examples()) - {"Scenario", "Limit", "Part", "Range", "Geometric"}
    )
    assert without <= {"Uniform", "Normal", "LogNormal", "Mean", "Choice", "Quantiles"}


def test_the_serve_command_of_the_page_is_valid() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "scenario.md").read_text()
    (block,) = re.findall(r"are, on H100s,\n\n```yaml\n(.*?)```", page, re.DOTALL)
    scenario = scenario_from(Document({**BASE, **parse(block, "page").data}, {}, {}, "page"), Path.cwd())
    assert [e.name for e in scenario.engines] == ["vllm", "sglang"]
