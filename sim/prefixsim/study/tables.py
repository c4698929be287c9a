"""A sweep's results as files: tidy CSV, Parquet where asked for, and the table a person sees."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from prefixsim.errors import MissingExtraError
from prefixsim.paths import whole_file, write_whole
from prefixsim.study.metrics import lookup, mean_interval
from prefixsim.study.store import canonical
from prefixsim.study.sweep import SweepResult, flat_rows

DEFAULT_COLUMNS = ("hit_rate", "ttft_s.p99", "output_tokens_per_s")


def write_tables(result: SweepResult, out: Path, *, parquet: bool = False) -> list[Path]:
    """Writes points.csv (and points.parquet), each whole or not at all. Returns the paths."""
    rows = list(flat_rows(result))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _cell(v) for k, v in row.items()})
    paths = [out / "points.csv"]
    write_whole(paths[0], text.getvalue(), folders=True)
    spec = result.study.spec
    about: dict[str, object] = {
        "name": spec.name,
        "description": spec.description,
        "axes": result.keys,
        "columns": shown_columns(result),
    }
    about.update({"cost": spec.cost, "latency": spec.latency, "repeats": spec.repeats})
    write_whole(out / "study.json", canonical(about) + "\n")
    write_whole(out / "points.jsonl", "".join(canonical(r.as_json()) + "\n" for r in result.rows))
    if parquet:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise MissingExtraError("Parquet", "parquet") from None
        table = pa.Table.from_pylist([{c: _cell(row.get(c)) for c in columns} for row in rows])
        with whole_file(out / "points.parquet") as part:
            pq.write_table(table, part)
        paths.append(out / "points.parquet")
    return paths


def _cell(value: Any) -> Any:
    return canonical(value) if isinstance(value, dict | list) else value


def shown_columns(result: SweepResult) -> list[str]:
    """Metric names shown in the table: the study's own, else three of each engine."""
    if result.study.spec.columns:
        return list(result.study.spec.columns)
    first = next((row.summary for row in result.rows if row.summary), None)
    return [f"{e}.{m}" for e in (first or {}).get("engines", {}) for m in DEFAULT_COLUMNS]


def points_table(result: SweepResult) -> tuple[list[str], list[list[str]]]:
    """(header, rows): one row a point, repeats as mean ± half width of the 95 % interval."""
    columns = shown_columns(result)
    groups: dict[str, list[Any]] = {}
    for row in result.rows:
        groups.setdefault(canonical(row.axes), []).append(row)
    body = []
    for rows in groups.values():
        line = [_short(v) for v in rows[0].axes.values()]
        summaries = [row.summary for row in rows if row.summary is not None]
        for name in columns:
            values = [v for s in summaries if (v := lookup(s, name)) is not None]
            line.append(_interval(values) if values else "-")
        errors = [row.error for row in rows if row.error]
        line.append(errors[0].splitlines()[0][:60] if errors else "")
        body.append(line)
    header = [*result.keys, *columns, "error"]
    if not any(line[-1] for line in body):
        header.pop()
        body = [line[:-1] for line in body]
    return header, body


def headings(header: list[str], keys: int) -> list[str]:
    """The header for narrow columns: with spaces where a line may break. Of the first `keys` names, which are keys of the
    scenario, as much of the end as tells them apart."""
    out = []
    for i, name in enumerate(header):
        parts = name.split(".")
        if i < keys:
            others = [other.split(".") for other in header[:keys] if other != name]
            keep = next(
                k for k in range(1, len(parts) + 1) if k == len(parts) or all(o[-k:] != parts[-k:] for o in others)
            )
            parts = parts[-keep:]
        out.append(" ".join(parts).replace("_", " "))
    return out


def _interval(values: list[float]) -> str:
    mean, half = mean_interval(values)
    return f"{mean:.4g}" + (f" ± {half:.2g}" if len(values) > 1 else "")


def _short(value: Any) -> str:
    return canonical(value) if isinstance(value, dict | list) else str(value)
