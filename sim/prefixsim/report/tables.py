"""Reads a run's tables (requests, timeline, gaps) in chunks, so that memory does not grow with the run.

Times come out in seconds whatever the file has: a column `x_ns` is found under the name `x_s` (divided) and the reverse
is never needed. Missing numbers are NaN, missing texts "".
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError, MissingExtraError, Problem, nearest
from prefixsim.units import NS_PER_S

F64 = npt.NDArray[np.float64]
CHUNK_ROWS = 50_000
NPZ_LIMIT, LINE_LIMIT = 8 << 30, 1 << 20
SUFFIXES = (".csv", ".npz", ".parquet")


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
        with _npz(path) as data:
            return list(data.files)
    if path.suffix == ".parquet":
        return list(_parquet(path).schema_arrow.names)
    with _open(path) as f:
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
    endless = np.flatnonzero(np.isinf(out))
    if len(endless):
        raise _no_number(path, start + int(endless[0]), name, cells[int(endless[0])])
    return out


def _number(path: Path, line: int, name: str, cell: Any) -> float:
    if cell is None or cell == "":
        return float("nan")
    try:
        return float(cell)
    except (ValueError, OverflowError, TypeError):
        raise _no_number(path, line, name, cell) from None


def _no_number(path: Path, line: int, name: str, cell: Any) -> InputError:
    return InputError(Problem(f"expected a number, found '{str(cell)[:40]}'", file=str(path), line=line, key=name))


# ---- the three file kinds ----------------------------------------------------------------------------------------


def _raw_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    """(file line of the first row, column name -> cells) chunk by chunk."""
    if path.suffix == ".npz":
        yield from _npz_chunks(path, names)
    elif path.suffix == ".parquet":
        row = 1
        for batch in _parquet(path).iter_batches(batch_size=CHUNK_ROWS, columns=names):
            yield row, {name: batch.column(name).to_pylist() for name in names}
            row += batch.num_rows
    else:
        yield from _csv_chunks(path, names)


def _open(path: Path) -> io.TextIOWrapper:
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def bounded_lines(path: Path, f: io.TextIOWrapper) -> Iterator[str]:
    """A file's lines. Raises InputError for one longer than 1 MiB, before more of it is read."""
    number = 0
    while line := f.readline(LINE_LIMIT + 1):
        number += 1
        if len(line) > LINE_LIMIT:
            raise InputError(Problem("a line is longer than 1 MiB: not a table of a run", file=str(path), line=number))
        yield line


def _header(path: Path, reader: Any) -> list[str]:
    try:
        header = next(reader, None)
    except csv.Error as exc:
        raise InputError(Problem(f"is not CSV: {exc}", file=str(path), line=1)) from None
    if not header:
        raise InputError(Problem("is empty: expected a line with column names", file=str(path), line=1))
    return [str(name) for name in header]


def _csv_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    with _open(path) as f:
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


def _npz(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(item.file_size for item in archive.infolist())
        if size > NPZ_LIMIT:
            raise InputError(Problem(f"would unpack to {size >> 30} GiB; at most 8 can be read", file=str(path)))
        return np.load(path, allow_pickle=False)
    except (zipfile.BadZipFile, ValueError, EOFError) as exc:
        raise InputError(Problem(f"is not a whole .npz file: {str(exc)[:200]}", file=str(path))) from None


def _npz_chunks(path: Path, names: list[str]) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    with _npz(path) as data:
        try:
            columns: dict[str, Any] = {name: np.atleast_1d(data[name]) for name in names}
        except (ValueError, zipfile.BadZipFile, EOFError) as exc:
            raise InputError(Problem(f"is damaged: {str(exc)[:200]}", file=str(path))) from None
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InputError(Problem(f"has columns of different lengths: {sorted(lengths)[:6]}", file=str(path)))
    for start in range(0, lengths.pop() if lengths else 0, CHUNK_ROWS):
        yield start + 1, {name: column[start : start + CHUNK_ROWS] for name, column in columns.items()}


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(f"reading {path.name}", "parquet") from None
    try:
        return pq.ParquetFile(path)
    except Exception as exc:  # pyarrow's own tree of errors
        raise InputError(Problem(f"is not a whole Parquet file: {str(exc)[:200]}", file=str(path))) from None
