"""Operator tables (CSV, gzipped or not) as arrays: what `calibrate --fit FOLDER` and `calibrate` itself work on.

A folder holds any of gemm, prefill_attention, decode_attention, allreduce, past_kv_attention (`.csv` or `.csv.gz`), with
the columns of `COLUMNS`. A bad row is an error with file and line; a file that is not there is a missing section.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError, Problem
from prefixsim.paths import bounded_lines, open_regular

F64 = npt.NDArray[np.float64]
S = npt.NDArray[np.str_]
GREATEST = 1e12
"""No size and no time (µs) of a table is above it."""
MAX_ROWS, MAX_CELL, MAX_CHARS = 1_000_000, 100, 1 << 28

COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("gpu", "backend", "kernel_source", "gemm_dtype"), ("m", "n", "k", "latency_us")),
    "prefill_attention": (
        ("gpu", "backend", "kernel_source"),
        ("batch_size", "isl", "num_heads", "num_key_value_heads", "latency_us"),
    ),
    "decode_attention": (
        ("gpu", "backend", "kernel_source"),
        ("batch_size", "num_heads", "num_key_value_heads", "step", "latency_us"),
    ),
    "allreduce": (("gpu", "backend", "ver", "impl"), ("num_gpus", "message_size", "latency_us")),
    "past_kv_attention": (
        ("gpu", "model"),
        ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "n_q_heads", "n_kv_heads", "time_us"),
    ),
}
"""Table -> (text columns, number columns). The last number is the time in µs."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length; numbers are float64. origin: who made the table, for the profile's `source`."""

    name: str
    path: Path
    text: dict[str, S]
    number: dict[str, F64]
    origin: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.number.values())))

    def where(self, mask: npt.NDArray[np.bool_] | None = None, **equal: str) -> Table:
        """The rows where the mask holds and the named text columns have these values."""
        keep = np.ones(len(self), dtype=np.bool_) if mask is None else mask.copy()
        for column, value in equal.items():
            keep &= self.text[column] == value
        return Table(
            self.name,
            self.path,
            {k: v[keep] for k, v in self.text.items()},
            {k: v[keep] for k, v in self.number.items()},
            self.origin,
        )


def read_table(folder: Path, name: str) -> Table | None:
    """One table of a folder; None where there is no such file. Raises InputError with file and line of a bad row."""
    path = next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.is_file()), None)
    if path is None:
        return None
    texts, numbers = COLUMNS[name]
    wanted = (*texts, *numbers)
    cells: list[list[str]] = []  # of the wanted columns

    def bad(message: str, line: int, key: str | None = None) -> InputError:
        return InputError(Problem(message, str(path), line, key=key))

    try:
        with (
            open_regular(path) as raw,
            gzip.open(raw) if path.suffix == ".gz" else raw as f,
            io.TextIOWrapper(f, "utf-8-sig", newline="") as decoded,
        ):
            reader = csv.reader(bounded_lines(path, decoded, MAX_CHARS))
            header = next(reader, [])
            missing = [c for c in wanted if c not in header]
            if missing:
                raise bad(f"missing columns: {', '.join(missing)}", 1)
            places = [header.index(c) for c in wanted]
            for row in reader:
                if len(row) < len(header):
                    raise bad(f"expected {len(header)} columns, found {len(row)}", reader.line_num)
                if len(cells) == MAX_ROWS:
                    raise bad(f"more than {MAX_ROWS:,} rows", reader.line_num)
                cells.append([row[i] for i in places])
                long = next((c for c, text in zip(texts, cells[-1], strict=False) if len(text) > MAX_CELL), None)
                if long is not None:
                    raise bad(f"a text of more than {MAX_CELL} characters", reader.line_num, long)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as exc:
        raise InputError(Problem(f"cannot be read: {exc}", file=str(path))) from None
    if not cells:
        raise InputError(Problem("has no rows", file=str(path)))
    columns = dict(zip(wanted, zip(*cells, strict=True), strict=True))
    number = {c: _numbers(path, c, columns[c], zero=c != numbers[-1]) for c in numbers}
    text = {c: np.array(columns[c], dtype=np.str_) for c in texts}
    return Table(name, path, text, number)


def _numbers(path: Path, column: str, raw: Sequence[str], *, zero: bool) -> F64:
    try:
        values = np.array(raw, dtype=np.float64)
    except ValueError:
        values = np.array([_float(x) for x in raw])
    bad = ~(values <= GREATEST) | (values < 0) | ((values == 0) & (not zero))
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(
            Problem(f"expected a number, not negative, found {raw[i]!r:.60}", str(path), i + 2, key=column)
        )
    return values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
