"""`prefixsim report`: renders a finished run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prefixsim.report.folder import RunFolder

CURVE_POINTS, DIVERGENCE_POINTS = 200, 50


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes (default: RUN/report.html).", metavar="FILE")
    ] = None,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write the page, or only print.")] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="First add capacity curves and divergence points to the run folder.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the answer and the paths as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out the notes.")] = False,
) -> None:
    """Prints a finished run's comparison and writes its HTML page, from the files in its folder alone."""
    from prefixsim.report.folder import open_run

    opened = open_run(run)
    if explain:
        from prefixsim.cli.progress import progress

        with progress(quiet=quiet) as say:
            _explain(opened, say)
        opened = open_run(opened.path)
    page = None
    if html:
        from prefixsim.report.html import write_report

        page = write_report(opened.path, out)
    if json_:
        import json

        from prefixsim.report.answer import answer
        from prefixsim.report.facts import notes

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


def _explain(run: RunFolder, say: Callable[[str], None]) -> None:
    """Writes curves.json and divergence.json: from the run's scenario, on the very workload the run had."""
    import json

    from prefixsim.analysis.curve_report import curve_entry
    from prefixsim.analysis.curves import curves, spaced
    from prefixsim.analysis.divergence import divergence_points
    from prefixsim.analysis.inputs import load_input
    from prefixsim.errors import InputError
    from prefixsim.report.export import write_text
    from prefixsim.report.facts import get
    from prefixsim.study.explain import divergence_entry

    if run.scenario is None:
        raise InputError(f"{run.path}: has no scenario.resolved.yaml, so its workload cannot be read again")
    say("reading the workload")
    loaded = load_input(str(run.path / "scenario.resolved.yaml"))
    was, now = get(run.summary, "workload", "sha256"), loaded.workload.source.sha256
    if was != now:
        raise InputError(f"{run.path}: the workload is not what it was in this run (its content has changed since)")
    say("capacity curves")
    blocks = sorted(set(loaded.granularities.values()))
    entries = []
    for found in curves(loaded.workload, blocks, rule=loaded.rule, optimal_capacities=[]):
        where = spaced(found.saturation_blocks, CURVE_POINTS).tolist()
        entries.append(curve_entry(found, where))
    tokens = int(loaded.workload.prompt_tokens.sum())
    write_text(run.path / "curves.json", [json.dumps({"prompt_tokens": tokens, "curves": entries}) + "\n"])
    say("divergence points")
    points = divergence_points(loaded.workload, top=DIVERGENCE_POINTS, rule=loaded.rule)
    write_text(run.path / "divergence.json", [json.dumps([divergence_entry(p) for p in points], indent=1) + "\n"])
