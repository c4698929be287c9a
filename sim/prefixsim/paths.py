"""Where shipped data and the user's caches lie, and how a file that a person names is opened and written."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from prefixsim.errors import InputError, OutputError, Problem

LINE_LIMIT = 1 << 20
_PACKAGE = Path(__file__).resolve().parent


def data_dir(kind: str) -> Path:
    """Folder of shipped data, `kind` being "hw_profiles" or "scenarios": in the wheel `_data/`, in a checkout its root."""
    shipped = _PACKAGE / "_data" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / kind


def cache_dir() -> Path:
    """The user's cache folder for prefixsim (not created here): $PREFIXSIM_CACHE_DIR, else $XDG_CACHE_HOME/prefixsim,
    else ~/.cache/prefixsim; without a home, below $TMPDIR. Callers must work when it cannot be written."""
    override = os.environ.get("PREFIXSIM_CACHE_DIR")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "prefixsim"
    home = Path(os.path.expanduser("~"))
    return home / ".cache" / "prefixsim" if home.is_absolute() and home.is_dir() else _spare()


def _spare() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"prefixsim-cache-{os.geteuid()}"


def own_folder(*parts: str) -> Path | None:
    """A folder of these names in the user's cache folder, or else below $TMPDIR; made where it is absent.

    Nobody but this user (and root) can write to it or put another one in its place: what lies in it may be trusted. One that
    root has filled may be for reading only. None where there is no such folder.
    """
    for root in dict.fromkeys((cache_dir(), _spare())):
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            folder = root
            for part in ("", *parts):
                folder = folder / part
                folder.mkdir(mode=0o700, exist_ok=True)
                about = folder.stat() if folder == root else folder.lstat()
                open_to_others = about.st_mode & 0o022 and not (folder == root and about.st_mode & stat.S_ISVTX)
                if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.geteuid()) or open_to_others:
                    raise OSError(errno.EPERM, "others can write to it", str(folder))
            if about.st_uid == os.geteuid():
                with tempfile.TemporaryFile(dir=folder):
                    return folder
            if any(folder.iterdir()):  # root has filled it, as in a container's image: good for reading
                return folder
        except OSError:
            continue
    return None


def open_regular(path: str | Path) -> BufferedReader:
    """Opens a file to read its bytes. Raises OSError, also for what is no regular file (a pipe may wait for ever, a device
    never end) and for what can be no file name."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as exc:  # a NUL, or characters that the file system's encoding lacks
        raise OSError(errno.EINVAL, f"no file name ({exc})", str(path)) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise OSError(errno.EINVAL, f"is {what}, not a regular file", str(path))
    return os.fdopen(handle, "rb")


def open_text(path: str | Path, newline: str | None = None, errors: str = "replace") -> TextIO:
    """As `open_regular`, for UTF-8 text; a byte order mark is dropped."""
    return io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", errors=errors, newline=newline)


def bounded_lines(path: Path, f: TextIO, most: int | None = None) -> Iterator[str]:
    """A text's lines. Raises InputError for one longer than 1 MiB, and where all together have more than `most` characters,
    before more is read: a file that unpacks to far more than it is must not fill the memory."""
    number = total = 0
    while line := f.readline(LINE_LIMIT + 1):
        number += 1
        total += len(line)
        if len(line) > LINE_LIMIT:
            raise InputError(Problem("a line is longer than 1 MiB", file=str(path), line=number))
        if most is not None and total > most:
            raise InputError(Problem(f"is larger than {most >> 20} MiB", file=str(path), line=number))
        yield line


def read_regular(path: str | Path, limit: int) -> bytes:
    """All bytes of a regular file. Raises OSError, also where there are more than `limit`."""
    with open_regular(path) as f:
        raw = f.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", str(path))
    return raw


@contextlib.contextmanager
def whole_file(path: Path, *, folders: bool = False) -> Iterator[Path]:
    """A name to write to, which becomes `path` when the block ends well and is removed otherwise: nobody finds half a file.

    A link is followed; a device or a pipe is written to as it is. folders: those above are made. Raises OutputError, with the
    path, where the file system refuses.
    """
    part = None
    try:
        place = Path(os.path.realpath(path))
        part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
        if folders:
            place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not place.is_file():
            yield place
            return
        yield part
        part.replace(place)
    except OSError as exc:
        raise OutputError(f"{path}: could not be written: {exc.strerror or exc}") from None
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()


def write_whole(path: Path, text: str, *, folders: bool = False) -> None:
    """Writes a text by `whole_file`."""
    with whole_file(path, folders=folders) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def make_folder(folder: Path) -> None:
    """Makes a folder, and finds out, before any work is done, whether files can be written to it. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise OutputError(f"{folder}: results could not be written there: {exc.strerror or exc}") from None
