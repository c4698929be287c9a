"""`prefixsim explain`: ceilings, ledger, divergence points, advice."""

from __future__ import annotations

import typer

from prefixsim.cli.complete import scenarios


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(explain)


def explain(
    source: str = typer.Argument(
        ..., help="A scenario (YAML or shipped name) or a trace.", metavar="SCENARIO|TRACE", autocompletion=scenarios
    ),
    format: str | None = typer.Option(None, "--format", help="Format of a trace; default: by evidence."),
    granularity: str | None = typer.Option(
        None, "--granularity", help="Block sizes for ceilings, e.g. 1,16,784. Default: 1 to 512 and the engines' own."
    ),
    reuse_outputs: bool = typer.Option(
        True,
        "--reuse-outputs/--no-reuse-outputs",
        help="Whether generated tokens count as cached, where they are known.",
    ),
    top: int = typer.Option(8, "--top", min=1, max=100, help="Divergence points shown."),
    engines: bool = typer.Option(True, "--engines/--no-engines", help="Whether a scenario's engines are run (ledger)."),
    set_: list[str] = typer.Option([], "--set", help="KEY=VALUE: a key of the scenario, or of a trace section."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Says where the hits went: ceilings, granularity loss, the ledger of a scenario's engines, divergence points, advice."""
    import json

    from prefixsim.analysis.explain_text import explain_text
    from prefixsim.analysis.inputs import load_input
    from prefixsim.cli.cmd_curve import whole_numbers
    from prefixsim.cli.progress import progress
    from prefixsim.study.explain import explain as find_out

    blocks = whole_numbers(granularity, "--granularity", 1) if granularity is not None else None
    with progress(quiet=quiet) as say:
        loaded = load_input(source, format=format, settings=set_)
        found = find_out(
            loaded,
            granularities=blocks,
            reuse_outputs=reuse_outputs,
            top=top,
            engines=engines,
            say=say,
        )
    typer.echo(json.dumps(found.result) if json_ else explain_text(found.result))
