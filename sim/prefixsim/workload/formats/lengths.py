"""What lengths-only traces share: contents are unknown, or come from a stated model."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.workload import links
from prefixsim.workload.checks import time_decision
from prefixsim.workload.csv_rows import header
from prefixsim.workload.formats.registry import ReadContext
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.rows import MAX_TOKENS, BadRows
from prefixsim.workload.sharing import shared_content, unknown_content
from prefixsim.workload.table import I32, I64, Decision, Source, Workload, make_workload


def pick(file: TraceFile, wanted: tuple[str, ...]) -> list[str]:
    """Checks that a CSV has the wanted columns. Raises TraceError naming what is missing."""
    names = header(file)
    missing = [c for c in wanted if c not in names]
    if missing:
        raise file.error(
            f"no column {', '.join(map(repr, missing))} (found {', '.join(repr(n[:40]) for n in names[:12])})", 1
        )
    return list(wanted)


def whole_column(value: Any, lines: I64, bad: BadRows, keep: Any, key: str, low: int) -> I64:
    """A float column as token counts; rows where it isn't one are bad."""
    wrong = ~((value >= low) & (value <= MAX_TOKENS) & (np.floor(value) == value))
    for r in np.flatnonzero(wrong & keep).tolist():
        bad.add(f"expected a whole number from {low} to {MAX_TOKENS:,}, found {value[r]:.15g}", int(lines[r]), key)
    keep &= ~wrong
    return np.where(wrong, 0, value).astype(np.int64)


def lengths_workload(
    context: ReadContext, file: TraceFile, kind: str, bad: BadRows, *, arrival: I64, prompts: I64, outputs: I64,
    unit: str, failed: Any, n_rows: int, session: I32 | None = None, cumulative: bool = False,
    decisions: tuple[Decision, ...] = (), **columns: Any,
) -> Workload:  # fmt: skip
    """A workload from lengths of good rows, in order of arrival (content models need it), failed ones dropped or kept."""
    options = context.options
    bad.check()
    rows = np.flatnonzero(~failed) if options.failed_rows == "drop" else np.arange(prompts.shape[0])
    if rows.shape[0] == 0:
        raise file.error("holds no requests" if not bad.count else f"holds no good rows; the first: {bad.problems[0]}")
    moved = int((arrival[rows][1:] < arrival[rows][:-1]).sum())
    rows = rows[np.argsort(arrival[rows], kind="stable")]
    arrival = arrival[rows] - arrival[rows[0]]
    prompts, outputs = prompts[rows], np.maximum(outputs[rows], 1)
    session = session[rows] if session is not None else None
    more: list[str] = []
    if failed.any():
        what = "left out" if options.failed_rows == "drop" else "kept with one output token"
        more.append(f"{int(failed.sum()):,} rows without output tokens (failed requests) are {what}")
    if moved:
        more.append(f"{moved:,} rows were out of order; requests are replayed in order of arrival")
    if options.sharing is None:
        content = unknown_content(prompts, outputs)
        more.append("the file has lengths only: what prompts share is unknown; `sharing:` gives a model of it")
        made: tuple[Decision, ...] = ()
    else:
        before = _previous(session) if session is not None and cumulative else None
        content, decision = shared_content(prompts, outputs, options.sharing, context.seed, before)
        made = (decision,)
        more.append("contents are synthetic (`sharing:`): hit rates say what the model says, not what the traffic had")
    for name, value in list(columns.items()):
        if isinstance(value, np.ndarray) and value.shape[0] >= rows.max() + 1:
            columns[name] = value[rows]
    return make_workload(
        source=Source(
            kind=kind,
            path=str(context.path),
            sha256=file.sha256,
            content_known=options.sharing is not None,
            synthetic=options.sharing is not None,
            decisions=(time_decision(arrival, unit, options), *decisions, *made),
            counts={
                "rows": n_rows,
                "bad_rows": bad.count,
                "failed_rows": int(failed.sum()),
                "rows_out_of_order": moved,
            },
            notes=tuple(n for n in (bad.note(), *more) if n),
        ),
        **content,
        arrival_ns=arrival,
        session=session,
        turn=None if session is None else links.turns(session),
        **columns,
    )


def _previous(session: I32) -> I64:
    """The request before each in its session, -1 for the first or without a session."""
    order = np.argsort(session, kind="stable")
    out = np.full(session.shape[0], -1, dtype=np.int64)
    same = session[order][1:] == session[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    out[session < 0] = -1
    return out
