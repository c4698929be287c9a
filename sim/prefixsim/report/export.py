"""A run's tables and metrics in formats that other programs read."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, MissingExtraError, nearest
from prefixsim.paths import whole_file
from prefixsim.report.chrome_trace import chrome_trace
from prefixsim.report.folder import RunFolder
from prefixsim.report.openmetrics import time_series
from prefixsim.report.progress import track
from prefixsim.report.prometheus import chosen, snapshot
from prefixsim.report.tables import Chunk, columns_of, find_table, read_chunks

FORMATS = ("csv", "parquet", "prometheus", "openmetrics", "chrome-trace")
TABLES = ("requests", "timeline", "gaps")
TEXT_COLUMNS = {"engine", "id", "group", "session", "tenant", "status"}


def export(
    run: RunFolder,
    fmt: str,
    out: Path | None,
    *,
    table: str = "requests",
    engines: Sequence[str] = (),
    every_s: float = 15.0,
    start_unix_s: float = 0.0,
    from_s: float = 0.0,
    to_s: float = float("inf"),
) -> None:
    """Writes the run in `fmt` (FORMATS) to `out` (None: stdout; not for parquet). A name that ends in .gz is compressed.

    table: requests, timeline or gaps, for csv and parquet. engines: names, none for all. every_s, start_unix_s: openmetrics.
    from_s, to_s: chrome-trace. Raises InputError, MissingExtraError (pyarrow) and OutputError.
    """
    if fmt not in FORMATS:
        raise InputError(f"--format: unknown format '{fmt}'{nearest(fmt, FORMATS)}")
    if table not in TABLES:
        raise InputError(f"--table: unknown table '{table}'{nearest(table, TABLES)}")
    chosen(run, engines)
    if fmt == "parquet":
        if out is None:
            raise InputError("--format parquet needs --out FILE: it is no text")
        _write_parquet(run, table, engines, out)
    elif fmt == "csv":
        write_text(out, _csv(run, table, engines))
    elif fmt == "chrome-trace":
        write_text(out, chrome_trace(run, engines, from_s=from_s, to_s=to_s))
    else:
        lines = (
            snapshot(run, engines)
            if fmt == "prometheus"
            else time_series(run, engines, every_s=every_s, start_unix_s=start_unix_s)
        )
        write_text(out, (f"{line}\n" for line in lines))


def write_text(out: Path | None, pieces: Iterable[str]) -> None:
    """Writes text to a file, whole or not at all (.gz: compressed), or to stdout. Shows progress where it takes long."""
    if out is None:
        for piece in pieces:
            sys.stdout.write(piece)
        return
    pieces = track(pieces, f"writing {out.name}", unit="pieces")
    with whole_file(out) as part:
        if out.suffix == ".gz":
            with part.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
                for piece in pieces:
                    packed.write(piece.encode(errors="backslashreplace"))
        else:
            with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as f:
                f.writelines(pieces)


def _rows(run: RunFolder, table: str, engines: Sequence[str]) -> tuple[list[str], Iterator[Chunk]]:
    """(column names as they will be written, chunks)."""
    path = find_table(run.path, table)
    if path is None:
        raise InputError(f"{run.path}: the run has no {table} table")
    names = [f"{c[:-3]}_s" if c.endswith("_ns") else c for c in columns_of(path)]
    texts = [c for c in names if c in TEXT_COLUMNS]
    chunks = read_chunks(path, [c for c in names if c not in texts], texts)
    return names, (_only(chunk, engines) for chunk in chunks) if engines else chunks


def _only(chunk: Chunk, engines: Sequence[str]) -> Chunk:
    if "engine" not in chunk.texts:
        return chunk
    keep = chunk.where("engine", engines)
    texts = {k: [t for t, good in zip(v, keep, strict=True) if good] for k, v in chunk.texts.items()}
    return Chunk(int(keep.sum()), {k: v[keep] for k, v in chunk.numbers.items()}, texts)


def _csv(run: RunFolder, table: str, engines: Sequence[str]) -> Iterator[str]:
    names, chunks = _rows(run, table, engines)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for chunk in chunks:
        columns = [
            chunk.texts[c] if c in chunk.texts else [_spelt(v) for v in chunk.numbers[c].tolist()] for c in names
        ]
        writer.writerows(zip(*columns, strict=True))
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _spelt(value: float) -> str:
    if value != value:  # noqa: PLR0124 - NaN: an empty cell
        return ""
    return (
        str(int(value))
        if value.is_integer()
        else f"{value:.9f}".rstrip("0")
        if 1e-9 <= abs(value) < 1e9
        else repr(value)
    )


def _write_parquet(run: RunFolder, table: str, engines: Sequence[str], out: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet", "parquet") from None
    names, chunks = _rows(run, table, engines)

    def kind(name: str) -> Any:
        return pa.string() if name in TEXT_COLUMNS else pa.float64() if name.endswith("_s") else pa.int64()

    schema = pa.schema([(name, kind(name)) for name in names])
    with whole_file(out) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        for chunk in chunks:
            arrays = [
                pa.array(chunk.texts[c], pa.string())
                if c in chunk.texts
                else pa.array(chunk.numbers[c], pa.float64(), from_pandas=True).cast(kind(c))
                for c in names
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
