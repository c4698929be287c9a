"""`prefixsim plan`: the highest rate, or the cheapest fleet, under limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("plan")(plan)


def plan(
    study: Annotated[Path, typer.Argument(help="Plan file.", metavar="STUDY")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of results (default: runs/plan-NAME).", metavar="DIR")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes (default: processors).", min=1, max=1024)
    ] = None,
    executor: Annotated[str, typer.Option(help="local, serial or dask.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, e.g. tcp://127.0.0.1:8786.", metavar="ADDR")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Finds the highest sustained rate, or the cheapest fleet, and what caching saves. Exit 2 when nothing meets the limits."""
    from prefixsim.study.forking import stay_single_threaded

    stay_single_threaded()
    from prefixsim.paths import write_whole
    from prefixsim.report.progress import Progress
    from prefixsim.scenario.study import PlanSpec
    from prefixsim.study.choose import choose_executor
    from prefixsim.study.load import load_study
    from prefixsim.study.plan import run_plan
    from prefixsim.study.plan_text import conclusion, table
    from prefixsim.study.store import PointStore, canonical

    loaded = load_study(study, PlanSpec)
    folder = out or Path("runs") / f"plan-{loaded.spec.name}"
    runner = choose_executor(executor, workers=workers, scheduler=scheduler)
    with Progress(f"{loaded.spec.name}: simulations", enabled=not quiet) as shown:
        answers = run_plan(loaded, runner, PointStore(folder), shown.of)
    text = canonical({"name": loaded.spec.name, "find": loaded.spec.find, "answers": [a.as_json() for a in answers]})
    write_whole(folder / "plan.json", text + "\n", folders=True)
    if json_:
        typer.echo(text)
    else:
        from prefixsim.report.terminal import print_table
        from prefixsim.wrap import fitted

        typer.echo(fitted("\n".join(conclusion(loaded.spec, answers))))
        header, rows = table(loaded.spec, answers)
        print_table(header, rows, left=header.index("caching") + 1)
        typer.echo(f"details: {folder / 'plan.json'}")
    if all(a.value is None for a in answers if a.caching):
        raise typer.Exit(2)
