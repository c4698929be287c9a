"""A run folder appears whole or not at all: written under another name in the same place, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prefixsim.errors import OutputError

MARK = "summary.json"


def _why(exc: OSError) -> str:
    return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror or exc)


def check_target(folder: Path, *, replaced: bool = True) -> None:
    """Raises OutputError, before any work is done, where a run folder could not be written or (replaced) would replace other
    data, or the folder that the user works in: a shell would go on in the one that is gone."""
    try:
        if replaced and folder.exists():
            if Path.cwd().is_relative_to(folder.resolve()):
                raise OutputError(
                    f"{folder}: is the folder you are in, or above it, and would be replaced: name another"
                )
            if not folder.is_dir():
                raise OutputError(f"{folder}: is a file, not a folder for results")
            if not (folder / MARK).exists() and any(folder.iterdir()):
                raise OutputError(f"{folder}: has files in it but no {MARK}: not a run folder, so it is not replaced")
        parent = _nearest_parent(folder)
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as exc:
        raise OutputError(f"{folder}: results cannot be written there ({exc.strerror or exc})") from None


def _nearest_parent(folder: Path) -> Path:
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `folder`; when the block ends well it becomes `folder`, replacing an older run.

    Raises OutputError where it cannot be written. After any error nothing is left of it and an older run is untouched.
    """
    folder = folder.absolute()
    temporary: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        _replace(temporary, folder)
        temporary = None
    except OSError as exc:
        raise OutputError(f"{folder}: results could not be written ({_why(exc)})") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def _replace(new: Path, folder: Path) -> None:
    for _ in range(100):
        try:
            new.rename(folder)  # succeeds where there is none, or an empty one
            return
        except OSError:
            if not folder.is_dir():
                raise
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):  # another run has taken it away
            folder.rename(old / "run")
        shutil.rmtree(old, ignore_errors=True)
    raise OSError(f"{folder} keeps being replaced by other runs")
