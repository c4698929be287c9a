"""The documentation: generated pages are current, its examples print what they say, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md"])
EXAMPLE = re.compile(r"<!-- example: (?P<name>[\w-]+) -->\n```console\n(?P<body>.*?)```", re.DOTALL)


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_schema_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from prefixsim.cli import main; main()", "schema"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (DOCS / "schema" / "scenario.schema.json").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def examples() -> list[tuple[str, str, str]]:
    """(page, name, console text) of every checked example."""
    return [(p.name, m["name"], m["body"]) for p in PAGES for m in EXAMPLE.finditer(p.read_text())]


@pytest.mark.parametrize(("page", "name", "body"), examples(), ids=lambda x: x if len(str(x)) < 40 else "")
def test_examples_print_what_they_say(page: str, name: str, body: str, tmp_path: Path) -> None:
    """Commands after `$ ` are run in the checkout's root; what follows is their output, `...` standing for anything."""
    for block in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = block.partition("\n")
        words = shlex.split(command)
        assert words[0] == "prefixsim"
        env = {**os.environ, "PYTHONPATH": "", "COLUMNS": "80", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-c", "from prefixsim.cli import main; main()", *words[1:]],
            capture_output=True, text=True, cwd=ROOT, env=env, check=False,
        )  # fmt: skip
        shown = done.stdout + (done.stderr if done.returncode == 2 else "")
        pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*?")
        assert re.search(pattern, shown.strip(), re.DOTALL), f"{page} {name}: {command}\n{shown}\n{done.stderr}"


def test_the_changelog_keeps_to_the_policy() -> None:
    """Every version says what moved numbers, and no heading is used that the policy does not explain."""
    known = set(re.findall(r"^\| \*(.+?)\* \|", (DOCS / "compatibility.md").read_text(), re.MULTILINE))
    assert "Results change" in known
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert versions
    for version in versions:
        headings = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert "Results change" in headings, version[:30]
        assert set(headings) <= known


COMMAND = re.compile(r"^(?:\$ |    )?(prefixsim [a-z].*?)(?:\s{2,}.*)?$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page: Path) -> None:
    """Commands in code are commands of the program, with options that it has."""
    import typer

    from prefixsim.cli.app import app, register_commands

    register_commands()
    text = page.read_text()
    blocks = re.findall(r"```(?:console)?\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    inline = re.findall(r"`(prefixsim [a-z][^`]*)`", text)
    for line in [*inline, *(m[1] for block in blocks for m in COMMAND.finditer(block))]:
        words = line.split()[1:]
        command = typer.main.get_command(app)
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"{page.name}: {line}"
            command = command.commands[words.pop(0)]
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        for word in words:
            for option in re.findall(r"^\[?(--?[a-z][\w-]*)", word.strip("`.,")):
                assert option in options, f"{page.name}: {line}: {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_whole_files_on_pages_are_valid(page: Path) -> None:
    """YAML on a page that is a whole scenario, sweep or plan can be read."""
    from prefixsim.scenario.load import scenario_from
    from prefixsim.scenario.strict_yaml import Document, parse
    from prefixsim.scenario.study import PlanSpec, StudySpec

    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if not block.startswith("name: ") or "jobs:" in block:
            continue
        data = parse(block, page.name).data
        if "base" in data:
            (StudySpec if "axes" in data else PlanSpec).model_validate(data)
        else:
            scenario_from(Document(data, {}, {}, page.name), ROOT)
