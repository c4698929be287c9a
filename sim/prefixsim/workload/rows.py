"""Rows of a JSON-lines trace as columns: the compiled scanner where a line is plain, a general decoder where it is not."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from prefixsim.errors import Problem, TraceError, nearest
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.ragged import offsets
from prefixsim.workload.table import I32, I64

MAX_PROBLEMS = 20
MAX_TOKENS = 1_000_000_000
"""Most tokens a prompt or an output may have."""
ROWS_AT_ONCE = 1 << 15

_NUM, _STR, _INTS, _BOOL, _OTHER = range(5)  # as in scan_kernels
_ABSENT, _NULL = -1, -2


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a row: its kind is "num", "str", "label" (text; a whole number is taken as its digits), "ints", "bool" or
    "other" (kept as decoded, read slowly)."""

    name: str
    kind: str
    required: bool = False


class BadRows:
    """Collects what is wrong with rows: raises at the end (or after `MAX_PROBLEMS`), or skips and counts."""

    def __init__(self, file: TraceFile, skip: bool) -> None:
        self.file, self.skip = file, skip
        self.problems: list[Problem] = []
        self.count = 0

    def add(self, message: str, line: int, key: str | None = None) -> None:
        """One bad row."""
        self.count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self.file.problem(message, line, key))
        if not self.skip and len(self.problems) >= MAX_PROBLEMS:
            self.check()

    def check(self) -> None:
        """Raises TraceError if rows are bad and may not be skipped."""
        if self.problems and not self.skip:
            more = self.count - len(self.problems)
            tail = [Problem(f"... and {more:,} more bad rows", self.file.name)] if more else []
            hint = [Problem("`on_bad_row: skip` leaves bad rows out and counts them")]
            raise TraceError(sorted(self.problems, key=lambda p: p.line or 0) + tail + hint)

    def note(self) -> str | None:
        """A sentence about skipped rows, with the first one."""
        if not self.count:
            return None
        return f"{self.count:,} bad rows left out (on_bad_row: skip); the first: {self.problems[0]}"


@dataclass(slots=True)
class RowTable:
    """Columns of all good rows of a file, in file order.

    line int64 (n,). number[key] float64 (n,) (NaN where absent or null). Lists lie in `flat` (int32 where all fit, else
    int64) at start[key], int64 (n,), with count[key] items, int64 (n,). text[key] list of str or None; other[key] list
    of Any. has[key] bool (n,): there and not null.
    """

    line: I64
    number: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    flat: I64 | I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    start: dict[str, I64] = field(default_factory=dict)
    count: dict[str, I64] = field(default_factory=dict)
    text: dict[str, list[str | None]] = field(default_factory=dict)
    other: dict[str, list[Any]] = field(default_factory=dict)
    has: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    unknown: tuple[str, int, int] | None = None
    """First unknown key, its line, occurrences of unknown keys."""
    blank: int = 0

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.line.shape[0])


def read_rows(file: TraceFile, keys: Sequence[Key], bad: BadRows) -> RowTable:
    """Reads all rows of a JSON-lines file. Bad rows go to `bad`; its `check` is left to the caller."""
    scanner = _Scanner(keys)
    blocks = [part for block in file.blocks() for part in scanner.block(file, block, bad)]
    table = RowTable(line=_joined([b.line for b in blocks], np.int64))
    table.blank = sum(b.blank for b in blocks)
    table.unknown = _first_unknown(blocks)
    table.flat = scanner.flat[: scanner.used]
    for key in keys:
        name = key.name
        table.has[name] = _joined([b.has[name] for b in blocks], np.bool_)
        if key.kind in ("num", "bool"):
            table.number[name] = _joined([b.number[name] for b in blocks], np.float64)
        elif key.kind == "ints":
            table.start[name] = _joined([b.start[name] for b in blocks], np.int64)
            table.count[name] = _joined([b.count[name] for b in blocks], np.int64)
        elif key.kind in ("str", "label"):
            table.text[name] = [t for b in blocks for t in b.text[name]]
        else:
            table.other[name] = [t for b in blocks for t in b.other[name]]
    return table


def _joined(parts: list[Any], dtype: Any) -> Any:
    if len(parts) == 1:
        return parts[0].astype(dtype, copy=False)
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _first_unknown(blocks: list[RowTable]) -> tuple[str, int, int] | None:
    found = [b.unknown for b in blocks if b.unknown]
    return (found[0][0], found[0][1], sum(u[2] for u in found)) if found else None


