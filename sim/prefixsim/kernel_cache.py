"""Compiled kernels on disk: one file a kernel and signature, whole or absent, checked before anything in it is read.

A file is a pickle, and could run anything: it is read only from a folder that nobody else can write to (`paths.own_folder`),
and only where its SHA-256 is right, so that what is cut short or damaged is compiled anew. Numba's own cache has neither
check; it fails on a damaged index and on a full disk, and two processes can give one number to two signatures. There is no
index here: a file's name follows from what it holds. What cannot be read or written is compiled in memory. A folder that no
process has used for `KEPT_DAYS` is of an older version: it goes when a newer one compiles.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import shutil
import stat
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from prefixsim.paths import read_regular

SUFFIX = ".kernel"
MAX_BYTES = 1 << 30
KEPT_DAYS = 30
_DIGEST = hashlib.sha256().digest_size


class KernelCache(FunctionCache):  # type: ignore[misc]
    """What Numba asks for a function's compiled versions, and gives new ones to."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._py_func = function
        self._folder = folder

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature, None where there is none."""
        target_context.refresh()
        key = repr(self._index_key(sig, target_context.codegen()))
        try:
            data = read_regular(self._path(key), MAX_BYTES)
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None
        _used(self._folder)
        found, payload = pickle.loads(data[_DIGEST:])
        return CompileResult._rebuild(target_context, *payload) if found == key else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps a compiled function, if that is possible."""
        if data.lifted or data.library.has_dynamic_globals:
            return
        key = repr(self._index_key(sig, data.codegen))
        body = dumps((key, data._reduce()))
        path, temporary = self._path(key), None
        try:
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".tmp")
            with os.fdopen(handle, "wb") as f:
                f.write(hashlib.sha256(body).digest() + body)
            os.replace(temporary, path)
            _forget_older(self._folder)
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def flush(self) -> None:
        """Nothing to do: files are replaced one by one."""

    def _path(self, key: str) -> Path:
        name = f"{self._py_func.__module__}.{self._py_func.__qualname__}"
        return self._folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"


@cache
def _used(folder: Path) -> None:
    """Once a process and folder: its time says when it was last used, to the day."""
    with contextlib.suppress(OSError):
        if folder.stat().st_mtime < time.time() - 86_400:
            os.utime(folder)


@cache
def _forget_older(folder: Path) -> None:
    """Once a process and folder: those beside it of the same kind that have not been used for long are removed."""
    oldest = time.time() - KEPT_DAYS * 86_400
    for other in folder.parent.glob("[0-9a-f]*"):
        if other != folder and folder.parent.name == "kernels" and re.fullmatch("[0-9a-f]{16}", other.name):
            about = other.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_mtime < oldest:
                shutil.rmtree(other, ignore_errors=True)
