"""The table of generators. A generator is one file beside this one with one `register` call, and one model in `scenario`."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from prefixsim.errors import ScenarioError, nearest
from prefixsim.workload.table import Source, Workload


@dataclass(frozen=True, slots=True)
class GenerateContext:
    """What a generator is given besides its section: the seed, and the folder that paths are relative to."""

    seed: int
    base_dir: Path


Generator = Callable[[Any, GenerateContext], Workload]
_GENERATORS: dict[str, Generator] = {}


def register(name: str) -> Callable[[Generator], Generator]:
    """Adds a generator under the name that `generator:` (or `mix`) has in a scenario."""

    def add(function: Generator) -> Generator:
        _GENERATORS[name] = function
        return function

    return add


@cache
def _load_all() -> None:
    import prefixsim.workload.generators as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def generators() -> dict[str, Generator]:
    """All generators by name."""
    _load_all()
    return dict(sorted(_GENERATORS.items()))


def generate(spec: Any, *, base_dir: Path, seed: int) -> Workload:
    """Runs the generator of a section; the source's identity is the section and the seed."""
    name = getattr(spec, "generator", "mix")
    known = generators()
    if name not in known:
        raise ScenarioError(f"unknown generator {name!r}{nearest(name, known)}")
    w = known[name](spec, GenerateContext(seed, base_dir))
    canonical = json.dumps([spec.model_dump(mode="json"), seed], sort_keys=True)
    return replace(w, source=replace(w.source, sha256=hashlib.sha256(canonical.encode()).hexdigest()))


def synthetic_source(kind: str, **more: Any) -> Source:
    """The source of a generated workload."""
    return Source(kind=kind, synthetic=True, **more)
