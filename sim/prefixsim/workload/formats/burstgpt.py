"""BurstGPT (CSV): Timestamp in s, Model, Request tokens, Response tokens (0: failed), Total tokens, Log Type; newer
releases have Session ID and Elapsed time. Lengths only."""

from __future__ import annotations

import numpy as np

from prefixsim.workload.checks import UNIT_NS
from prefixsim.workload.csv_rows import header, read_columns
from prefixsim.workload.formats.lengths import lengths_workload, pick, whole_column
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.rows import BadRows
from prefixsim.workload.table import I32, I64, Decision, Workload

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def sniff(head: Head) -> str | None:
    """The header."""
    return f"header has {', '.join(COLUMNS)}" if set(COLUMNS) <= set(head.columns) else None


def read(context: ReadContext) -> Workload:
    """Reads a BurstGPT trace; the group of a request is its model and log type."""
    file, options = context.file(), context.options
    bad = BadRows(file, options.on_bad_row == "skip")
    pick(file, COLUMNS)
    texts_wanted: list[str] = [c for c in ("Model", "Log Type", "Session ID") if c in header(file)]
    lines, numbers, texts = read_columns(file, list(COLUMNS), texts_wanted, bad)
    keep = np.ones(lines.shape[0], dtype=np.bool_)
    unit = options.time_unit or "s"
    stamp = numbers["Timestamp"]
    wrong = ~((stamp >= 0) & (stamp * UNIT_NS[unit] < 9e18))
    for r in np.flatnonzero(wrong).tolist():
        bad.add(f"not a time from 0 on: {stamp[r]:.17g} {unit}", int(lines[r]), "Timestamp")
    keep &= ~wrong
    prompts = whole_column(numbers["Request tokens"], lines, bad, keep, "Request tokens", 0)
    outputs = whole_column(numbers["Response tokens"], lines, bad, keep, "Response tokens", 0)
    rows = np.flatnonzero(keep)
    prompts, outputs = prompts[rows], outputs[rows]
    arrival = np.rint(np.where(wrong, 0, stamp)[rows] * UNIT_NS[unit]).astype(np.int64)
    groups = [" / ".join(texts[c][r] for c in texts_wanted if c != "Session ID") for r in rows.tolist()]
    table = {g: i for i, g in enumerate(sorted(set(groups)))}
    decisions: tuple[Decision, ...] = ()
    session: I32 | None = None
    names: tuple[str, ...] = ()
    cumulative = False
    if "Session ID" in texts_wanted:
        session, names = _sessions([texts["Session ID"][r].strip() for r in rows.tolist()])
        cumulative, decision = _turns(session, arrival, prompts, outputs, options.turns)
        decisions = (decision,)
    return lengths_workload(
        context, file, "burstgpt", bad, arrival=arrival, prompts=np.maximum(prompts, 1), outputs=outputs, unit=unit,
        failed=(outputs == 0) | (prompts == 0), n_rows=lines.shape[0] + bad.count, session=session, session_names=names,
        cumulative=cumulative, decisions=decisions, group=np.array([table[g] for g in groups], dtype=np.int32),
        group_names=tuple(table),
    )  # fmt: skip


def _sessions(words: list[str]) -> tuple[I32, tuple[str, ...]]:
    table: dict[str, int] = {}
    codes = [-1 if w in ("", "-1", "nan") else table.setdefault(w, len(table)) for w in words]
    return np.array(codes, dtype=np.int32), tuple(table)


def _turns(session: I32, arrival: I64, prompts: I64, outputs: I64, override: str | None) -> tuple[bool, Decision]:
    """Whether later turns hold the history: by how many are at least as long as all that was said before."""
    order = np.lexsort((np.arange(session.shape[0]), arrival, session))
    s, p, o = session[order], prompts[order], outputs[order]
    later = (s[1:] == s[:-1]) & (s[1:] >= 0)
    grown = later & (p[1:] >= p[:-1] + o[:-1])
    share = float(grown.sum() / later.sum()) if later.any() else 0.0
    cumulative = share >= 0.9 if override is None else override == "cumulative"
    evidence = f"{int(grown.sum()):,} of {int(later.sum()):,} later turns are at least as long as all before them"
    return cumulative, Decision("turns", "cumulative" if cumulative else "delta", evidence, override is not None)


FORMAT = register(
    Format(
        "burstgpt",
        "BurstGPT CSV",
        "lengths",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"failed_rows", "sharing", "time_unit", "turns"}),
    )
)
