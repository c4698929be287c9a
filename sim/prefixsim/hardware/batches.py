"""Batches of one engine step as people write them: `q@past`, `BxS`, and JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem
from prefixsim.paths import bounded_lines, open_text

MAX_TOKENS = 1 << 40
_PREFILL = re.compile(r"\s*([0-9][0-9_]*)(?:\s*@\s*([0-9][0-9_]*))?\s*\Z")
_DECODE = re.compile(r"\s*([0-9][0-9_]*)\s*[xX]\s*([0-9][0-9_]*)\s*\Z")


@dataclass(frozen=True, slots=True)
class Batch:
    """prefill: (new tokens, tokens already cached) of each request; decode: (sequences, KV tokens of each)."""

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]


def parse_batch(prefill: list[str], decode: list[str]) -> Batch:
    """`["2048@0"]`, `["64x1024"]` -> a batch. Raises InputError naming the option."""
    pre, dec = [], []
    for text in prefill:
        found = _PREFILL.match(text)
        if not found:
            raise InputError(f"--prefill: found {text!r:.60}, expected NEW@PAST in tokens, e.g. 512@4096")
        pre.append((_size(found[1], "--prefill", 1), _size(found[2] or "0", "--prefill", 0)))
    for text in decode:
        found = _DECODE.match(text)
        if not found:
            raise InputError(f"--decode: found {text!r:.60}, expected SEQUENCESxKV in tokens, e.g. 64x1024")
        dec.append((_size(found[1], "--decode", 1), _size(found[2], "--decode", 1)))
    if not pre and not dec:
        raise InputError("an empty batch: give --prefill, --decode or --steps")
    return Batch(tuple(pre), tuple(dec))


def _size(text: str, option: str, least: int) -> int:
    value = int(text.replace("_", "")) if len(text) < 30 else MAX_TOKENS + 1
    if not least <= value <= MAX_TOKENS:
        raise InputError(f"{option}: {text:.40} is outside {least}..2^40")
    return value


def read_batches(path: Path) -> Iterator[Batch]:
    """Batches of a JSON-lines file, in order. Raises InputError with file and line."""
    try:
        with open_text(path, errors="strict") as f:
            for number, line in enumerate(bounded_lines(path, f), 1):
                if line.strip():
                    yield _row(path, number, line)
    except UnicodeDecodeError:
        raise InputError(Problem("not UTF-8 text", str(path))) from None
    except OSError as exc:
        raise InputError(Problem(f"cannot be read: {exc.strerror or exc}", str(path))) from None


def _row(path: Path, number: int, line: str) -> Batch:
    def bad(message: str) -> InputError:
        return InputError(Problem(message, str(path), number))

    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise bad(f"not valid JSON: {getattr(exc, 'msg', 'nested too deeply')}") from None
    if not isinstance(row, dict) or set(row) - {"prefill", "decode"}:
        raise bad('expected {"prefill": [[new, past], ...], "decode": [[sequences, kv_len], ...]}')

    def pairs(key: str, least: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        out = []
        value: Any = row.get(key) or []
        if not isinstance(value, list):
            raise bad(f"{key}: expected a list of pairs")
        for item in value:
            ok = isinstance(item, list) and len(item) == 2
            ok = ok and all(isinstance(x, int) and not isinstance(x, bool) for x in item)
            if not ok or not all(low <= x <= MAX_TOKENS for low, x in zip(least, item, strict=True)):
                raise bad(
                    f"{key}: expected [{'new, past' if key == 'prefill' else 'sequences, kv_len'}], found {item!r:.60}"
                )
            out.append((item[0], item[1]))
        return tuple(out)

    batch = Batch(pairs("prefill", (1, 0)), pairs("decode", (1, 1)))
    if not batch.prefill and not batch.decode:
        raise bad("an empty batch")
    return batch
