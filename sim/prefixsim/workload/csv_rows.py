"""CSV traces: columns by header name, in bounded memory, errors with their line."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from prefixsim.workload.lines import TraceFile
from prefixsim.workload.rows import BadRows
from prefixsim.workload.table import I64

_STAMP = re.compile(r"(19[7-9]\d|2[01]\d\d)-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?")


def header(file: TraceFile) -> list[str]:
    """Column names of the first line."""
    first = file.head().split(b"\n", 1)[0]
    return [c.strip().strip('"') for c in first.decode("utf-8", "replace").split(",")]


def read_columns(
    file: TraceFile, numbers: list[str], texts: list[str], bad: BadRows
) -> tuple[I64, dict[str, npt.NDArray[np.float64]], dict[str, list[str]]]:
    """(line int64 (n,), number columns float64, text columns). Rows of another width, or whose numbers aren't, are bad."""
    names = header(file)
    where_number = [(c, names.index(c)) for c in numbers]
    where_text = [(c, names.index(c)) for c in texts]
    lines = array("q")
    values = {c: array("d") for c in numbers}
    words: dict[str, list[str]] = {c: [] for c in texts}
    reader = csv.reader(_text(file, bad))
    try:
        next(reader, None)
        for row in reader:
            line = reader.line_num
            if not row:
                continue
            if len(row) != len(names):
                bad.add(f"{len(row)} fields, {len(names)} expected", line)
                continue
            parsed = []
            for c, k in where_number:
                try:
                    parsed.append(float(row[k]))
                except ValueError:
                    bad.add(f"expected a number, found {row[k][:40]!r}", line, c)
                    break
            if len(parsed) < len(where_number):
                continue
            lines.append(line)
            for (c, _), value in zip(where_number, parsed, strict=True):
                values[c].append(value)
            for c, k in where_text:
                words[c].append(row[k])
    except csv.Error as exc:
        raise file.error(f"not valid CSV: {exc}", reader.line_num) from None
    return (
        np.frombuffer(lines, dtype=np.int64) if lines else np.zeros(0, np.int64),
        {c: np.frombuffer(v, dtype=np.float64) if v else np.zeros(0) for c, v in values.items()},
        words,
    )


def _text(file: TraceFile, bad: BadRows) -> Iterator[str]:
    line = 0
    for block in file.blocks(1 << 20):
        for raw in block.split(b"\n")[:-1]:
            line += 1
            try:
                yield raw.decode().rstrip("\r").replace("\0", "\ufffd") + "\n"
            except UnicodeDecodeError:
                bad.add("not UTF-8 text", line)
                yield "\n"


def stamps_ns(texts: list[str], lines: I64, bad: BadRows, keep: npt.NDArray[np.bool_], key: str) -> I64:
    """Date-and-time stamps (up to 9 fractional digits, zone `Z` or an offset ignored alike) to int64 ns since 1970."""
    trimmed = [_without_zone(t.strip()) for t in texts]
    out = np.zeros(len(trimmed), dtype=np.int64)
    for r, t in enumerate(trimmed):
        if not _STAMP.fullmatch(t):
            if keep[r]:
                bad.add(f"expected a date and time, found {texts[r][:40]!r}", int(lines[r]), key)
            keep[r] = False
            trimmed[r] = "1970-01-01"
    try:
        return np.array(trimmed, dtype="datetime64[ns]").astype(np.int64) if trimmed else out
    except (ValueError, OverflowError):
        pass
    for r, t in enumerate(trimmed):  # some day does not exist: find it
        try:
            out[r] = np.datetime64(t, "ns").astype(np.int64)
        except (ValueError, OverflowError):
            bad.add(f"no such date and time: {texts[r][:40]!r}", int(lines[r]), key)
            keep[r] = False
    return out


def _without_zone(text: str) -> str:
    if text.endswith("Z"):
        return text[:-1]
    if len(text) > 6 and text[-6] in "+-" and text[-3] == ":":
        return text[:-6]
    return text
