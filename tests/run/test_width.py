"""What the commands print fits a terminal of 80 columns, whatever the names and numbers are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prefixsim.cli.app import app, register_commands
from prefixsim.wrap import fitted, wrapped

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


@pytest.mark.parametrize(
    "arguments",
    [
        ["hw", "list"],
        ["hw", "show", "h100-sxm-80g"],
        ["hw", "show", "llama-3.1-8b"],
        ["hw", "show", "reference"],
        ["kv-capacity", "--gpu", "h100-sxm-80g", "--model", "llama-3.1-8b"],
        ["kv-capacity", "--gpu", "h200", "--model", "llama-3.1-8b", "--engine", "sglang"],
        ["step-time", "--gpu", "h100-sxm-80g", "--model", "llama-3.1-8b", "--prefill", "100000", "--decode", "64x1024"],
        ["trace", "formats"],
        ["trace", "describe", str(SCENARIOS / "claim-c01-position.jsonl")],
        ["explain", str(SCENARIOS / "claim-c01-position.yaml"), "--no-engines"],
        ["curve", str(SCENARIOS / "claim-c01-position.yaml")],
    ],
    ids=lambda a: " ".join(a[:2]),
)
def test_prints_at_most_80_columns(arguments: list[str]) -> None:
    register_commands()
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    assert len(widest(done.output)) <= 80, widest(done.output)


def test_long_lines_go_on_further_in_and_lose_no_word() -> None:
    text = "short\n  " + " ".join(f"word{i}" for i in range(40)) + "\n\nend  "
    out = fitted(text)
    assert out.split() == text.split()
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[1].startswith("  word0")
    assert all(line.startswith("      word") for line in out.splitlines()[2:-2])
    assert fitted("x" * 100) == "x" * 100  # a path is not cut
    assert wrapped("a b", "- ") == "- a b"


def test_square_brackets_in_help_are_shown_or_not_used() -> None:
    """typer's help reads them as markup and drops them."""
    register_commands()

    def texts(command: typer.core.TyperGroup | typer.core.TyperCommand) -> list[str]:
        own = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
        return own + [t for c in getattr(command, "commands", {}).values() for t in texts(c)]

    found = texts(typer.main.get_command(app))
    assert len(found) > 100
    assert not [t for t in found if re.search(r"\[[^\]]*\]", t)]


@pytest.mark.parametrize(
    "arguments", [["hw", "list"], ["hw", "show", "h100-sxm-80g"], ["trace", "formats"], ["schema"]], ids=" ".join
)
def test_json_is_json(arguments: list[str]) -> None:
    register_commands()
    done = CliRunner().invoke(app, [*arguments, *([] if arguments == ["schema"] else ["--json"])])
    assert done.exit_code == 0, done.output
    json.loads(done.stdout, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


def test_every_command_has_json() -> None:
    register_commands()

    def lacking(command: typer.core.TyperGroup | typer.core.TyperCommand, name: str) -> list[str]:
        below = getattr(command, "commands", None)
        if below:
            return [x for key, c in below.items() for x in lacking(c, f"{name} {key}".strip())]
        return [] if any("--json" in p.opts for p in command.params) else [name]

    assert lacking(typer.main.get_command(app), "") == ["schema"]  # which prints JSON anyway


def test_convert_says_what_it_wrote(tmp_path: Path) -> None:
    register_commands()
    trace, out = str(SCENARIOS / "claim-c01-position.jsonl"), tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["trace", "convert", trace, "--out", str(out), "--json"])
    said = json.loads(done.stdout)
    assert said == {"out": str(out), "requests": len(out.read_text().splitlines()), "bytes": out.stat().st_size}
