"""What the program tells a person on stderr while it works."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is being done: on a terminal one line that is overwritten and goes away, else a line
    for each message. Says once when kernels have to be compiled first."""
    if quiet:
        yield lambda _: None
        return
    from prefixsim.jit import kernels_are_cached

    err, started = sys.stderr, time.monotonic()
    first = not kernels_are_cached()
    live = err.isatty()

    def say(text: str) -> None:
        nonlocal first
        if first:
            print("compiling kernels (first run only, about half a minute) ...", file=err, flush=True)
            first = False
        if live:
            print(f"\r\x1b[2K{text} ... {time.monotonic() - started:.0f} s", end="", file=err, flush=True)
        else:
            print(text, file=err, flush=True)

    try:
        yield say
    finally:
        if live:
            print("\r\x1b[2K", end="", file=err, flush=True)
