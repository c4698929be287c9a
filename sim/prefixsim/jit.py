"""The one place where functions are compiled, and the cache that makes the second run start at once.

Numba's own disk cache looks only at a function's own file: an edited callee in another file gives stale answers. So the
cache folder is keyed by the content of *every* source file that has kernels, the Numba version and the Python version;
an edit anywhere means a new folder (its files: `kernel_cache`). Where the user's cache folder cannot be written, or others
could write to it, a folder below $TMPDIR is used; where that cannot be either, kernels are compiled in memory.

Rules for kernels: module-level functions; arrays and scalars only; int64, int32, int8, float64 (no uint64: JIT and
Python disagree on it); constants are module globals of the kernel's own package; no RNG, no parallel, no fastmath.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.dispatcher import Dispatcher

from prefixsim.kernel_cache import SUFFIX, KernelCache
from prefixsim.paths import own_folder

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).resolve().parent
_MARKER = re.compile(rb"prefixsim\.jit(?! import (?:compile_seconds|kernel_|kernels_))")
"""In sources that have kernels or say that they belong to them; not in those that only ask about the cache."""


@cache
def kernel_hash() -> str:
    """SHA-256 (first 16 hex digits) over all sources with kernels, and the Numba and Python versions."""
    digest = hashlib.sha256(f"{numba.__version__}|{sys.version}".encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if _MARKER.search(source):
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + source)
    return digest.hexdigest()[:16]


@cache
def kernel_cache_dir() -> Path | None:
    """Folder of compiled kernels for the present sources, this user's alone; None where there can be none."""
    return own_folder("kernels", kernel_hash())


def kernels_are_cached() -> bool:
    """True when an earlier process has left compiled kernels for the present sources."""
    folder = kernel_cache_dir()
    return folder is not None and next(folder.glob(f"*{SUFFIX}"), None) is not None


def kernel(function: F) -> F:
    """Compiles a function on first call (nopython, GIL released, Python's integer division errors), cached on disk.

    With NUMBA_DISABLE_JIT=1 the function runs as plain Python, bounds-checked: the memory-safety and coverage lane.
    """
    return _compiled(function, {})


def lean_kernel(function: F) -> F:
    """As `kernel`, for functions that make no array: the arrays passed in are only borrowed, without reference counts.

    A call then costs no atomic operations, two for every array it is passed otherwise: 3-4 times faster where small
    functions hand many arrays on. Making an array inside is a compile error."""
    return _compiled(function, {"_nrt": False})


def inline_kernel(function: F) -> F:
    """As `lean_kernel`, and made part of its compiled callers: for what runs at every step. A call hands over nine words an
    array, which takes longer than a short step does otherwise."""
    return _compiled(function, {"_nrt": False, "forceinline": True})


def _compiled(function: F, more: dict[str, Any]) -> F:
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "python", **more}
    compiled: Any = numba.njit(**options)(function)
    folder = kernel_cache_dir()
    is_compiled = isinstance(compiled, Dispatcher)  # with NUMBA_DISABLE_JIT it is the function itself
    if folder is not None and is_compiled:
        compiled._cache = KernelCache(function, folder)
    return _without_literals(compiled) if is_compiled else compiled


def _without_literals(dispatcher: Any) -> Any:
    """Numba would compile a function anew for every constant that some kernel passes to it (`f(x, 0)`): a quarter of all
    compilations. So constants are passed as values."""
    plain, value = dispatcher.get_call_template, numba.types.unliteral

    def get_call_template(args: Any, kws: Any) -> Any:
        return plain([value(a) for a in args], {k: value(a) for k, a in kws.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher


@contextlib.contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Context that measures wall seconds spent compiling kernels (outermost compilations only); yields a reader."""
    listener = _OutermostTimer()
    with event.install_listener("numba:compile", listener):
        yield lambda: listener.total_s


class _OutermostTimer(event.Listener):  # type: ignore[misc]
    """Adds up the wall time of compile events, nested ones counted once."""

    def __init__(self) -> None:
        self.depth = 0
        self.started = 0.0
        self.total_s = 0.0

    def on_start(self, event: Any) -> None:
        from time import perf_counter

        if self.depth == 0:
            self.started = perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        from time import perf_counter

        self.depth -= 1
        if self.depth == 0:
            self.total_s += perf_counter() - self.started
