"""What the program tells a person on stderr while it works."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from prefixsim.report.progress import duration
from prefixsim.wrap import WIDTH

REDRAW_S, ESTIMATE_AFTER_S = 0.2, 2.0


class Teller:
    """Call it with what is being done. On a terminal one line is rewritten and goes away at the end, with the share done and
    the time left where `share` is told; else each message is a line. Says once when kernels have to be compiled first."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.err = quiet, sys.stderr
        self.live = self.err.isatty() and os.environ.get("TERM") != "dumb"
        self.text, self.since, self.drawn, self.first = "", time.monotonic(), 0.0, False
        if not quiet:
            from prefixsim.jit import kernels_are_cached

            self.first = not kernels_are_cached()

    def __call__(self, text: str) -> None:
        """Something new is being done."""
        if self.quiet:
            return
        if self.first:
            from prefixsim.jit import kernel_cache_dir

            when = "first run only" if kernel_cache_dir() else "at every run: there is no folder to keep them in"
            print(f"compiling kernels ({when}, about a minute) ...", file=self.err, flush=True)
            self.first = False
        self.text, self.since = text, time.monotonic()
        if self.live:
            self._draw("")
        else:
            print(text, file=self.err, flush=True)

    def share(self, done: int, total: int) -> None:
        """`done` of `total` is done; cheap enough to be called often."""
        now = time.monotonic()
        if not self.live or self.quiet or now - self.drawn < REDRAW_S:
            return
        spent = now - self.since
        left = f", about {duration(spent * (total - done) / done)} left" if done and spent > ESTIMATE_AFTER_S else ""
        self._draw(f" {100 * done / max(total, 1):.0f} %{left}")

    def clear(self) -> None:
        """Takes the line away, so that results can be printed."""
        if self.live and not self.quiet:
            print("\r\x1b[2K", end="", file=self.err, flush=True)

    def _draw(self, tail: str) -> None:
        self.drawn = time.monotonic()
        room = WIDTH - 1 - len(" ..." + tail)  # a line that wraps could not be taken away
        print(f"\r\x1b[2K{self.text[:room]} ...{tail}", end="", file=self.err, flush=True)


@contextlib.contextmanager
def progress(*, quiet: bool = False) -> Iterator[Teller]:
    """Gives a `Teller`, and clears its line at the end."""
    teller = Teller(quiet=quiet)
    try:
        yield teller
    finally:
        teller.clear()
