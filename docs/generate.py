"""Writes what follows from code: docs/cli.md, docs/scenario.md and the pictures of docs/model.md. `--check` says whether they are current.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pictures
import reference_cli
import reference_scenario

HERE = Path(__file__).resolve().parent


def pages() -> dict[Path, str]:
    """Path and text of every generated page."""
    drawn = {HERE / "pictures" / name: text for name, text in pictures.pictures().items()}
    return {HERE / "cli.md": reference_cli.page(), HERE / "scenario.md": reference_scenario.page(), **drawn}


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
