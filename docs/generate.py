"""Writes the reference pages that follow from code: docs/cli.md and docs/scenario.md. `--check` says whether they are current.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import reference_cli
import reference_scenario

HERE = Path(__file__).resolve().parent


def pages() -> dict[Path, str]:
    """Path and text of every generated page."""
    return {HERE / "cli.md": reference_cli.page(), HERE / "scenario.md": reference_scenario.page()}


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
