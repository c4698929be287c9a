# mypy: disable-error-code="no-untyped-call"
"""Tables of a run as CSV or NumPy files: integer columns, ns that are written as seconds, and texts by index."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prefixsim.units import NS_PER_S
from prefixsim.workload.table import I64

CHUNK_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Column:
    """values int64 (n,). kind: "int"; "seconds" (ns; negative: never); "text" (index into `texts`, -1: none)."""

    name: str
    values: I64
    kind: str = "int"
    texts: Sequence[str] = ()


def write_csv(path: Path, parts: Sequence[Sequence[Column]]) -> None:
    """Writes tables with the same columns below one another. Times are exact to the nanosecond; never is an empty cell."""
    from prefixsim.output.csv_kernels import KIND_INT, KIND_SECONDS, KIND_TEXT, write_rows

    kinds_of = {"int": KIND_INT, "seconds": KIND_SECONDS, "text": KIND_TEXT}
    with path.open("wb") as f:
        f.write((",".join(c.name for c in parts[0]) + "\n").encode())
        for columns in parts:
            n = len(columns[0].values)
            if n == 0:
                continue
            values = np.ascontiguousarray(np.stack([c.values for c in columns], axis=1), dtype=np.int64)
            kinds = np.array([kinds_of[c.kind] for c in columns], dtype=np.int8)
            text_column, text_offset, text_bytes, longest = _texts(columns)
            row_bytes = sum(longest[i] if c.kind == "text" else 21 for i, c in enumerate(columns)) + len(columns) + 1
            rows = max(1, min(CHUNK_ROWS, (64 << 20) // row_bytes))
            out = np.empty(rows * row_bytes, dtype=np.uint8)
            for first in range(0, n, rows):
                last = min(first + rows, n)
                size = write_rows(out, values, kinds, text_column, text_offset, text_bytes, first, last)
                f.write(out[:size].tobytes())


def _texts(columns: Sequence[Column]) -> tuple[I64, I64, np.ndarray, list[int]]:
    """(first text of each column, offsets, all bytes, longest text of each column); cells are quoted as CSV wants."""
    first = np.zeros(len(columns), dtype=np.int64)
    offsets, blob, longest = [0], bytearray(), []
    for i, column in enumerate(columns):
        first[i] = len(offsets) - 1
        most = 0
        for text in column.texts:
            raw = _cell(text)
            blob += raw
            offsets.append(len(blob))
            most = max(most, len(raw))
        longest.append(most)
    return first, np.array(offsets, dtype=np.int64), np.frombuffer(bytes(blob) or b"\0", dtype=np.uint8).copy(), longest


def _cell(text: str) -> bytes:
    if not any(c in text for c in ',"\n\r'):
        return text.encode("utf-8", "replace")
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([text])
    return buffer.getvalue().encode("utf-8", "replace")


def write_npz(path: Path, parts: Sequence[Sequence[Column]]) -> None:
    """The same table as one compressed NumPy file: a column an array; seconds are float64 (NaN: never), texts str."""
    out: dict[str, np.ndarray] = {}
    for i, column in enumerate(parts[0]):
        pieces = [_plain(columns[i]) for columns in parts]
        out[column.name] = np.concatenate(pieces)
    with path.open("wb") as f:
        np.savez_compressed(f, **out)  # type: ignore[arg-type]


def _plain(column: Column) -> np.ndarray:
    if column.kind == "seconds":
        return np.where(column.values < 0, np.nan, column.values / NS_PER_S)
    if column.kind == "text":
        texts = np.array([*column.texts, ""])
        return texts[column.values]
    return column.values
