"""`prefixsim hw`: which hardware profiles there are, and what is in one."""

from __future__ import annotations

import typer

from prefixsim.cli.complete import profiles

hw = typer.Typer(help="Hardware profiles: GPUs, models, hosts.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(hw, name="hw")


@hw.command("list")
def list_(json_: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """All profiles: the working folder's hw_profiles first, then the shipped ones."""
    import json

    from prefixsim.hardware.load import summaries
    from prefixsim.wrap import wrapped

    rows = summaries()
    if json_:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    for kind, entries in rows.items():
        typer.echo(kind)
        for row in entries:
            typer.echo(wrapped(row["title"], f"  {row['name']:<20} ", " " * 23))
            if row.get("validity"):
                typer.echo(wrapped(row["validity"], " " * 25))


@hw.command("show")
def show(
    name: str = typer.Argument(
        ..., help="A profile's name, or its file.", metavar="NAME|FILE", autocompletion=profiles
    ),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """One profile: every number with its kind and source."""
    import json

    from prefixsim.hardware.load import describe
    from prefixsim.hardware.profiles import numbers
    from prefixsim.wrap import fitted, wrapped

    kind, profile = describe(name)
    if json_:
        typer.echo(json.dumps({"kind": kind} | profile.model_dump(exclude_none=True), ensure_ascii=False))
        return
    typer.echo(wrapped(f"{kind.rstrip('s')} {name}: {getattr(profile, 'title', '')}"))
    listed = dict(numbers(profile))
    if not listed:
        for key, value in profile.model_dump(exclude_none=True).items():
            typer.echo(fitted(f"  {key:<26} {value}"))
        return
    sources = {f"{n.source} ({n.date})": 0 for n in listed.values()}
    sources = {source: i for i, source in enumerate(sources, 1)}
    width = max(len(key) for key in listed)
    for key, n in listed.items():
        error = f" {n.mape_pct:.1f}/{n.p90_pct:.1f} %" if n.mape_pct is not None and n.p90_pct is not None else ""
        number = f"[{sources[f'{n.source} ({n.date})']}]"
        typer.echo(f"  {key:<{width}} {n.value:<10.6g} {n.kind:<9} {number:<4}{error}".rstrip())
    typer.echo("Sources, and what errors are: MAPE/p90 on what was held out of a fit")
    for source, i in sources.items():
        typer.echo(wrapped(f"[{i}] {source}", "  ", "      "))
    if hasattr(profile, "validity"):
        typer.echo(wrapped(profile.validity))
