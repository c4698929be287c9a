"""`prefixsim compare-metrics`: a real server's numbers beside the simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare-metrics")(compare_metrics)


def compare_metrics(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    source: Annotated[
        Path,
        typer.Argument(help="A /metrics scrape, or a request log (JSONL or CSV) with cached_tokens.", metavar="FILE"),
    ],
    engine: Annotated[str | None, typer.Option(help="Which engine of the run.", metavar="NAME")] = None,
    before: Annotated[
        Path | None, typer.Option(help="An earlier scrape, taken off FILE's counters.", metavar="FILE")
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Exit 1 where the hit rates differ by more points.", metavar="POINTS")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sets a real server's metrics, or a log's cached_tokens, beside the simulated ones and says how far off they are."""
    from prefixsim.errors import CheckFailed, InputError
    from prefixsim.report.compare_metrics import compare
    from prefixsim.report.folder import open_run

    if within is not None and not within >= 0:
        raise InputError(f"--within: {within} is not a number of points from 0 up")
    found = compare(open_run(run), source, engine=engine, before=before)
    if json_:
        import json

        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        from prefixsim.report.terminal import print_comparison

        print_comparison(found)
    if within is not None:
        if found.off_points is None:
            raise InputError("--within: the hit rates cannot be compared, as one of them is not known")
        if abs(found.off_points) > within:
            raise CheckFailed(f"the hit rates differ by {abs(found.off_points):.2f} points; allowed are {within:g}")
