"""Markdown for a job summary."""

from __future__ import annotations

from prefixsim.report.checks import FileResult, counts


def markdown(results: list[FileResult]) -> str:
    """A heading with the verdict, a table a scenario, reasons under it."""
    held, failed, broken = counts(results)
    verdict = "all checks held" if not failed and not broken else f"{failed} failed, {broken} could not be run"
    lines = [f"## prefixsim check: {verdict}", ""]
    for r in results:
        lines += [f"### {'✅' if r.ok else '❌'} {_cell(r.scenario)} (`{_cell(r.file)}`)", ""]
        if r.error is not None:
            lines += [*(f"    {part}" for part in r.error.splitlines()), ""]
        if r.checks:
            lines += ["| | metric | found | expected |", "|---|---|---|---|"]
            for c in r.checks:
                of = " (baseline)" if c.kind == "baseline" else ""
                lines.append(
                    f"| {'✅' if c.ok else '❌'} | `{_cell(c.metric)}` | {_cell(c.found)} | {_cell(c.wanted)}{of} |"
                )
            lines.append("")
        if r.reasons:
            lines += ["Why:", "", *(f"- {_cell(reason)}" for reason in r.reasons), ""]
        lines += [f"_{_cell(note)}_\n" for note in r.notes]
    lines.append(f"{held} held, {failed} failed, {broken} could not be run.")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot break out of a table cell."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("|", "\\|").replace("<", "&lt;")
