"""Which profiles there are, by name: the one place that knows where they lie. Reads folders, no profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem, nearest
from prefixsim.paths import data_dir
from prefixsim.scenario.strict_yaml import Document, Path_

KINDS = {"gpu": "gpus", "model": "models", "host": "hosts"}
"""Key of a scenario's `hardware:` -> folder of its profiles."""


def profile_names(kind: str, base_dir: Path | None = None) -> dict[str, Path]:
    """Known profiles of a kind ("gpus", "models", "hosts"): name -> file. The working folder's come before shipped ones."""
    found: dict[str, Path] = {}
    for root in (*([base_dir / "hw_profiles"] if base_dir else []), Path("hw_profiles"), data_dir("hw_profiles")):
        for path in sorted((root / kind).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def is_path(name: str) -> bool:
    """Whether a profile is given as a file instead of by name."""
    return "/" in name or name.endswith((".yaml", ".yml", ".json"))


def find_profile(kind: str, name: str, base_dir: Path | None = None) -> Path:
    """The file of a profile: `name` as a path (absolute, or relative to base_dir or the working folder), else by name.

    Raises InputError naming the nearest known profile.
    """
    if is_path(name):
        for candidate in (*([base_dir / name] if base_dir else []), Path(name)):
            try:
                if candidate.is_file():
                    return candidate
            except (OSError, ValueError):  # a NUL, or too long for a file name
                continue
        raise InputError(Problem(f"no such profile file: {name:.200}", key=kind.rstrip("s")))
    known = profile_names(kind, base_dir)
    if name not in known:
        raise InputError(Problem(f"unknown profile {name!r:.80}{nearest(name, known)}", key=kind.rstrip("s")))
    return known[name]


def unknown_profiles(document: Document, base_dir: Path) -> Iterator[Problem]:
    """A problem for every name in a scenario's `hardware:` sections that no profile has."""
    data: Any = document.data
    groups = data.get("replicas")
    sections: list[tuple[Path_, Any]] = [(("hardware",), data.get("hardware"))]
    for i, group in enumerate(groups if isinstance(groups, list) else []):
        sections.append((("replicas", i, "hardware"), group.get("hardware") if isinstance(group, dict) else None))
    for place, section in sections:
        for key, kind in KINDS.items():
            name = section.get(key) if isinstance(section, dict) else None
            if isinstance(name, str):
                try:
                    find_profile(kind, name, base_dir)
                except InputError as exc:
                    yield document.problem((*place, key), exc.problems[0].message)
