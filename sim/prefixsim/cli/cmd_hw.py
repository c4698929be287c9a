"""`prefixsim hw`: which hardware profiles there are, and what is in one."""

from __future__ import annotations

import typer

hw = typer.Typer(help="Hardware profiles: GPUs, models, hosts.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(hw, name="hw")


@hw.command("list")
def list_(json_: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """All profiles: the working folder's hw_profiles first, then the shipped ones."""
    import json

    from prefixsim.hardware.load import summaries

    rows = summaries()
    if json_:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    for kind, entries in rows.items():
        typer.echo(kind)
        for row in entries:
            typer.echo(f"  {row['name']:<20} {row['title']}")
            if row.get("validity"):
                typer.echo(f"  {'':<20}   {row['validity']}")


@hw.command("show")
def show(
    name: str = typer.Argument(..., help="A profile's name, or its file.", metavar="NAME|FILE"),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """One profile: every number with its kind and source."""
    import json

    from prefixsim.hardware.load import describe
    from prefixsim.hardware.profiles import numbers

    kind, profile = describe(name)
    if json_:
        typer.echo(json.dumps({"kind": kind} | profile.model_dump(exclude_none=True), ensure_ascii=False))
        return
    typer.echo(f"{kind.rstrip('s')} {name}: {getattr(profile, 'title', '')}")
    listed = dict(numbers(profile))
    if not listed:
        for key, value in profile.model_dump(exclude_none=True).items():
            typer.echo(f"  {key:<26} {value}")
        return
    for key, n in listed.items():
        error = f", held out: MAPE {n.mape_pct:g} %, p90 {n.p90_pct:g} %" if n.mape_pct is not None else ""
        typer.echo(f"  {key:<42} {n.value:<12g} {n.kind:<10} {n.source} ({n.date}){error}")
    if hasattr(profile, "validity"):
        typer.echo(f"  {profile.validity}")
