"""Writes the reference pages that follow from code: docs/cli.md and docs/scenario.md. `--check` says whether they are current.

python docs/generate.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer

HERE = Path(__file__).resolve().parent


def cli_page() -> str:
    """The command line, from the commands themselves."""
    from prefixsim.cli.app import app, register_commands

    register_commands()
    root = typer.main.get_command(app)
    out = [
        "# Command line",
        "",
        "<!-- written by docs/generate.py -->",
        "",
        "Results go to stdout, talk to stderr. Exit codes: 0 fine, 1 a check failed, 2 could not run. "
        "Shell completion: `prefixsim --install-completion`.",
    ]
    for name, command in sorted(_commands(root, "")):
        out += ["", f"## prefixsim {name}", "", _text(command.help or "")]
        rows = []
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                help_ = getattr(parameter, "help", None) or ""
                rows.append((f"`{parameter.metavar or str(parameter.name).upper()}`", help_))
            elif not parameter.hidden:
                names = ", ".join(f"`{n}`" for n in [*parameter.opts, *parameter.secondary_opts])
                default = parameter.default
                shown = ""
                if default not in (None, False, (), [], "") and not callable(default) and default != [None]:
                    shown = f" Default: `{default}`."
                rows.append((names, (parameter.help or "") + shown))
        if rows:
            out += ["", "| argument | meaning |", "|---|---|"]
            out += [f"| {names} | {_cell(help_)} |" for names, help_ in rows if names != "`--help`, `-h`"]
    return "\n".join(out) + "\n"


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        full = f"{prefix}{name}"
        if hasattr(command, "commands"):
            found += _commands(command, f"{full} ")
        elif not command.hidden:
            found.append((full, command))
    return found


def scenario_page() -> str:
    """Every key of scenario, sweep and plan files, from the pydantic models."""
    from prefixsim.scenario.models import Scenario
    from prefixsim.scenario.study import PlanSpec, StudySpec

    out = [
        "# Scenario reference",
        "",
        "<!-- written by docs/generate.py -->",
        "",
        "Unknown keys, duplicate keys and values of another type are refused with file, line and column. The JSON Schema "
        "for editors is `docs/schema/scenario.schema.json` (`prefixsim schema` prints it).",
    ]
    for title, model in (("Scenario", Scenario), ("Sweep", StudySpec), ("Plan", PlanSpec)):
        schema = model.model_json_schema(by_alias=True)
        definitions: dict[str, Any] = schema.get("$defs", {})
        out += ["", f"## {title}", ""]
        done: set[str] = set()
        queue = [(title, schema)]
        while queue:
            name, part = queue.pop(0)
            if name != title:
                out += ["", f"### {name}", ""]
            if part.get("description"):
                out += [_text(part["description"]), ""]
            properties: dict[str, Any] = part.get("properties", {})
            if properties:
                out += ["| key | type | default | meaning |", "|---|---|---|---|"]
            for key, value in properties.items():
                for ref in _references(value):
                    if ref not in done and ref in definitions:
                        done.add(ref)
                        queue.append((ref, definitions[ref]))
                default = "required" if key in part.get("required", []) else _default(value)
                out.append(f"| `{key}` | {_cell(_type(value))} | {_cell(default)} | {_cell(_limits(value))} |")
    return "\n".join(out) + "\n"


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rsplit("/", 1)[-1]] if "$ref" in value else []
        return own + [r for v in value.values() for r in _references(v)]
    return [r for v in value for r in _references(v)] if isinstance(value, list) else []


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return value["$ref"].rsplit("/", 1)[-1]
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return " / ".join(f"`{v}`" for v in value["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_type(v) for v in value[key]))
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}" if value.get("items") else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) else "mapping"
    return str(value.get("type", "any"))


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default is None:
        return ""
    if default == "":
        return "empty"
    return (
        f"`{str(default).lower() if isinstance(default, bool) else default}`"
        if not isinstance(default, dict)
        else "see below"
    )


def _limits(value: dict[str, Any]) -> str:
    names = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    parts = [value] + [v for k in ("anyOf", "oneOf") for v in value.get(k, [])]
    found = [f"{sign} {p[name]}" for p in parts for name, sign in names.items() if name in p]
    return " ".join(filter(None, [_text(value.get("description", "")), f"({', '.join(found)})" if found else ""]))


def _text(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\b", "")).strip()


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("<", "&lt;")


def pages() -> dict[Path, str]:
    """Path and text of every generated page."""
    return {HERE / "cli.md": cli_page(), HERE / "scenario.md": scenario_page()}


def main() -> None:
    """Writes or checks the pages."""
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        if stale:
            sys.exit("not current: " + ", ".join(p.name for p in stale) + "; run python docs/generate.py")
        return
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
