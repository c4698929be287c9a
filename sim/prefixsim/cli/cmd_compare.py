"""`prefixsim compare`: two runs, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare")(compare)


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    second: Annotated[Path, typer.Argument(help="Folder of another one.", metavar="RUN")],
    engine: Annotated[
        list[str] | None, typer.Option(help="Engine in both runs, or FIRST=SECOND; may be repeated.", metavar="NAME")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Says which requests differ between two runs and why, with paired confidence intervals."""
    import json

    from prefixsim.report.compare_runs import compare_engines, engine_pairs, in_words
    from prefixsim.report.folder import open_run

    a, b = open_run(first), open_run(second)
    found = [compare_engines(a, b, left, right) for left, right in engine_pairs(a, b, engine or [])]
    if json_:
        typer.echo(json.dumps(found, sort_keys=True))
        return
    from prefixsim.report.terminal import print_table

    for one in found:
        typer.echo("\n".join(in_words(one)))
        rows = [
            [r["id"], f"{r['cached_tokens'][0]:,}", f"{r['cached_tokens'][1]:,}",
             ", ".join(f"{k} {v:+,}" for k, v in r["why"].items())]
            for r in one["requests"]
        ]  # fmt: skip
        if rows:
            print_table(["request", "cached, first", "second", "losses that moved"], rows)
