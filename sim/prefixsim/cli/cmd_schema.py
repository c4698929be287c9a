"""`prefixsim schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("schema")(schema)


def schema() -> None:
    """Prints the JSON Schema of scenario files."""
    from prefixsim.scenario.schema import schema_text

    typer.echo(schema_text(), nl=False)