def unknown_note(table: RowTable, keys: Sequence[Key]) -> str | None:
    """A sentence about unknown keys."""
    if table.unknown is None:
        return None
    name, line, count = table.unknown
    hint = nearest(name, [k.name for k in keys])
    return f"unknown keys were ignored ({count:,} times); the first: {name!r} on line {line}{hint}"


class _Scanner:
    """Reads blocks with the compiled scanner; keeps its scratch arrays, and all lists in one growing array `flat`."""

    def __init__(self, keys: Sequence[Key]) -> None:
        from prefixsim.workload import scan_kernels as scan

        self.keys = keys
        self.names = [k.name.encode() for k in keys]
        self.key_data = np.frombuffer(b"".join(self.names) + b"\n", dtype=np.uint8)
        self.key_start = offsets([len(k) for k in self.names])
        kinds = {
            "num": scan.NUM,
            "str": scan.STR,
            "label": scan.STR,
            "ints": scan.INTS,
            "bool": scan.BOOL,
            "other": scan.OTHER,
        }
        self.key_kind = np.array([kinds[k.kind] for k in keys], dtype=np.int64)
        self.lists = any(k.kind == "ints" for k in keys)
        self.flat: I64 | I32 = np.empty(1024, np.int32)
        self.used = 0
        self.line_start = np.empty(ROWS_AT_ONCE + 1, np.int64)
        self.status = np.empty(ROWS_AT_ONCE, np.int8)
        self.number = np.empty((ROWS_AT_ONCE, len(keys)), np.float64)
        self.start = np.empty((ROWS_AT_ONCE, len(keys)), np.int64)
        self.count = np.empty((ROWS_AT_ONCE, len(keys)), np.int64)

    def _reserve(self, values: int) -> None:
        """Room for so many more values. Untouched memory costs nothing, so the room is generous."""
        if self.lists and self.used + values > self.flat.shape[0]:
            bigger = np.empty(max(2 * self.flat.shape[0], 4 * (self.used + values)), self.flat.dtype)
            bigger[: self.used] = self.flat[: self.used]
            self.flat = bigger

    def block(self, file: TraceFile, block: bytes, bad: BadRows) -> Iterator[RowTable]:
        """The rows of one block of whole lines, in tables of at most `ROWS_AT_ONCE`; counts the file's lines."""
        self._reserve(len(block) // 2 + 2)
        begin = 0
        while begin < len(block):
            table, rows, begin = self._some(file, block, begin, bad)
            file.line += rows
            yield table

    def _some(self, file: TraceFile, block: bytes, begin: int, bad: BadRows) -> tuple[RowTable, int, int]:
        from prefixsim.workload import scan_kernels as scan

        first, keys, names = file.line, self.keys, self.names
        data = np.frombuffer(block, dtype=np.uint8)
        unknown = np.zeros(3, np.int64)
        while True:
            rows, n_values, wide, end = scan.scan_lines(
                data, self.key_data, self.key_start, self.key_kind, self.line_start, self.status, self.number, self.start,
                self.count, self.flat, self.used, begin, unknown,
            )  # fmt: skip
            if not wide or self.flat.dtype == np.int64:
                break
            self.flat = self.flat.astype(np.int64)  # an id of more than 31 bits: all are kept as 64-bit from now on
            unknown[:] = 0
        line_start, status = self.line_start, self.status[:rows]
        number, start, count = self.number[:rows], self.start[:rows], self.count[:rows]
        slow: dict[int, dict[str, Any]] = {}
        keep = status == scan.ROW_OK
        extra = None
        for r in np.flatnonzero((status == scan.ROW_SLOW) | (status == scan.ROW_DUPLICATE)):
            raw = block[line_start[r] : line_start[r + 1]]
            row = decode_slowly(raw, first + int(r), keys, bad)
            if row is not None:
                keep[r] = True
                slow[int(r)] = row
                strange = [k for k in row if k.encode() not in names]
                if strange and extra is None:
                    extra = (strange[0], first + int(r))
                unknown[0] += len(strange)
        for key, k in ((key, k) for k, key in enumerate(keys) if key.required):
            missing = keep & (count[:, k] < 0)
            for r in np.flatnonzero(missing):
                if int(r) in slow and slow[int(r)].get(key.name) is not None:
                    continue
                keep[r] = False
                bad.add("is missing" if count[r, k] == _ABSENT else "is null", first + int(r), key.name)
        chosen = np.flatnonzero(keep)
        table = RowTable(line=chosen + first, blank=int((status == scan.ROW_BLANK).sum()))
        if unknown[0]:
            if unknown[2]:
                at = int(unknown[1])
                name = block[at : at + int(unknown[2])].decode()
                table.unknown = (name, first + block.count(b"\n", begin, at), int(unknown[0]))
            elif extra:
                table.unknown = (*extra, int(unknown[0]))
        patched = [(int(np.searchsorted(chosen, r)), slow[r]) for r in slow if keep[r]]
        lists = _Extra(n_values)
        for k, key in enumerate(keys):
            _fill(table, key, number[chosen, k], start[chosen, k], count[chosen, k], lists, block, patched)
        self._append(n_values, lists.items)
        return table, rows, end

    def _append(self, used: int, items: list[int]) -> None:
        self.used = used
        if items:
            if self.flat.dtype == np.int32 and not (max(items) < 1 << 31 and min(items) >= 0):
                self.flat = self.flat.astype(np.int64)
            self._reserve(len(items))
            self.flat[used : used + len(items)] = items
            self.used += len(items)


class _Extra:
    """Lists of slowly read rows, put behind the scanned values."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.items: list[int] = []

    def add(self, items: list[int] | None) -> tuple[int, int]:
        at = self.base + len(self.items)
        self.items.extend(items or ())
        return at, len(items or ())


def _fill(
    table: RowTable, key: Key, number: Any, start: Any, count: Any, extra: _Extra, block: bytes, patched: list[Any]
) -> None:
    name = key.name
    has = count >= 0
    for i, row in patched:
        has[i] = row.get(name) is not None
    table.has[name] = has
    if key.kind in ("num", "bool"):
        number[count < 0] = np.nan
        for i, row in patched:
            value = row.get(name)
            number[i] = np.nan if value is None else float(value)
        table.number[name] = number
    elif key.kind == "ints":
        count = np.maximum(count, 0)
        for i, row in patched:
            start[i], count[i] = extra.add(row.get(name))
        table.start[name], table.count[name] = start, count
    elif key.kind in ("str", "label") and not has.any():
        table.text[name] = [None] * has.shape[0]
    elif key.kind in ("str", "label"):
        texts: list[str | None] = [
            block[a : a + c].decode() if c >= 0 else None for a, c in zip(start.tolist(), count.tolist(), strict=True)
        ]
        for i, row in patched:
            texts[i] = row.get(name)
        table.text[name] = texts
    else:
        others: list[Any] = [None] * number.shape[0]
        for i, row in patched:
            others[i] = row.get(name)
        table.other[name] = others


def decode_slowly(raw: bytes, line: int, keys: Sequence[Key], bad: BadRows) -> dict[str, Any] | None:
    """One line through a general JSON decoder, with every known key's type checked; None (and a problem) if it is bad."""
    try:
        row = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        bad.add(f"not valid JSON: {str(exc).removeprefix('JSON is malformed: ')}", line)
        return None
    except RecursionError:
        bad.add("nested too deeply", line)
        return None
    if not isinstance(row, dict):
        bad.add(f"expected an object, found {shown(row)}", line)
        return None
    if raw.count(b'"') >= 4 and _has_duplicates(raw):
        bad.add("a key occurs twice", line)
        return None
    for key in keys:
        value = row.get(key.name)
        if value is None or key.kind == "other":
            continue
        if key.kind == "label" and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**40:
            row[key.name] = value = str(value)
        fault = _fault(key, value)
        if fault:
            bad.add(fault, line, key.name)
            return None
        if key.kind == "ints":
            ints: list[int] = row[key.name]
            row[key.name] = [v - (1 << 64) if v >= 1 << 63 else v for v in ints]
    return row


def _has_duplicates(raw: bytes) -> bool:
    import json

    found = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        out = dict(items)
        found = found or len(out) < len(items)
        return out

    try:
        json.loads(raw, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return False
    return found


def _fault(key: Key, value: Any) -> str | None:
    if key.kind == "num":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"expected a number, found {shown(value)}"
        if not abs(value) < 1e300:
            return f"too large a number: {shown(value)}"
    elif key.kind == "bool" and not isinstance(value, bool):
        return f"expected true or false, found {shown(value)}"
    elif key.kind in ("str", "label") and not isinstance(value, str):
        return f"expected text, found {shown(value)}"
    elif key.kind == "ints":
        if not isinstance(value, list):
            return f"expected a list of whole numbers, found {shown(value)}"
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int):
                return f"expected a list of whole numbers, found {shown(item)} in it"
            if not 0 <= item < 1 << 64:
                return f"ids are 64-bit numbers from 0 on; found {shown(item)}"
    return None


def shown(value: Any) -> str:
    """A value in an error message: short, with its type where that helps."""
    if isinstance(value, str):
        return f"text {value[:40]!r}" + ("..." if len(value) > 40 else "")
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return str(value)
