"""Sections that a calibration has finished, kept beside the profile until it is whole: one that is cut short goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixsim.paths import read_regular, write_whole

MAX_BYTES = 64 << 20


class Kept:
    """`<name>.unfinished.json`. where: what must be equal for rows to be of the same measurement (device, versions)."""

    def __init__(self, profile: Path, where: dict[str, str]) -> None:
        self.path = profile.with_suffix(".unfinished.json")
        self.where = where
        self.sections: dict[str, list[dict[str, Any]]] = {}

    def find(self) -> str | None:
        """Takes what an earlier calibration has left; returns what to say about it. The file can be written afterwards, or
        OutputError is raised."""
        said = None
        if self.path.exists():
            try:
                found = json.loads(read_regular(self.path, MAX_BYTES))
                sections = {str(k): _rows(v) for k, v in found["sections"].items()}
                where = found["where"]
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                said = f"{self.path}: not what a calibration writes; it is not used, and replaced"
            else:
                if where == self.where:
                    self.sections = sections
                    names = ", ".join(sections) or "nothing"
                    said = f"{self.path}: {names} measured by a calibration that was cut short; going on from there"
                else:
                    said = f"{self.path}: measured on another device or by other versions; it is not used, and replaced"
        self._write()
        return said

    def add(self, section: str, rows: list[dict[str, Any]]) -> None:
        """Keeps a finished section."""
        self.sections[section] = rows
        self._write()

    def forget(self) -> None:
        """The profile is whole."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        write_whole(self.path, json.dumps({"where": self.where, "sections": self.sections}) + "\n", folders=True)


def _rows(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) and "section" in row for row in value):
        raise ValueError("rows")
    return value
