"""From a file, or the name of a shipped scenario, to a `Scenario`; with keys overridden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem, ScenarioError, nearest
from prefixsim.paths import data_dir
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.base import Strict
from prefixsim.scenario.models import ENGINES, Scenario, family
from prefixsim.scenario.not_modelled import refused
from prefixsim.scenario.profile_names import unknown_profiles
from prefixsim.scenario.router import ROUTERS
from prefixsim.scenario.strict_yaml import Document, Path_, model_keys

_INDEX = re.compile(r"\[(\d{1,6})\]")


def shipped_scenarios() -> list[str]:
    """Names of the scenarios that come with the program."""
    return sorted(p.stem for p in data_dir("scenarios").glob("*.yaml"))


def find_scenario(path_or_name: str | Path) -> Path:
    """The file a path or a shipped name stands for. Raises ScenarioError with the nearest name."""
    path = Path(path_or_name)
    try:
        if path.is_file():
            return path
        text = str(path_or_name)
        shipped = data_dir("scenarios") / f"{text}.yaml"
        if "/" not in text and shipped.is_file():
            return shipped
        if path.is_dir():
            raise ScenarioError(Problem("is a folder, not a scenario file", file=text))
        if path.exists():
            raise ScenarioError(Problem("is a pipe, socket or device, not a scenario file", file=text))
    except (OSError, ValueError) as exc:
        raise ScenarioError(Problem(f"cannot be read: {exc}", file=f"{path_or_name!s:.200}")) from None
    raise ScenarioError(
        Problem(f"no such file, nor a shipped scenario{nearest(path.stem, shipped_scenarios())}", file=text)
    )


def load_scenario(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Reads, overrides and validates a scenario.

    overrides: key path -> value, e.g. {"engines.vllm.block_size": 32, "seed": 2}; an engine is named or numbered
    (engines[0]). Raises ScenarioError with every fault: file, line, column, key, what was found and expected.
    """
    path = find_scenario(path_or_name)
    return scenario_from(strict_yaml.read(path), path.parent, overrides)


def scenario_from(document: Document, base_dir: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """A `Scenario` from a parsed document; relative paths in it start from `base_dir`. Errors as `load_scenario`."""
    if not isinstance(document.data, dict):
        raise ScenarioError(
            Problem("a scenario is a mapping of keys (name, workload, engines, ...)", file=document.file)
        )
    changed = [(set_key(document.data, key, value), key, value) for key, value in (overrides or {}).items()]
    if problems := refused(document):
        raise ScenarioError(problems)
    faults = list(unknown_profiles(document, base_dir))
    try:
        scenario = strict_yaml.validate(document, Scenario, ScenarioError, _known_keys(document))
    except ScenarioError as exc:
        faults = sorted([*exc.problems, *faults], key=lambda p: (p.line or 0, p.column or 0))
    if faults:
        raise ScenarioError([_blame(p, changed) for p in faults])
    scenario._base_dir = base_dir.resolve()
    return scenario


def variants(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> list[Scenario]:
    """The scenario and each of its `also:` variants, whose names get the variant's appended and which have expectations of
    their own. Explicit overrides win."""
    first = load_scenario(path_or_name, overrides)
    out = [first]
    for variant in first.also:
        own = [e.model_dump(exclude_defaults=True) for e in variant.expect]
        name = f"{first.name}-{variant.name}"
        keys = {**variant.set, **(overrides or {}), "name": name, "also": [], "expect": own}
        try:
            out.append(load_scenario(path_or_name, keys))
        except ScenarioError as exc:
            at = f"{path_or_name}: also: {variant.name}"
            raise ScenarioError([p if p.line else replace(p, file=f"{at}: {p.file}") for p in exc.problems]) from None
    return out


def parse_override(text: str) -> tuple[str, Any]:
    """ "engines.vllm.block_size=32" -> ("engines.vllm.block_size", 32); the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text:.200}: write KEY=VALUE, e.g. --set engines.vllm.block_size=32")
    parsed = strict_yaml.parse(value, f"--set {text:.200}").data if value.strip() else None
    return key.strip(), parsed


def split_key(key: str) -> list[str | int]:
    """ "engines[0].block_size" -> ["engines", 0, "block_size"]; plain numbers between dots are indices too."""
    parts: list[str | int] = []
    for part in _INDEX.sub(r".\1", key).split("."):
        parts.append(int(part) if part.isdecimal() and parts else part)
    return parts


def set_key(data: Any, key: str, value: Any) -> Path_:
    """Sets a key in scenario data, in place; missing mappings on the way are made. Returns the path with list indices.

    A member of a list may be named by its `name`. Raises InputError where the path leads nowhere.
    """
    parts, here = split_key(key), data
    done: list[str | int] = []
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if isinstance(here, list):
            names = [str(m.get("name", "")) for m in here if isinstance(m, dict)]
            index = names.index(str(part)) if str(part) in names else part
            if not isinstance(index, int):
                raise InputError(f"{key}: no {part!r} in {strict_yaml.dotted(tuple(done))}{nearest(str(part), names)}")
            if index >= len(here):
                raise InputError(f"{key}: {strict_yaml.dotted(tuple(done))} has {len(here)} members, counted from 0")
            part = index
        elif isinstance(here, dict):
            part = str(part)
            if not last and not isinstance(here.get(part), dict | list):
                if isinstance(here.get(part), str) and part == "router":
                    here[part] = {"kind": here[part]}
                else:
                    here[part] = {}
        else:
            raise InputError(f"{key}: {strict_yaml.dotted(tuple(done))} is no mapping")
        done.append(part)
        if last:
            here[part] = value
        else:
            here = here[part]
    return tuple(done)


def _blame(problem: Problem, changed: list[tuple[Path_, str, Any]]) -> Problem:
    """Puts a fault that an override caused at that override instead of a line of the file."""
    for path, key, value in changed:
        where = strict_yaml.dotted(path)
        if problem.key is not None and (problem.key == where or problem.key.startswith((where + ".", where + "["))):
            return replace(problem, file=f"{key}={value!s:.200}", line=None, column=None)
    return problem


def _known_keys(document: Document) -> Any:
    """Names a person may have meant at a path: unions are followed by what the data says."""

    def names(path: Path_) -> list[str]:
        here = document.data
        for part in path[:2]:
            here = here[part]
        if len(path) >= 2 and path[0] == "engines" and family(here) in ENGINES:
            return model_keys(ENGINES[family(here)], path[2:])
        if path == ("router",) and str(document.data["router"].get("kind")) in ROUTERS:
            return list(ROUTERS[str(document.data["router"]["kind"])].model_fields)
        if path and path[0] in ("workload", "prime"):
            return _workload_keys(document.data[path[0]], path[1:])
        return model_keys(Scenario, path)

    return names


def _workload_keys(data: Any, path: Path_) -> list[str]:
    from prefixsim.scenario import workload

    for model in vars(workload).values():
        if not (isinstance(model, type) and issubclass(model, Strict) and model.__name__.endswith("Workload")):
            continue
        fields: dict[str, Any] = model.model_fields
        kinds = getattr(fields["generator"].annotation, "__args__", ()) if "generator" in fields else ()
        if isinstance(data, dict) and (("trace" in data and "trace" in fields) or data.get("generator") in kinds):
            return model_keys(model, path)
    return []
