"""`prefixsim export`: a finished run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefixsim.cli.complete import export_formats, tables


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="csv, parquet, prometheus, openmetrics or chrome-trace.",
            metavar="FORMAT",
            autocompletion=export_formats,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File (default: stdout); .gz is compressed.", metavar="FILE")] = None,
    table: Annotated[
        str, typer.Option(help="csv, parquet: requests, timeline or gaps.", autocompletion=tables)
    ] = "requests",
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine; may be repeated.", metavar="NAME")] = None,
    every: Annotated[float, typer.Option(help="openmetrics: seconds between scrapes.", metavar="S")] = 15.0,
    start: Annotated[float, typer.Option(help="openmetrics: Unix time of the run's start.", metavar="S")] = 0.0,
    from_: Annotated[
        float, typer.Option("--from", help="chrome-trace: from this simulated second.", metavar="S")
    ] = 0.0,
    to: Annotated[float, typer.Option(help="chrome-trace: to this simulated second.", metavar="S")] = float("inf"),
    json_: Annotated[bool, typer.Option("--json", help="Say on stdout as JSON what was written (with --out).")] = False,
) -> None:
    """Writes a finished run as tables, as Prometheus metrics under the engines' own names, or as a trace for Perfetto."""
    import math

    from prefixsim.errors import InputError
    from prefixsim.report.export import export as write
    from prefixsim.report.folder import open_run
    from prefixsim.report.prometheus import alike_engines

    for name, value in (("--every", every), ("--start", start), ("--from", from_), ("--to", to)):
        if math.isnan(value) or (math.isinf(value) and name != "--to"):
            raise InputError(f"{name}: {value} is not a time")
    if json_ and out is None:
        raise InputError("--json says what was written; it needs --out FILE, as stdout carries the export without it")
    folder = open_run(run)
    write(
        folder,
        format_,
        out,
        table=table,
        engines=engine or [],
        every_s=every,
        start_unix_s=start,
        from_s=from_,
        to_s=to,
    )
    if format_ == "openmetrics" and (alike := alike_engines(folder, engine or [])):
        typer.echo(f"note: {alike}; boards add up all instances, so export one at a time (--engine NAME)", err=True)
    if out is not None:
        if json_:
            import json

            typer.echo(json.dumps({"format": format_, "out": str(out), "bytes": out.stat().st_size}))
        else:
            typer.echo(f"{out}: {out.stat().st_size:,} bytes", err=True)
