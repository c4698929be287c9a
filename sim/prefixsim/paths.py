"""Where shipped data and the user's caches lie."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(kind: str) -> Path:
    """Folder of shipped data, `kind` being "hw_profiles" or "scenarios": in the wheel `_data/`, in a checkout its root."""
    shipped = _PACKAGE / "_data" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / kind


def cache_dir() -> Path:
    """The user's cache folder for prefixsim (not created here): $PREFIXSIM_CACHE_DIR, else $XDG_CACHE_HOME/prefixsim,
    else ~/.cache/prefixsim. Callers must work when it cannot be written."""
    override = os.environ.get("PREFIXSIM_CACHE_DIR")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "prefixsim"
    try:
        return Path.home() / ".cache" / "prefixsim"
    except RuntimeError:  # no home at all
        return Path(os.environ.get("TMPDIR", "/tmp")) / f"prefixsim-cache-{os.getuid()}"
