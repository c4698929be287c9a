"""The table of trace formats. A format is one file beside this one, with one `register` call; nothing else lists them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from prefixsim.errors import TraceError, nearest
from prefixsim.scenario.workload import Trace
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.table import Decision, Workload


@dataclass(frozen=True, slots=True)
class Head:
    """What a format's `sniff` sees: the path, the first bytes, the first JSON row or document start, the CSV header."""

    path: Path
    first: bytes
    row: dict[str, Any] | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What a reader is given: the trace section, the resolved path and how to name it, and the seed of the run."""

    options: Trace
    path: Path
    seed: int = 0

    def file(self) -> TraceFile:
        """The trace as one file."""
        return TraceFile(self.path)


@dataclass(frozen=True, slots=True)
class Format:
    """name: as in `format:`. content: what is known of prompts. times: whether rows carry arrival times.
    sniff: evidence that a file is of this format, or None. read: the reader. block_size: tokens of an id, 0 if not of ids.
    uses: keys of the `trace:` section that only some formats heed, and this one does. version: raised when the reader's result changes, so that kept parses are made anew.
    """

    name: str
    title: str
    content: Literal["ids", "tokens", "text", "lengths"]
    times: bool
    sniff: Callable[[Head], str | None]
    read: Callable[[ReadContext], Workload]
    uses: frozenset[str] = frozenset()
    block_size: int = 0
    folder: bool = False
    version: int = 1


SOME_HEED = (
    "block_size", "tail", "id_scope", "time_unit", "turns", "failed_rows", "share_system_blocks", "sharing", "arrivals",
    "tokenizer", "chat_template", "strip_thinking",
)  # fmt: skip
"""Keys of the `trace:` section that not every format heeds."""


def unheeded(format: Format, options: Trace) -> str | None:
    """A sentence about keys that are set and have no effect on this format."""
    lost = [
        k
        for k in SOME_HEED
        if k in options.model_fields_set and k not in format.uses and getattr(options, k) is not None
    ]
    return f"set, but without effect on {format.name} traces: {', '.join(lost)}" if lost else None


_FORMATS: dict[str, Format] = {}


def register(format: Format) -> Format:
    """Adds a format; called once in each format's file."""
    if format.name in _FORMATS and _FORMATS[format.name].read is not format.read:
        raise ValueError(f"two formats are called {format.name}")
    _FORMATS[format.name] = format
    return format


@cache
def _load_all() -> None:
    import prefixsim.workload.formats as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def formats() -> dict[str, Format]:
    """All formats by name."""
    _load_all()
    return dict(sorted(_FORMATS.items()))


def get(name: str) -> Format:
    """A format by name. Raises TraceError with the nearest name."""
    known = formats()
    if name not in known:
        raise TraceError(f"unknown trace format {name!r}{nearest(name, known)}")
    return known[name]


def look(path: Path) -> Head:
    """Reads the beginning of a file (or of the first file of a folder)."""
    import msgspec

    source = path
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        data = [p for p in inside if ".json" in p.name and p.stat().st_size]
        if not data:
            raise TraceError(f"{path}: a folder without JSON files")
        source = data[0]
    file = TraceFile(source)
    first = file.head()
    if not first.strip():
        raise file.error("is empty")
    line = first.split(b"\n", 1)[0].strip()
    row: dict[str, Any] | None = None
    for raw in first.split(b"\n")[:50]:
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            row = value
            break
    columns = tuple(c.strip() for c in line.decode("utf-8", "replace").split(",")) if row is None else ()
    return Head(path, first, row, columns)


def detect(path: Path) -> tuple[Format, Decision]:
    """The one format whose signs a file bears. Raises TraceError when none or several fit."""
    head = look(path)
    found = [(f, evidence) for f in formats().values() if (evidence := f.sniff(head))]
    if len(found) == 1:
        return found[0][0], Decision("format", found[0][0].name, found[0][1])
    names = ", ".join(f.name for f in formats().values())
    if not found:
        keys = f" (its first row has the keys {', '.join(map(repr, list(head.row)[:12]))})" if head.row else ""
        raise TraceError(f"{path}: the format cannot be told{keys}; give `format:`, one of {names}")
    which = " and ".join(f"{f.name} ({evidence})" for f, evidence in found)
    raise TraceError(f"{path}: may be {which}; give `format:`")
