"""LMCache agent traces (JSON lines, one file or a folder): timestamp in µs, input and output text, session_id.

Lines are not sorted by time. Inputs are flattened text, not messages.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import numpy as np

from prefixsim.errors import TraceError
from prefixsim.workload import links
from prefixsim.workload.checks import time_decision, times_ns
from prefixsim.workload.edit import sort_by_arrival
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.formats.texts import Texts
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.rows import BadRows, Key, read_rows, unknown_note
from prefixsim.workload.table import Source, Workload, make_workload

KEYS = (
    Key("timestamp", "num", required=True),
    Key("input", "str", required=True),
    Key("output", "str"),
    Key("session_id", "label"),
)


def sniff(head: Head) -> str | None:
    """Rows with timestamp, input and session_id."""
    row = head.row
    if row is not None and {"timestamp", "input", "session_id"} <= row.keys() and isinstance(row["input"], str):
        return "first row has timestamp, input and session_id"
    return None


def read(context: ReadContext) -> Workload:
    """Reads a file, or all files of a folder, in order of time."""
    options, path = context.options, context.path
    paths = sorted(p for p in path.iterdir() if p.is_file() and ".json" in p.name) if path.is_dir() else [path]
    texts, digest = Texts(context), hashlib.sha256()
    unit = options.time_unit or "us"
    stamps: list[float] = []
    lines: list[int] = []
    sessions: list[int] = []
    names: dict[str, int] = {}
    counts = {"files": len(paths), "rows": 0, "bad_rows": 0, "empty_inputs": 0, "empty_outputs": 0, "empty_files": 0}
    notes: list[str] = []
    for p in paths:
        file = TraceFile(p)
        bad = BadRows(file, options.on_bad_row == "skip")
        table = read_rows(file, KEYS, bad)
        digest.update(os.fsencode(f"{p.name} {file.sha256}\n"))
        counts["empty_files"] += table.n == 0 and not bad.count
        keep = np.ones(table.n, dtype=np.bool_)
        times_ns(table.number["timestamp"], unit, table.line, bad, keep, "timestamp")
        bad.check()
        counts["rows"] += table.n
        counts["bad_rows"] += bad.count
        for r in np.flatnonzero(keep).tolist():
            output = table.text["output"][r] or ""
            tokens = texts.tokenizer.encode(output)
            if texts.add(texts.tokenizer.encode(table.text["input"][r] or ""), tokens):
                counts["empty_inputs"] += 1
                continue
            counts["empty_outputs"] += not tokens
            stamps.append(float(table.number["timestamp"][r]))
            lines.append(int(table.line[r]))
            name = table.text["session_id"][r]
            sessions.append(-1 if name is None else names.setdefault(name, len(names)))
        notes += [n for n in (bad.note(), unknown_note(table, KEYS)) if n]
    if texts.n == 0:
        raise TraceError(f"{path}: holds no requests")
    quiet = BadRows(TraceFile(path), True)
    every = np.ones(texts.n, dtype=np.bool_)
    arrival = times_ns(np.array(stamps), unit, np.array(lines, dtype=np.int64), quiet, every, "timestamp", rebase=True)
    codes = np.array(sessions, dtype=np.int32)
    if counts["empty_inputs"]:
        notes.append(f"{counts['empty_inputs']:,} rows with an empty input are left out")
    if counts["empty_outputs"]:
        notes.append(f"{counts['empty_outputs']:,} rows with an empty output count as one output token")
    if counts["empty_files"]:
        notes.append(f"{counts['empty_files']:,} files are empty")
    w = make_workload(
        source=Source(
            kind="lmcache",
            path=str(path),
            sha256=digest.hexdigest(),
            decisions=(time_decision(arrival, unit, options), *texts.decisions(chat=False)),
            counts=counts,
            notes=tuple(notes),
        ),
        **texts.columns(),
        arrival_ns=arrival,
        session=codes,
        session_names=tuple(names),
    )
    w = sort_by_arrival(w)
    return replace(w, turn=links.turns(w.session))


FORMAT = register(
    Format(
        "lmcache",
        "LMCache agent text",
        "text",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"tokenizer", "time_unit"}),
        folder=True,
    )
)
