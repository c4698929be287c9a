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
