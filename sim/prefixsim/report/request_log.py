"""Logs of real servers: one request a line, with the tokens it had from cache."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem
from prefixsim.paths import bounded_lines, open_text
from prefixsim.report import facts

_USAGE = ("usage", "response.usage", "response.body.usage", "body.usage")
ID_KEYS = ("id", "request_id", "custom_id", "rid")
PROMPT_KEYS = (
    "prompt_tokens",
    "input_tokens",
    "prompt_len",
    *(f"{u}.{k}" for u in _USAGE for k in ("prompt_tokens", "input_tokens")),
)
CACHED_KEYS = (
    "cached_tokens",
    "num_cached_tokens",
    *(
        f"{u}.{k}"
        for u in _USAGE
        for k in ("prompt_tokens_details.cached_tokens", "cached_tokens", "cache_read_input_tokens")
    ),
    "meta_info.cached_tokens",
)


@dataclass(frozen=True, slots=True)
class Logged:
    """One request of a log: id (None: no id), prompt tokens (None: not given), cached tokens; said: the log has them (else
    0 is taken, as servers leave the details out where nothing was cached)."""

    id: str | None
    prompt: float | None
    cached: float
    said: bool


def read_log(path: Path, kind: str) -> Iterator[Logged]:
    """Requests of a JSONL or CSV log. Raises InputError with the line number."""
    with open_text(path, newline="") as f:
        rows = _json_rows(path, f) if kind == "jsonl" else _csv_rows(path, f)
        for line, row in rows:
            cached = _first_number(row, CACHED_KEYS)
            prompt = _first_number(row, PROMPT_KEYS)
            said = cached is not None
            if cached is None and any(facts.number(row, *u.split("."), "prompt_tokens") is not None for u in _USAGE):
                cached = 0.0
            if cached is None:
                wanted = "cached_tokens (or usage.prompt_tokens_details.cached_tokens)"
                raise InputError(Problem(f"has no {wanted}", file=str(path), line=line))
            if cached < 0 or (prompt is not None and cached > prompt):
                raise InputError(
                    Problem(f"cached_tokens {cached:g} does not fit prompt_tokens {prompt}", file=str(path), line=line)
                )
            name = next((row[k] for k in ID_KEYS if row.get(k) not in (None, "")), None)
            yield Logged(None if name is None else str(name), prompt, cached, said)


def _json_rows(path: Path, f: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(bounded_lines(path, f), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise InputError(Problem(f"is not JSON: {str(exc)[:100]}", file=str(path), line=number)) from None
        if not isinstance(row, dict):
            raise InputError(Problem(f"expected a mapping, found {type(row).__name__}", file=str(path), line=number))
        yield number, row


def _csv_rows(path: Path, f: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(bounded_lines(path, f), strict=True)
    try:
        for row in reader:
            yield (
                reader.line_num,
                {k: v if k in ID_KEYS else _number_or_text(v) for k, v in row.items() if isinstance(k, str)},
            )
    except csv.Error as exc:
        raise InputError(Problem(f"is not CSV: {exc}", file=str(path), line=reader.line_num)) from None


def _number_or_text(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _first_number(row: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    for key in keys:
        value = facts.number(row, key)
        if value is None:
            value = facts.number(row, *key.split("."))
        if value is not None:
            return value
    return None
