"""Progress of counted work on stderr: bar and ETA on a terminal, a line now and then otherwise."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

EVERY_S = 10.0


@contextlib.contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yields `count(done, total)`. Nothing is shown with `quiet`, nor in the first two seconds."""
    if quiet:
        yield lambda done, total: None
        return
    started = last = time.monotonic()
    live = sys.stderr.isatty()
    shown = False

    def count(done: int, total: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now - started < 2 or (now - last < (0.2 if live else EVERY_S) and done < total):
            return
        last, shown = now, True
        left = f", about {(now - started) / done * (total - done):.0f} s left" if 0 < done < total else ""
        text = f"{what}: {done} of {total} in {now - started:.0f} s{left}"
        print(f"\r\x1b[2K{text}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)

    try:
        yield count
    finally:
        if live and shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
