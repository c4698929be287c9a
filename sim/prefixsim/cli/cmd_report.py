"""`prefixsim report`: renders a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes [default: RUN/report.html].", metavar="FILE")
    ] = None,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write the page, or only print.")] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print the answer and the paths as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out the notes.")] = False,
) -> None:
    """Prints a finished run's comparison and writes its HTML page, from the files in its folder alone."""
    from prefixsim.report.folder import open_run

    opened = open_run(run)
    page = None
    if html:
        from prefixsim.report.html import write_report

        page = write_report(opened.path, out)
    if json_:
        import json

        from prefixsim.report.facts import answer, notes

        shown = {
            "run": str(opened.path),
            "report": None if page is None else str(page),
            "answer": answer(opened.summary),
            "notes": notes(opened.summary),
        }
        typer.echo(json.dumps(shown, indent=1))
        return
    from prefixsim.report.terminal import print_summary

    print_summary(opened.summary, run_folder=opened.path, report=page, show_notes=not quiet)
