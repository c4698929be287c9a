"""The comparison in a terminal: an answer, a table with the engines side by side, the ledger, notes.

80 columns are enough. Colour only on a terminal and without NO_COLOR; piped output is plain ASCII (names keep their own
letters where the output's encoding has them).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import ASCII, SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixsim.report import facts
from prefixsim.report.answer import answer
from prefixsim.wrap import WIDTH

if TYPE_CHECKING:
    from prefixsim.report.compare_metrics import Comparison

PER_TABLE = 4
"""Engines in one table; more of them get another table below."""
LABEL_WIDTH = 19
GLUE = "\ue000"
"""Stands for a space at which no line may end, while text is wrapped (a no-break space would not hold)."""


def console_for(file: TextIO) -> Console:
    """A console for tables on `file`: terminal width and colour on a terminal, else 80 plain columns."""
    if file.isatty():
        return Console(file=file, highlight=False, markup=False, emoji=False)
    return Console(file=file, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False, no_color=True)


def print_summary(
    summary: Mapping[str, Any],
    *,
    file: TextIO | None = None,
    console: Console | None = None,
    run_folder: object = None,
    report: object = None,
    show_notes: bool = True,
) -> None:
    """Prints a finished run's summary (parsed `summary.json`) on `file` (default stdout) or `console`.

    run_folder, report: paths to name in the last lines. show_notes=False leaves out assumptions and validity, never
    what is saturated or wrong, or left out of the numbers.
    """
    out = console or console_for(file or sys.stdout)
    plain = not out.is_terminal
    names = list(facts.engines_of(summary))
    title = facts.clean(summary.get("name") or "run", 60)
    _line(out, Text.assemble((title, "bold"), ("  " + _run_id(summary), "dim")))
    _line(out, Text(" ".join(answer(summary))))
    rows = facts.comparison(summary)
    for start in range(0, len(names), PER_TABLE):
        part = slice(start, start + PER_TABLE)
        _show(out, _comparison(rows, names, part, plain))
    for start in range(0, len(names), PER_TABLE):
        table = _ledger(summary, names[start : start + PER_TABLE], plain)
        if table is not None:
            _line(out, Text("Where every prompt token went", style="bold"))
            _show(out, table)
    kept = [note for note in facts.notes(summary) if show_notes or facts.always_said(note)]
    if kept:
        _line(out, Text("Notes", style="bold"))
        for note in kept:
            _line(out, Text(note), indent="  ", bullet="- ")
    for label, path in (("run folder", run_folder), ("report", report)):
        if path is not None:  # a path is never folded: it is there to be copied
            _raw(out, f"{label}: {facts.clean(path, 4096)}")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    console: Console | None = None,
    left: int = 1,
) -> None:
    """A plain table in the house style; the first `left` columns are text, the rest numbers."""
    out = console or console_for(sys.stdout)
    table = _table(not out.is_terminal)
    for i, name in enumerate(header):
        table.add_column(Text(facts.clean(name, 40)), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(facts.clean(cell, 200)) for cell in row))
    _show(out, table)


def print_comparison(found: Comparison, *, file: TextIO | None = None) -> None:
    """Prints what `compare_metrics.compare` found: sentences, real beside simulated, the requests that are furthest off."""
    out = console_for(file or sys.stdout)
    for text in found.says:
        _line(out, Text(text))

    def spelt(value: float | None, share: bool) -> str:
        if share:
            return facts.percent(value, 2)
        whole = value is None or float(value).is_integer()
        return facts.integer(value) if whole else f"{value:.4g}"

    rows = []
    for what, real, simulated, share in found.rows:
        off = None if real is None or simulated is None else simulated - real
        if off is None:
            shown = facts.ABSENT
        elif share:
            shown = f"{100 * off:+.2f} points"
        else:
            shown = f"{100 * off / abs(real):+.1f} %" if real else "0" if off == 0 else f"{off:+.4g}"
        shown = shown.replace("-0.0 %", "0.0 %").replace("+0.0 %", "0.0 %")
        rows.append((what.replace("{", " {"), spelt(real, share), spelt(simulated, share), shown))  # breaks there
    print_table(("", "real", "simulated", "off"), rows, console=out)
    if found.worst:
        _line(out, Text("Cached tokens of the requests that are furthest off", style="bold"))
        worst = [(w["id"], spelt(w["real"], False), spelt(w["simulated"], False)) for w in found.worst]
        print_table(("request", "real", "simulated"), worst, console=out)


def _run_id(summary: Mapping[str, Any]) -> str:
    run_id = summary.get("run_id")
    return f"run {facts.clean(run_id, 100)[:12]}" if isinstance(run_id, str) and run_id else ""


def _table(plain: bool) -> Table:
    box: Box | None = ASCII if plain else SIMPLE_HEAD
    return Table(box=box, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))


def _columns(table: Table, names: Sequence[str]) -> None:
    table.add_column("", width=LABEL_WIDTH, no_wrap=True)
    room = (WIDTH - LABEL_WIDTH) // max(len(names), 1) - 3
    for name in names:
        table.add_column(Text(_cut(facts.clean(name), room)), justify="right", no_wrap=True, min_width=min(room, 11))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 2] + ".."


def _comparison(rows: Sequence[facts.Row], names: Sequence[str], part: slice, plain: bool) -> Table:
    table = _table(plain)
    _columns(table, names[part])
    room = (WIDTH - LABEL_WIDTH) // len(names[part]) - 3
    for row in rows:
        best = max((v for v in row.values if v is not None), default=None) if row.key == "hit_rate" else None
        cells = []
        for cell, value in zip(row.cells[part], row.values[part], strict=True):
            style = "bold" if best is not None and value == best else ""
            if row.key == "saturated":
                style = "bold yellow" if value is True else ""
            cells.append(Text(_cut(cell, room), style=style))
        table.add_row(Text(row.label, style="bold" if row.key == "hit_rate" else ""), *cells)
    return table


def _ledger(summary: Mapping[str, Any], names: Sequence[str], plain: bool) -> Table | None:
    engines = facts.engines_of(summary)
    ledgers = {name: facts.ledger(engines[name]) for name in names}
    if not any(ledgers.values()):
        return None
    table = _table(plain)
    _columns(table, names)
    for part in facts.LEDGER_PARTS:
        if not any((book or {}).get(part.key) for book in ledgers.values()):
            continue
        cells = []
        for name in names:
            book, prompt = ledgers[name], facts.number(engines[name], "prompt_tokens")
            value = None if book is None else book[part.key]
            share = facts.percent(value / prompt) if value is not None and prompt else facts.ABSENT
            cells.append(Text(f"{facts.integer(value)} {share:>7}" if len(names) <= 2 else share))
        style = "green" if part.key.startswith("hit") else ""
        table.add_row(Text(part.label, style=style), *cells)
    return table


# ---- output ------------------------------------------------------------------------------------------------------


def _show(out: Console, table: Table) -> None:
    out.print()
    _checked(out, table)
    out.print()


def _line(out: Console, text: Text, indent: str = "", bullet: str = "") -> None:
    width = max(min(out.width, 100) - len(indent) - len(bullet), 20)
    glued = Text(text.plain.replace(" %", GLUE + "%"), style=text.style, spans=text.spans)
    for i, line in enumerate(glued.wrap(out, width)):
        lead = indent + (bullet if i == 0 else " " * len(bullet))
        shown = Text(line.plain.replace(GLUE + "%", " %"), style=line.style, spans=line.spans)
        _checked(out, Text.assemble(lead, shown))


def _raw(out: Console, text: str) -> None:
    out.print(Text(_encodable(out, text)), soft_wrap=True)


def _checked(out: Console, what: Table | Text) -> None:
    """Prints; where the output's encoding lacks a character of a name, the character is written as an escape."""
    with out.capture() as captured:
        out.print(
            what, no_wrap=isinstance(what, Text), crop=False, overflow="ignore" if isinstance(what, Text) else None
        )
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    out.file.write(_encodable(out, text))


def _encodable(out: Console, text: str) -> str:
    encoding = getattr(out.file, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
