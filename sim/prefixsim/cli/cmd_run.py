"""`prefixsim run`: replay scenarios and print the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prefixsim.cli.complete import scenarios


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("run")(run)


def run(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            help="Scenario files, or names of shipped ones (quickstart).",
            metavar="SCENARIO...",
            autocompletion=scenarios,
        ),
    ],
    trace: Annotated[str | None, typer.Option(help="Replaces workload.trace.path.", metavar="PATH")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder (default: runs/NAME-ID); of several runs, their parent.", metavar="DIR"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Overrides a key, e.g. engines.vllm.block_size=32.", metavar="KEY=VALUE"),
    ] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine; may be repeated.", metavar="NAME")] = None,
    save_cache: Annotated[
        Path | None,
        typer.Option(
            help="File for what the engine's caches hold at the end, for `prime: {saved: FILE}`.", metavar="FILE"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print summary.json instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; no notes beside the tables.")] = False,
) -> None:
    """Runs scenarios: each engine serves the workload; prints the comparison and writes a run folder each."""
    from prefixsim.cli.progress import progress
    from prefixsim.errors import InputError
    from prefixsim.scenario.load import parse_override, variants

    overrides = dict(parse_override(text) for text in set_ or [])
    if trace is not None:
        overrides["workload.trace.path"] = str(Path(trace).expanduser().absolute())
    planned = [(name, variants(name, overrides)) for name in scenarios]
    several = len(planned) > 1
    if save_cache is not None and (several or len(planned[0][1]) > 1):
        raise InputError(
            "--save-cache: the caches of one run go into a file; run one scenario, without `also:` variants"
        )

    from prefixsim.pipeline.prepare import Library
    from prefixsim.pipeline.run import run_scenario

    printed: list[dict[str, Any]] = []
    with progress(quiet=quiet) as say:
        for _, group in planned:
            library = Library()
            for i, scenario in enumerate(group):
                folder = None
                if out is not None:
                    folder = out if i == 0 and not several else out / scenario.name
                done = run_scenario(
                    scenario,
                    engines=engine,
                    library=library,
                    out=folder,
                    write=True,
                    say=say,
                    share=say.share,
                    save_cache=save_cache,
                )
                if i == 0:
                    printed.append(dict(done.summary))
                else:
                    printed[-1].setdefault("also", {})[scenario.name] = done.summary
                if not json_:
                    say.clear()
                    _show(done, quiet)
    if json_:
        from prefixsim.output.run_folder import summary_text

        texts = [summary_text(summary) for summary in printed]
        typer.echo("[\n" + ",\n".join(texts) + "]\n" if several else texts[0], nl=False)


def _show(done: object, quiet: bool) -> None:
    from prefixsim.pipeline.run import Run
    from prefixsim.report.terminal import print_summary

    assert isinstance(done, Run)
    report = done.folder / "report.html" if done.folder is not None else None
    shown = report if report is not None and report.exists() else None
    print_summary(done.summary, run_folder=done.folder, report=shown, show_notes=not quiet)
