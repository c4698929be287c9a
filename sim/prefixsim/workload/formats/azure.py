"""Azure LLM inference traces (CSV): TIMESTAMP (date and time, 7 fractional digits), ContextTokens, GeneratedTokens.

Lengths only: no content, no sessions.
"""

from __future__ import annotations

import numpy as np

from prefixsim.workload.csv_rows import read_columns, stamps_ns
from prefixsim.workload.formats.lengths import lengths_workload, pick, whole_column
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.rows import BadRows
from prefixsim.workload.table import Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def sniff(head: Head) -> str | None:
    """The header."""
    return f"header has {', '.join(COLUMNS)}" if set(COLUMNS) <= set(head.columns) else None


def read(context: ReadContext) -> Workload:
    """Reads an Azure trace."""
    file = context.file()
    bad = BadRows(file, context.options.on_bad_row == "skip")
    pick(file, COLUMNS)
    lines, numbers, texts = read_columns(file, ["ContextTokens", "GeneratedTokens"], ["TIMESTAMP"], bad)
    keep = np.ones(lines.shape[0], dtype=np.bool_)
    arrival = stamps_ns(texts["TIMESTAMP"], lines, bad, keep, "TIMESTAMP")
    prompts = whole_column(numbers["ContextTokens"], lines, bad, keep, "ContextTokens", 0)
    outputs = whole_column(numbers["GeneratedTokens"], lines, bad, keep, "GeneratedTokens", 0)
    rows = np.flatnonzero(keep)
    failed = (outputs[rows] == 0) | (prompts[rows] == 0)
    return lengths_workload(
        context, file, "azure", bad, arrival=arrival[rows], prompts=np.maximum(prompts[rows], 1), outputs=outputs[rows],
        unit="ISO", failed=failed, n_rows=lines.shape[0] + bad.count,
    )  # fmt: skip


FORMAT = register(
    Format(
        "azure",
        "Azure LLM inference CSV",
        "lengths",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"failed_rows", "sharing"}),
    )
)
