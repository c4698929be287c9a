"""The report's last section: what the numbers rest on."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefixsim.report import facts
from prefixsim.report.folder import RunFolder
from prefixsim.report.sections import MAX_ROWS, absent, csv_button, esc, section, table


def setup_section(run: RunFolder, missing: Sequence[str]) -> str:
    """Assumptions and validity, scenario, profiles with their sources, the engines' own counters, what is missing."""
    summary = run.summary
    notes = "".join(f"<li>{esc(n, 1200)}</li>" for n in facts.notes(summary))
    body = [f'<h3>Assumptions and validity</h3><ul class="notes">{notes}</ul>' if notes else ""]
    valid = list(facts.sentences(facts.get(summary, "hardware", "validity")))
    if not valid:
        body.append(absent("The summary states no validity envelope for its hardware profiles."))
    hardware = summary.get("hardware")
    if isinstance(hardware, Mapping) and hardware:
        sourced = hardware.get("provenance")
        shown = {k: v for k, v in hardware.items() if k not in ("provenance", "validity")}
        shown |= sourced if isinstance(sourced, Mapping) else {}
        body.append(_facts_table("t-hardware", "Hardware: numbers and where they come from", shown))
    counters = {
        n: e["counters"] for n, e in facts.engines_of(summary).items() if isinstance(e.get("counters"), Mapping)
    }
    if any(counters.values()):
        body.append(_facts_table("t-counters", "The engines' own counters, by their own names", counters))
    provenance: dict[str, Any] = {
        k: summary[k] for k in ("run_id", "schema_version", "provenance", "timing_s") if k in summary
    }
    body.append(_facts_table("t-provenance", "How this run was made", provenance))
    if run.scenario is None:
        body.append(absent("The run folder has no scenario.resolved.yaml."))
    else:
        text = html.escape("".join(c if c.isprintable() or c == "\n" else " " for c in run.scenario))
        body.append(
            f'<details open><summary>Scenario, with every default filled in</summary><pre tabindex="0">{text}</pre></details>'
        )
    if missing:
        items = "".join(f"<li>{esc(m)}</li>" for m in missing)
        body.append(f'<h3>Not in this report</h3><ul class="notes">{items}</ul>')
    return section("setup", "Scenario and provenance", *body)


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf); a mapping with a "value" is a leaf."""
    if isinstance(tree, Mapping) and "value" not in tree:
        for key, item in tree.items():
            yield from flatten(item, f"{path}.{facts.clean(key, 80)}" if path else facts.clean(key, 80))
    elif isinstance(tree, list) and any(isinstance(v, Mapping | list) for v in tree):
        for i, item in enumerate(tree):
            yield from flatten(item, f"{path}[{i}]")
    else:
        yield path, tree


def _facts_table(anchor: str, caption: str, tree: Mapping[str, Any]) -> str:
    rows: list[list[tuple[str, object]]] = []
    sourced = False
    for path, leaf in flatten(tree):
        if len(rows) == MAX_ROWS:
            caption += f"; the first {MAX_ROWS}"
            break
        if isinstance(leaf, Mapping):
            sourced = True
            value = " ".join(facts.clean(leaf[k], 120) for k in ("value", "unit") if leaf.get(k) is not None)
            kind = facts.clean(leaf.get("kind") or "", 40)
            rest = {k: v for k, v in leaf.items() if k not in ("value", "unit", "kind", "source") and v is not None}
            words = [facts.clean(leaf["source"], 300)] if leaf.get("source") else []
            source = "; ".join([*words, *(f"{facts.clean(k, 40)} {facts.clean(v, 160)}" for k, v in rest.items())])
        else:
            value, kind, source = _shown(leaf), "", ""
        rows.append([(esc(path, 160), None), (esc(value, 300), None), (esc(kind), None), (esc(source, 500), None)])
    if not rows:
        return ""
    head = ["name", "value", "kind", "source"]
    if not sourced:
        head, rows = head[:2], [row[:2] for row in rows]
    shown = table(anchor, caption, head, rows, text_columns=len(head), wrap=tuple(range(len(head)))[1::2], css="tall")
    return f'<details><summary>{esc(caption)}</summary>{shown}<div class="tools">{csv_button(anchor, caption)}</div></details>'


def _shown(leaf: Any) -> str:
    if isinstance(leaf, bool):
        return facts.yes_no(leaf)
    if isinstance(leaf, int | float):
        value = facts.number({"v": leaf}, "v")
        return facts.ABSENT if value is None else facts.integer(value) if float(value).is_integer() else f"{value:.6g}"
    if isinstance(leaf, list):
        return ", ".join(facts.clean(v, 60) for v in leaf[:40])
    return facts.ABSENT if leaf is None else facts.clean(leaf, 300)
