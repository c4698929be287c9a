"""Reads a run's tables (requests, timeline, gaps) in chunks, so that memory does not grow with the run.

Times come out in seconds whatever the file has: a column `x_ns` is found under the name `x_s` (divided) and the reverse
is never needed. Times that did not come are NaN or below 0, missing texts ""; a count is always there.
"""

from __future__ import annotations

import contextlib
import csv
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError, MissingExtraError, Problem, nearest
from prefixsim.paths import bounded_lines, open_regular, open_text
from prefixsim.units import NS_PER_S

F64 = npt.NDArray[np.float64]
CHUNK_ROWS = 50_000
NPZ_LIMIT = 8 << 30
GREATEST = 1e18
"""No time, count or size of a run is above this."""
SUFFIXES = (".csv", ".npz", ".parquet")
NPZ_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError, TypeError, LookupError,
    SyntaxError, OverflowError, RuntimeError,
)  # fmt: skip
"""What zipfile and NumPy raise at a damaged file."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows: numbers[name] float64 (rows,), texts[name] a list of str; `rows` of them."""

    rows: int
    numbers: dict[str, F64]
    texts: dict[str, list[str]]

    def coded(self, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
        """A text column as its different texts, in order of appearance, and for each row the number of its text."""
        codes: dict[str, int] = {}
        numbers = [codes.setdefault(text, len(codes)) for text in self.texts[name]]
        return list(codes), np.array(numbers, dtype=np.int64)

    def by(self, name: str, texts: Collection[str]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Each of `texts` that occurs in a column, and the rows that have it."""
        names, codes = self.coded(name)
        for code, text in enumerate(names):
            if text in texts:
                yield text, codes == code

    def where(self, name: str, texts: Collection[str]) -> npt.NDArray[np.bool_]:
        """For each row whether its text in a column is one of `texts`."""
        names, codes = self.coded(name)
        return np.array([n in texts for n in names], dtype=np.bool_)[codes]


def find_table(folder: Path, name: str) -> Path | None:
    """The file of table `name` in a run folder, None where there is none."""
    return next((p for s in SUFFIXES if (p := folder / f"{name}{s}").is_file()), None)


def columns_of(path: Path) -> list[str]:
    """The table's column names, in order, as the file has them."""
    if path.suffix == ".npz":
        with _npz(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    if path.suffix == ".parquet":
        with _parquet(path) as table:
            return list(table.schema_arrow.names)
    with open_text(path, newline="") as f:
        return _header(path, csv.reader(bounded_lines(path, f), strict=True))


def read_chunks(
    path: Path, numbers: Sequence[str], texts: Sequence[str] = (), optional: Sequence[str] = ()
) -> Iterator[Chunk]:
    """Rows of a table in order, CHUNK_ROWS at a time, with the columns asked for (`optional` ones where they exist).

    Raises InputError with file, line and column for missing columns, ragged rows and cells that are no numbers.
    """
    have = columns_of(path)
    wanted = {name: _source(name, have) for name in (*numbers, *texts)}
    missing = [name for name, source in wanted.items() if source is None and name not in optional]
    if missing:
        raise InputError([Problem(f"has no column '{m}'{nearest(m, have)}", file=str(path), line=1) for m in missing])
    found = {name: source for name, source in wanted.items() if source is not None}
    number_names = [n for n in numbers if n in found]
    text_names = [n for n in texts if n in found]
    for start, columns in _raw_chunks(path, sorted(set(found.values()))):
        out = {name: _to_numbers(path, start, name, columns[found[name]]) for name in number_names}
        for name in number_names:
            if found[name] != name:
                out[name] = out[name] / NS_PER_S
        words = {name: _words(columns[found[name]]) for name in text_names}
        yield Chunk(len(next(iter(columns.values()), ())), out, words)


def _words(cells: Sequence[Any]) -> list[str]:
    if isinstance(cells, np.ndarray):
        cells = cells.tolist()
    return [v if type(v) is str else _word(v) for v in cells]


def _word(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _source(name: str, have: Sequence[str]) -> str | None:
    if name in have:
        return name
    ns = f"{name[:-2]}_ns"
    return ns if name.endswith("_s") and ns in have else None


def _to_numbers(path: Path, start: int, name: str, cells: Sequence[Any]) -> F64:
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iufb":
        out = cells.astype(np.float64)
    else:
        try:
            out = np.array(cells, dtype=np.float64)
        except (ValueError, OverflowError):
            out = np.array([_number(path, start + i, name, cell) for i, cell in enumerate(cells)])
    may_be_negative = (name.endswith("_s") and name != "gap_s") or name in ("session", "turn", "replica")
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(np.abs(out) > GREATEST if may_be_negative else ~((out >= 0) & (out <= GREATEST)))
    if len(wrong):
        raise _no_number(path, start + int(wrong[0]), name, cells[int(wrong[0])], may_be_negative)
    out[np.isnan(out)] = np.nan  # a damaged file may hold NaNs that warn where they are used
    return out


def _number(path: Path, line: int, name: str, cell: Any) -> float:
    if cell is None or cell == "":
        return float("nan")
    try:
        return float(cell)
    except (ValueError, OverflowError, TypeError):
        raise _no_number(path, line, name, cell) from None


def _no_number(path: Path, line: int, name: str, cell: Any, may_be_negative: bool = True) -> InputError:
    wanted = "a number" if may_be_negative else "a number from 0 up"
    return InputError(Problem(f"expected {wanted}, found '{str(cell)[:40]}'", file=str(path), line=line, key=name))


# ---- the three file kinds ----------------------------------------------------------------------------------------


def _raw_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    """(file line of the first row, column name -> cells) chunk by chunk."""
    if path.suffix == ".npz":
        yield from _npz_chunks(path, names)
    elif path.suffix == ".parquet":
        yield from _parquet_chunks(path, names)
    else:
        yield from _csv_chunks(path, names)


def _header(path: Path, reader: Any) -> list[str]:
    try:
        header = next(reader, None)
    except csv.Error as exc:
        raise InputError(Problem(f"is not CSV: {exc}", file=str(path), line=1)) from None
    if not header:
        raise InputError(Problem("is empty: expected a line with column names", file=str(path), line=1))
    return [str(name) for name in header]


def _csv_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    with open_text(path, newline="") as f:
        reader = csv.reader(bounded_lines(path, f), strict=True)
        header = _header(path, reader)
        places = {name: header.index(name) for name in names}
        rows: list[list[str]] = []
        start = 2
        try:
            for row in reader:
                if len(row) != len(header):
                    raise InputError(
                        Problem(
                            f"expected {len(header)} cells, found {len(row)}; the file may have been cut short",
                            file=str(path),
                            line=reader.line_num,
                        )
                    )
                rows.append(row)
                if len(rows) == CHUNK_ROWS:
                    yield start, {name: [r[i] for r in rows] for name, i in places.items()}
                    start, rows = reader.line_num + 1, []
        except csv.Error as exc:
            raise InputError(Problem(f"is not CSV: {exc}", file=str(path), line=reader.line_num)) from None
        if rows:
            yield start, {name: [r[i] for r in rows] for name, i in places.items()}


@contextlib.contextmanager
def _npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, opened. Its size is known before anything is unpacked."""
    with _regular(path) as f:
        try:
            archive = zipfile.ZipFile(f)
        except NPZ_FAULTS as exc:
            raise InputError(Problem(f"is not a whole .npz file: {str(exc)[:200]}", file=str(path))) from None
        size = sum(item.file_size for item in archive.infolist())
        if size > NPZ_LIMIT:
            raise InputError(Problem(f"would unpack to {size >> 30} GiB; at most 8 can be read", file=str(path)))
        yield archive


def _npz_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    with _npz(path) as archive:
        columns: dict[str, npt.NDArray[Any]] = {}
        for name in names:
            try:
                columns[name] = _array(archive, f"{name}.npy")
            except NPZ_FAULTS as exc:
                raise InputError(Problem(f"is damaged: {str(exc)[:200]}", file=str(path), key=name)) from None
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InputError(Problem(f"has columns of different lengths: {sorted(lengths)[:6]}", file=str(path)))
    for start in range(0, lengths.pop() if lengths else 0, CHUNK_ROWS):
        part: dict[str, Any] = {name: column[start : start + CHUNK_ROWS] for name, column in columns.items()}
        yield start + 1, part


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """One column. Raises one of NPZ_FAULTS before it takes memory for what the file does not hold. Nothing is unpickled."""
    item = archive.getinfo(name)
    if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("compressed in a way that NumPy does not write")
    with archive.open(item) as f:
        version = np.lib.format.read_magic(f)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"an array of version {version}")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(f)
        if len(shape) != 1 or dtype.kind not in "iufbSU":
            raise ValueError(f"expected a column of numbers or texts, found {dtype} of shape {str(shape)[:40]}")
        if shape[0] < 0 or shape[0] * dtype.itemsize != item.file_size - f.tell() or not dtype.itemsize:
            raise ValueError(f"{item.file_size} bytes cannot be {shape[0]} of {dtype}")
        return np.frombuffer(f.read(), dtype=dtype)


def _parquet_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    row = 1
    with _parquet(path) as table:
        batches = table.iter_batches(batch_size=CHUNK_ROWS, columns=names)
        while True:
            try:
                batch = next(batches, None)
                columns = {} if batch is None else {name: batch.column(name).to_pylist() for name in names}
            except Exception as exc:  # pyarrow's own tree of errors
                raise InputError(Problem(f"is damaged: {str(exc)[:200]}", file=str(path))) from None
            if batch is None:
                return
            yield row, columns
            row += batch.num_rows


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(f"reading {path.name}", "parquet") from None
    with _regular(path) as f:
        try:
            table = pq.ParquetFile(f)
        except Exception as exc:  # pyarrow's own tree of errors
            raise InputError(Problem(f"is not a whole Parquet file: {str(exc)[:200]}", file=str(path))) from None
        yield table


def _regular(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as exc:
        raise InputError(Problem(f"cannot be read: {exc.strerror or exc}", file=str(path))) from None
