"""`prefixsim validate`: is this a good scenario? Reads no trace and simulates nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from prefixsim.cli.complete import scenarios


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("validate")(validate)


def validate(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            help="Scenario files, or names of shipped ones.", metavar="SCENARIO...", autocompletion=scenarios
        ),
    ],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Overrides a key first.", metavar="KEY=VALUE")] = None,
    resolved: Annotated[bool, typer.Option(help="Print the scenario with every default written out.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the resolved scenarios, or the faults, as JSON.")
    ] = False,
) -> None:
    """Checks scenarios: every fault with file, line, column and key. Exit 2 where there is one."""
    from prefixsim.errors import InputError
    from prefixsim.scenario.identity import resolved as resolve
    from prefixsim.scenario.identity import resolved_yaml
    from prefixsim.scenario.load import parse_override, variants

    overrides = dict(parse_override(text) for text in set_ or [])
    faults, good = [], {}
    for name in scenarios:
        try:
            group = variants(name, overrides)
        except InputError as exc:
            faults += list(exc.problems)
            continue
        good[name] = group[0]
        if not json_:
            typer.echo(resolved_yaml(group[0]) if resolved else f"{name}: {group[0].name}: fine", nl=not resolved)
    if json_:
        problems = [
            {"message": p.message, "file": p.file, "line": p.line, "column": p.column, "key": p.key} for p in faults
        ]
        typer.echo(json.dumps({"scenarios": {n: resolve(s) for n, s in good.items()}, "problems": problems}, indent=1))
    if faults:
        raise InputError(faults)
