"""Finished points on disk: one JSON file a point under its identity, written to a temporary name and renamed.

Killed at any moment, a study resumes: a point that has its file is not run again; a half-written one does not exist.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from prefixsim import __version__
from prefixsim.paths import make_folder, read_regular, write_whole

MAX_POINT_BYTES = 256 << 20


def canonical(data: Any) -> str:
    """JSON with sorted keys and no spaces: equal data, equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def point_id(scenario: Any, workload_sha256: str) -> str:
    """Identity of one point (24 hex digits): SHA-256 over resolved scenario, workload content and program version."""
    text = canonical([scenario, workload_sha256, __version__])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class PointStore:
    """Results by point identity in `<folder>/points/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "points"

    def check(self) -> None:
        """Raises OutputError, before any work is done, where points could not be kept."""
        make_folder(self.folder)

    def get(self, identity: str) -> dict[str, Any] | None:
        """A finished point, or None when it is absent or not readable as a whole."""
        try:
            data = json.loads(read_regular(self.folder / f"{identity}.json", MAX_POINT_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        whole = isinstance(data, dict) and data.get("point_id") == identity and isinstance(data.get("summary"), dict)
        return data if whole else None

    def put(self, identity: str, summary: dict[str, Any]) -> None:
        """Keeps a finished point."""
        text = canonical({"point_id": identity, "summary": summary}) + "\n"
        write_whole(self.folder / f"{identity}.json", text, folders=True)
