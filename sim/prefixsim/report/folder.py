"""Opens a finished run's folder. Whatever is wrong with it is said with the file's name; nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem
from prefixsim.paths import open_regular, read_regular

JSON_LIMIT = 64 << 20
SCENARIO_LIMIT = 200 << 10


@dataclass(frozen=True, slots=True)
class RunFolder:
    """path: the folder. summary: parsed summary.json. scenario: text of scenario.resolved.yaml (cut at 200 KiB), None if
    absent. curves, divergence: parsed optional files, None if absent. absent: one sentence for each missing piece."""

    path: Path
    summary: dict[str, Any]
    scenario: str | None
    curves: dict[str, Any] | None
    divergence: list[Any] | None
    absent: tuple[str, ...]

    def which(self) -> tuple[int, int]:
        """Differs between runs that have lain at this place; (0, 0) where there is none."""
        try:
            about = (self.path / "summary.json").stat()
        except OSError:
            return 0, 0
        return about.st_ino, about.st_mtime_ns


def open_run(path: Path) -> RunFolder:
    """Reads a run folder's small files. Raises InputError naming the file when it is no finished run or is damaged."""
    if path.name == "summary.json" and path.is_file():
        path = path.parent
    if not path.is_dir():
        raise InputError(Problem("no such run folder" if not path.exists() else "not a folder", file=str(path)))
    summary = read_json(path / "summary.json", dict)
    if summary is None:
        raise InputError(Problem("no summary.json here: not the folder of a finished run", file=str(path)))
    if not isinstance(summary.get("engines"), dict):
        raise InputError(Problem("has no mapping of engines", file=str(path / "summary.json"), key="engines"))
    for name, engine in summary["engines"].items():
        if not isinstance(engine, dict):
            problem = Problem(f"expected a mapping, found {type(engine).__name__}", key=f"engines.{str(name)[:60]}")
            raise InputError(problem)
    scenario = _text(path / "scenario.resolved.yaml")
    summary["engines"] = _in_order(summary["engines"], scenario)
    curves = read_json(path / "curves.json", dict)
    divergence = read_json(path / "divergence.json", list)
    absent = []
    if scenario is None:
        absent.append("The run folder has no scenario.resolved.yaml, so the scenario cannot be shown.")
    if curves is None:
        absent.append("The run folder has no curves.json: capacity curves were not computed for this run.")
    if divergence is None:
        absent.append("The run folder has no divergence.json: divergence points were not computed for this run.")
    return RunFolder(path, summary, scenario, curves, divergence, tuple(absent))


def _in_order(engines: dict[str, Any], scenario: str | None) -> dict[str, Any]:
    """The engines in the scenario's order (summary.json is sorted by name), as they are where it cannot be read."""
    import yaml

    try:
        entries = yaml.safe_load(scenario or "").get("engines")
        names = [entry.get("name") for entry in entries]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        return engines
    known = [name for name in names if isinstance(name, str) and name in engines]
    return {name: engines[name] for name in dict.fromkeys([*known, *engines])}


def read_json(path: Path, expected: type) -> Any:
    """The parsed file, None where there is none. Raises InputError when it is no regular file, too large, not JSON, or
    its top level is not of the type `expected` (dict or list)."""
    if not path.exists():
        return None
    if not path.is_file():
        raise InputError(Problem("not a regular file", file=str(path)))
    size = path.stat().st_size
    if size > JSON_LIMIT:
        raise InputError(Problem(f"is {size >> 20} MiB; at most {JSON_LIMIT >> 20} MiB can be read", file=str(path)))
    try:
        value = json.loads(read_regular(path, JSON_LIMIT))
    except json.JSONDecodeError as exc:
        what = "is empty" if size == 0 else f"is not whole JSON ({exc.msg}); the run may have been cut short"
        raise InputError(Problem(what, file=str(path), line=exc.lineno, column=exc.colno)) from None
    except (UnicodeDecodeError, ValueError) as exc:
        raise InputError(Problem(f"is not JSON: {str(exc)[:200]}", file=str(path))) from None
    except RecursionError:
        raise InputError(Problem("is nested too deeply to be a file of a run", file=str(path))) from None
    if not isinstance(value, expected):
        wanted = "a list" if expected is list else "a mapping"
        raise InputError(Problem(f"expected {wanted}, found {type(value).__name__}", file=str(path)))
    return value


def _text(path: Path) -> str | None:
    if not path.exists():
        return None
    if not path.is_file():
        raise InputError(Problem("not a regular file", file=str(path)))
    with open_regular(path) as f:
        raw = f.read(SCENARIO_LIMIT + 1)
    text = raw[:SCENARIO_LIMIT].decode("utf-8", "replace")
    return text if len(raw) <= SCENARIO_LIMIT else text + "\n# ... cut here: the file is longer than 200 KiB\n"
