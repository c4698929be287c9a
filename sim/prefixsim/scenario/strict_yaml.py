"""YAML read as a person means it: every surprise of YAML 1.1 is either read sensibly or refused with its place.

`1e9` is a number; `no`, `12:30`, `010`, duplicate keys, anchors/aliases, tags and multiple documents are refused.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from prefixsim.errors import InputError, Problem, ScenarioError, nearest
from prefixsim.paths import open_regular

M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 4 << 20
MAX_DEPTH = 60
MAX_NODES = 200_000

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?(\.[0-9_]*)?([eE][-+]?[0-9]+)?\Z")
_NULL = {"", "~", "null"}
_TRUE, _FALSE = {"true", "True"}, {"false", "False"}
_TRAPS = re.compile(r"(y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|TRUE|FALSE|NULL|Null)\Z")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-9]{2})+(\.[0-9]*)?\Z")
_OCTAL = re.compile(r"[-+]?0[0-9_]+\Z|0[xXbBoO][0-9a-fA-F_]+\Z")

_EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # far faster where PyYAML was built with it

Path_ = tuple[str | int, ...]
Marks = dict[Path_, tuple[int, int]]
"""Key path -> (line, column), 1-based, of the value (of the key for mappings' own entries under path + ('<key>',))."""


class Document:
    """A parsed YAML document: `data`, and the place of every value."""

    def __init__(self, data: Any, marks: Marks, key_marks: Marks, file: str) -> None:
        self.data = data
        self.marks = marks
        self.key_marks = key_marks
        self.file = file

    def place(self, path: Path_) -> tuple[int | None, int | None]:
        """(line, column) of a value, or of the nearest ancestor that has one."""
        while True:
            if path in self.marks:
                return self.marks[path]
            if not path:
                return (None, None)
            path = path[:-1]

    def problem(self, path: Path_, message: str, *, at_key: bool = False) -> Problem:
        """A `Problem` at a key path."""
        line, column = self.key_marks.get(path, self.place(path)) if at_key else self.place(path)
        return Problem(message, file=self.file, line=line, column=column, key=dotted(path) or None)


def dotted(path: Path_) -> str:
    """('engines', 0, 'kind') -> "engines[0].kind"."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else str(part))
    return out


def parse(text: str, file: str, error: type[InputError] = ScenarioError) -> Document:
    """Parses one YAML document. Raises `error` with every problem found, each with line and column."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # bytes of a command line that are no UTF-8
        raise error(Problem("not UTF-8 text", file=file)) from None
    if size > MAX_BYTES:
        raise error(Problem(f"larger than {MAX_BYTES >> 20} MiB: not a scenario", file=file))
    problems: list[Problem] = []
    try:
        _guard(text, file, error)
        root = yaml.compose(text, Loader=_EVENTS)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise error(Problem(f"not valid YAML: {exc.problem or exc.context}", file, line, column)) from None
    except yaml.YAMLError as exc:
        raise error(Problem(f"not valid YAML: {exc}", file)) from None
    except RecursionError:
        raise error(Problem("nested too deeply", file)) from None
    if root is None:
        raise error(Problem("is empty", file))
    marks: Marks = {}
    key_marks: Marks = {}
    count = [0]

    def build(node: yaml.Node, path: Path_) -> Any:
        mark = (node.start_mark.line + 1, node.start_mark.column + 1)
        marks[path] = mark
        count[0] += 1
        if count[0] > MAX_NODES or len(path) > MAX_DEPTH:
            raise error(Problem("too many values or nested too deeply", file, *mark))
        if isinstance(node, yaml.MappingNode):
            out: dict[str, Any] = {}
            for key_node, value_node in node.value:
                at = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                if not isinstance(key_node, yaml.ScalarNode):
                    problems.append(Problem("a key must be a plain name", file, *at, key=dotted(path) or None))
                    continue
                key = key_node.value
                if key in out:
                    first = key_marks[(*path, key)]
                    problems.append(
                        Problem(f"duplicate key (first on line {first[0]})", file, *at, key=dotted((*path, key)))
                    )
                    continue
                key_marks[(*path, key)] = at
                out[key] = build(value_node, (*path, key))
            return out
        if isinstance(node, yaml.SequenceNode):
            return [build(child, (*path, i)) for i, child in enumerate(node.value)]
        try:
            return scalar(node)
        except ValueError as exc:
            problems.append(Problem(str(exc), file, *mark, key=dotted(path) or None))
            return None

    data = build(root, ())
    if problems:
        raise error(problems)
    return Document(data, marks, key_marks, file)


def _guard(text: str, file: str, error: type[InputError]) -> None:
    """Raises `error` for anchors, depth and sheer number, before a tree is made: composing costs more than the text is long.
    Faults of syntax are left to composing."""
    depth = 0
    with contextlib.suppress(yaml.YAMLError):
        for number, event in enumerate(yaml.parse(text, Loader=_EVENTS)):
            mark = event.start_mark
            at = (mark.line + 1, mark.column + 1) if mark else (None, None)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise error(Problem("anchors and aliases are not accepted: write the value out", file, *at))
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or number > 3 * MAX_NODES:
                raise error(Problem("too many values or nested too deeply", file, *at))


def scalar(node: yaml.Node) -> Any:
    """The value of a scalar node. Raises ValueError for what YAML 1.1 would silently turn into something else."""
    text: str = node.value
    quoted = isinstance(node, yaml.ScalarNode) and node.style in ("'", '"', "|", ">")
    core = ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
    if node.tag not in {f"tag:yaml.org,2002:{t}" for t in core}:
        raise ValueError(f"tag {node.tag} is not accepted")
    if quoted:
        return text
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _TRAPS.match(text):
        raise ValueError(f"found {text!r}: YAML tools disagree on what it means; write true, false, null or quote it")
    if _OCTAL.match(text):
        raise ValueError(f"found {text!r}: may be read as octal or hexadecimal; write a decimal number or quote it")
    if _SEXAGESIMAL.match(text):
        raise ValueError(f"found {text!r}: YAML 1.1 reads it in base 60; write seconds as a number or quote it")
    if _INT.match(text):
        if len(text) > 40:
            raise ValueError("a number of more than 40 digits")
        return int(text.replace("_", ""))
    if _FLOAT.match(text) and any(c.isdigit() for c in text):
        value = float(text.replace("_", ""))
        if math.isinf(value):
            raise ValueError(f"found {text!r}: too large a number")
        return int(value) if value.is_integer() and "." not in text and abs(value) < 1 << 63 else value
    return text


def read(path: Path, error: type[InputError] = ScenarioError) -> Document:
    """Reads and parses a file. Raises `error` when it is missing, unreadable, not UTF-8 or not acceptable YAML."""
    document = _parsed(read_text(path, error), str(path), error)  # type: ignore[arg-type]  # a class can be hashed
    return Document(deepcopy(document.data), document.marks, document.key_marks, document.file)


@lru_cache(maxsize=4)
def _parsed(text: str, file: str, error: type[InputError]) -> Document:
    """The last few documents, so that a study parses its base once. Callers change `data`: they get a copy."""
    return parse(text, file, error)


def read_text(path: Path, error: type[InputError] = ScenarioError) -> str:
    """A file's text. Raises `error` when it is missing, unreadable or not UTF-8."""
    try:
        with open_regular(path) as f:
            raw = f.read(MAX_BYTES + 1)
    except OSError as exc:
        raise error(Problem(f"cannot be read: {exc.strerror or exc}", file=str(path))) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise error(Problem(f"not UTF-8 text (byte {exc.start})", file=str(path))) from None


def validate(
    document: Document,
    model: type[M],
    error: type[InputError] = ScenarioError,
    known_keys: Callable[[Path_], list[str]] | None = None,
) -> M:
    """Validates with pydantic; turns every fault into a `Problem` with its place. `known_keys` gives names for a nearest-match hint."""
    try:
        return model.model_validate(document.data)
    except ValidationError as exc:
        problems = []
        for fault in exc.errors(include_url=False):
            path = real_path(document.data, fault["loc"])
            kind, found = fault["type"], fault.get("input")
            if kind == "extra_forbidden":
                names = known_keys(path[:-1]) if known_keys else model_keys(model, path[:-1])
                problems.append(document.problem(path, f"unknown key{nearest(str(path[-1]), names)}", at_key=True))
            elif kind == "missing":
                problems.append(document.problem(path[:-1], f"missing key '{fault['loc'][-1]}'"))
            else:
                shown = "" if isinstance(found, dict | list) else f", found {found!r:.80}"
                message = fault["msg"].removeprefix("Value error, ") + shown + _meant(kind, fault["msg"], found)
                problems.append(document.problem(path, message))
        raise error(sorted(set(problems), key=lambda p: (p.line or 0, p.column or 0))) from None


def _meant(kind: str, message: str, found: Any) -> str:
    """ " (did you mean 'x'?)" where a word is not among those a message lists, and one of them is near."""
    if kind in ("workload_kind", "engine_kind") and isinstance(found, dict):
        found = found.get("generator") if kind == "workload_kind" else found.get("kind")
        words = message.rpartition(" one of ")[2].split(", ")
    elif kind == "literal_error":
        words = re.findall(r"'([^']*)'", message)
    elif kind == "union_tag_invalid":
        words = re.findall(r"'([^']*)'", message.rpartition("expected tags:")[2])
        found = next(iter(re.findall(r"Input tag '([^']*)'", message)), None)
    else:
        return ""
    hint = nearest(found, words) if isinstance(found, str) else ""
    return hint if "did you mean" in hint else ""


def real_path(data: Any, loc: tuple[str | int, ...]) -> Path_:
    """The part of a pydantic location that exists in the data: tags of unions and validators are left out."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        if isinstance(data, dict) and part in data:  # noqa: SIM114 (their types differ)
            data = data[part]
            path.append(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(part)
        elif i == len(loc) - 1 and isinstance(data, dict):
            path.append(part)
    return tuple(path)


def model_keys(model: type[BaseModel], path: Path_) -> list[str]:
    """Field names of the sub-model a key path leads to; [] where it cannot be told."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return []
        found = current.model_fields.get(str(part))
        current = next(iter(_models_in(found.annotation)), None) if found else None
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [f.alias or name for name, f in current.model_fields.items()]
    return []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models_in(arg)]
