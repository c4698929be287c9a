"""`prefixsim sweep`: a grid of scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("sweep")(sweep)


def sweep(
    study: Annotated[Path, typer.Argument(help="Study file.", metavar="STUDY")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of results (default: runs/study-NAME).", metavar="DIR")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes (default: processors).", min=1, max=1024)
    ] = None,
    executor: Annotated[str, typer.Option(help="local, serial or dask.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, e.g. tcp://127.0.0.1:8786.", metavar="ADDR")
    ] = None,
    max_points: Annotated[int, typer.Option(help="Refuse a larger grid.", min=1)] = 10_000,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also write points.parquet.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object a point, in axis order.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Runs every point of a study; a killed sweep goes on where it stopped."""
    import sys

    from prefixsim.study.forking import stay_single_threaded

    stay_single_threaded()
    from prefixsim.report.progress import Progress
    from prefixsim.scenario.study import StudySpec
    from prefixsim.study.choose import choose_executor
    from prefixsim.study.load import load_study
    from prefixsim.study.store import canonical
    from prefixsim.study.sweep import run_sweep
    from prefixsim.study.tables import headings, points_table, write_tables

    loaded = load_study(study, StudySpec)
    folder = out or Path("runs") / f"study-{loaded.spec.name}"
    runner = choose_executor(executor, workers=workers, scheduler=scheduler)
    with Progress(f"{loaded.spec.name}: points", enabled=not quiet) as shown:
        result = run_sweep(
            loaded,
            runner,
            folder,
            max_points=max_points,
            progress=shown.of,
            warn=lambda text: print(text, file=sys.stderr),
        )
    paths = write_tables(result, folder, parquet=parquet)
    from prefixsim.report.study_html import write_study_report

    report = write_study_report(folder)
    if json_:
        for row in result.rows:
            typer.echo(canonical(row.as_json()))
    else:
        from prefixsim.report.terminal import print_table

        header, body = points_table(result)
        print_table(headings(header, len(result.keys)), body, left=len(result.keys))
        typer.echo(
            f"points: {len(result.rows)} ({result.reused} from an earlier run, {len(result.failed)} failed); "
            f"workloads read: {result.workloads}"
        )
        typer.echo(f"table: {paths[0]}\nreport: {report}")
    for row in result.failed:
        print(f"point {canonical(row.axes)} repeat {row.repeat}: {row.error}", file=sys.stderr)
    if len(result.failed) == len(result.rows):
        raise typer.Exit(2)
