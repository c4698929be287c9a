"""The run folder: scenario.resolved.yaml, summary.json, requests, timeline and gaps tables, report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixsim.analysis.summary import pooled_gaps
from prefixsim.output.folder import atomic_folder
from prefixsim.output.tables import Column, write_csv, write_npz
from prefixsim.records import (
    LEDGER_PARTS,
    REQUEST_COLUMNS,
    SHOWN_COLUMNS,
    STATUS_NAMES,
    TIMELINE_COLUMNS,
    TL_KV_USED_TOKENS,
    TL_RUNNING,
    TL_WAITING,
    RunRecord,
)
from prefixsim.workload.table import I64, Workload

if TYPE_CHECKING:
    from prefixsim.pipeline.run import Run

CSV_ROWS = 200_000
TIMELINE_ROWS = 5_000
GAP_ROWS = 20_000
ESCAPED = "backslashreplace"
"""How names of files that are not UTF-8 are written."""


def write_run(folder: Path, run: Run, scenario_yaml: str, files: Mapping[str, str] | None = None) -> None:
    """Writes everything under a temporary name, then renames; `files` are more texts by name. Raises OutputError."""
    options = run.scenario.output
    with atomic_folder(folder) as place:
        (place / "scenario.resolved.yaml").write_text(scenario_yaml, encoding="utf-8", errors=ESCAPED)
        (place / "summary.json").write_text(summary_text(run.summary), encoding="utf-8", errors=ESCAPED)
        for name, text in (files or {}).items():
            (place / name).write_text(text, encoding="utf-8", errors=ESCAPED)
        if options.requests != "none":
            parts = [
                request_columns(run.workload, record, ledger)
                for record, ledger in zip(run.records, run.ledgers, strict=True)
            ]
            rows = sum(len(part[0].values) for part in parts)
            if options.requests == "csv" or (options.requests == "auto" and rows <= CSV_ROWS):
                write_csv(place / "requests.csv", parts)
            else:
                write_npz(place / "requests.npz", parts)
        if options.timeline:
            names = [record.engine for record in run.records]
            write_csv(place / "timeline.csv", [timeline_columns(names, i, r) for i, r in enumerate(run.records)])
        write_csv(place / "gaps.csv", [gap_columns(run.records, i) for i in range(len(run.records))])
        if options.report:
            from prefixsim.report.html import write_report

            write_report(place)


def summary_text(summary: dict[str, Any]) -> str:
    """summary.json: sorted keys, no NaN."""
    return json.dumps(summary, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _times_named(name: str) -> tuple[str, str]:
    return (name[:-3] + "_s", "seconds") if name.endswith("_ns") else (name, "int")


def request_columns(w: Workload, record: RunRecord, ledger: I64 | None) -> list[Column]:
    """One row for each request: who it is, the request table, its lengths, the ledger."""
    n, index = w.n, np.arange(w.n, dtype=np.int64)
    rows = record.requests
    ids = w.ids if w.ids is not None else None
    out = [
        Column("engine", np.zeros(n, dtype=np.int64), "text", (record.engine,)),
        Column("id", index, "text", ids) if ids is not None else Column("id", index),
    ]
    for name in ("group", "session", "tenant"):
        names = getattr(w, f"{name}_names")
        values = getattr(w, name).astype(np.int64)
        if name == "session" and not names:
            out.append(Column(name, values))
        else:
            out.append(Column(name, values if names else np.full(n, -1), "text", names))
        if name == "session":
            out.append(Column("turn", np.where(values < 0, -1, w.turn.astype(np.int64))))
    for i, column in enumerate(REQUEST_COLUMNS):
        if column == "status":
            out.append(Column("status", rows[:, i], "text", STATUS_NAMES))
        elif column in SHOWN_COLUMNS:
            shown, kind = _times_named(column)
            out.append(Column(shown, rows[:, i], kind))
    out.append(Column("prompt_tokens", w.prompt_tokens))
    out.append(Column("output_tokens", w.output_tokens))
    if ledger is not None:
        out += [Column(part, ledger[:, i]) for i, part in enumerate(LEDGER_PARTS)]
    return out


def timeline_columns(names: list[str], engine: int, record: RunRecord) -> list[Column]:
    """Steps of all replicas, thinned to about `TIMELINE_ROWS`."""
    each = max(TIMELINE_ROWS // max(len(record.replicas), 1), 1)
    pieces, numbers = [], []
    for replica in record.replicas:
        thin = thinned(replica.timeline, each)
        pieces.append(thin)
        numbers.append(np.full(len(thin), replica.replica, dtype=np.int64))
    table = np.concatenate(pieces) if pieces else np.zeros((0, len(TIMELINE_COLUMNS)), dtype=np.int64)
    out = [
        Column("engine", np.full(len(table), engine, dtype=np.int64), "text", names),
        Column("replica", np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)),
    ]
    for i, column in enumerate(TIMELINE_COLUMNS):
        shown, kind = _times_named(column)
        out.append(Column(shown, table[:, i], kind))
    return out


def thinned(timeline: I64, most: int) -> I64:
    """At most `most` rows: of each stretch of steps those with the least and the most KV in use, waiting and running, and
    the last row of all. Rows are kept as they are, so that cumulative columns stay right."""
    n, watched = len(timeline), (TL_KV_USED_TOKENS, TL_WAITING, TL_RUNNING)
    if n <= most:
        return timeline
    stretches = max((most - 1) // (2 * len(watched)), 1)
    edges = np.linspace(0, n, stretches + 1).astype(np.int64)
    keep = {n - 1}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for column in watched if most > 2 * len(watched) else ():
            values = timeline[first:last, column]
            keep |= {first + int(values.argmin()), first + int(values.argmax())}
    return timeline[sorted(keep)]


def gap_columns(records: tuple[RunRecord, ...], engine: int) -> list[Column]:
    """Inter-token gaps and how often each occurred; where there are more than `GAP_ROWS` different ones, neighbours are
    joined on a grid of equal relative width (the summary's percentiles are from the exact ones)."""
    gaps = pooled_gaps(records[engine].replicas)
    bits = 30
    while len(gaps) > GAP_ROWS:
        bits -= 1
        gaps = _joined(gaps, bits)
    n = len(gaps)
    return [
        Column("engine", np.full(n, engine, dtype=np.int64), "text", [r.engine for r in records]),
        Column("gap_s", gaps[:, 0], "seconds"),
        Column("count", gaps[:, 1]),
    ]


def _joined(gaps: I64, bits: int) -> I64:
    """Values cut to their leading `bits` binary digits (to the middle of the interval), equal ones joined."""
    width = np.maximum(np.floor(np.log2(np.maximum(gaps[:, 0], 1))).astype(np.int64) + 1 - bits, 0)
    values = (gaps[:, 0] >> width << width) + ((1 << width) >> 1)
    unique, inverse = np.unique(values, return_inverse=True)
    counts = np.zeros(len(unique), dtype=np.int64)
    np.add.at(counts, inverse.reshape(-1), gaps[:, 1])
    return np.stack([unique, counts], axis=1)
