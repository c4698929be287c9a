"""GitHub annotations: workflow commands that point at the scenario's own line."""

from __future__ import annotations

from prefixsim.report.checks import FileResult


def github_annotations(results: list[FileResult]) -> str:
    """One `::error` line a failed check or fault; "" where everything held."""
    lines: list[str] = []
    for r in results:
        for c in r.checks:
            if not c.ok:
                message = "\n".join([c.message, *r.reasons])
                lines.append(_command(r.file, c.line, c.column, f"{r.scenario}: {c.metric}", message))
        if r.error is not None:
            places = r.problems or ((r.file, None, None, r.error),)
            for file, line, column, message in places:
                lines.append(_command(file or r.file, line, column, f"{r.scenario} could not be run", message))
    return "\n".join(lines)


def _command(file: str, line: int | None, column: int | None, title: str, message: str) -> str:
    parts = [f"file={_property(file)}"]
    parts += [f"line={line}"] if line is not None else []
    parts += [f"col={column}"] if column is not None else []
    parts.append(f"title={_property(title)}")
    return f"::error {','.join(parts)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
