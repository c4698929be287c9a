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
from prefixsim.machine import require
from prefixsim.workload.table import Source, Workload


@dataclass(frozen=True, slots=True)
class GenerateContext:
    """What a generator is given besides its section: the seed, and the folder that paths are relative to."""

    seed: int
    base_dir: Path


BYTES_A_REQUEST = 600
"""Memory of a generated request with some six parts, interned (measured)."""

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
    _enough_memory(spec)
    w = known[name](spec, GenerateContext(seed, base_dir))
    canonical = json.dumps([spec.model_dump(mode="json"), seed], sort_keys=True)
    notes, asked = w.source.notes, getattr(spec, "requests", None) or 0
    if w.n < asked:
        why = (
            ""
            if getattr(spec, "max_prompt_tokens", None) is None
            else ": sessions end where max_prompt_tokens is reached"
        )
        notes = (*notes, f"{asked:,} requests were asked for, the generator {name} made {w.n:,}{why}")
    return replace(w, source=replace(w.source, sha256=hashlib.sha256(canonical.encode()).hexdigest(), notes=notes))


def _enough_memory(spec: Any) -> None:
    """Raises DoesNotFitError when so many requests cannot fit: before anything is allocated."""
    wanted = max(
        (getattr(spec, k, None) or 0 for k in ("requests", "num_prompts")),
        default=0,
    ) or getattr(spec, "gsp_num_groups", 0) * getattr(spec, "gsp_prompts_per_group", 0)
    require(wanted * BYTES_A_REQUEST, f"{wanted:,} requests")


def synthetic_source(kind: str, **more: Any) -> Source:
    """The source of a generated workload."""
    return Source(kind=kind, synthetic=True, **more)
