"""Progress of long work on stderr: nothing in the first two seconds, then a line with the estimated time left.

On a terminal one line is rewritten and goes away at the end; elsewhere (CI logs) a plain line appears every 30 s.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TextIO, TypeVar

T = TypeVar("T")

QUIET_S, REDRAW_S, PLAIN_EVERY_S = 2.0, 0.2, 30.0


class Progress:
    """Shows how far something is. A context manager; `advance` and `at` are cheap enough to be called often.

    >>> with Progress("writing", total=3, file=sys.stderr, enabled=False) as progress:
    ...     for _ in range(3):
    ...         progress.advance()
    >>> progress.done
    3
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        *,
        unit: str = "",
        enabled: bool = True,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """what: a few words. total: how much there is (None: not known, then no estimate). enabled=False (--quiet): silent."""
        self.what, self.total, self.unit, self.done = what, total, unit, 0.0
        self._file = file or sys.stderr
        self._live = self._file.isatty() and os.environ.get("TERM") != "dumb"
        self._enabled, self._clock = enabled, clock
        self._start = clock()
        self._next = self._start + QUIET_S
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def advance(self, amount: float = 1) -> None:
        """`amount` more is done."""
        self.at(self.done + amount)

    def at(self, done: float, what: str | None = None) -> None:
        """`done` in all is done; `what` replaces the words."""
        self.done = done
        if what is not None:
            self.what = what
        if not self._enabled:
            return
        now = self._clock()
        if now >= self._next:
            self._next = now + (REDRAW_S if self._live else PLAIN_EVERY_S)
            self._shown = True
            self._write(f"\r\x1b[2K{self.line(now)[:79]}" if self._live else self.line(now) + "\n")

    def of(self, done: float, total: float) -> None:
        """`done` of `total` is done; for work whose total becomes known, or grows, on the way."""
        self.total = total
        self.at(done)

    def line(self, now: float | None = None) -> str:
        """The line as it would be shown: "writing: 1,200 of 4,000 rows, 30 %, about 12 s left"."""
        spent = (self._clock() if now is None else now) - self._start
        unit = f" {self.unit}" if self.unit else ""
        if not self.total:
            return f"{self.what}: {self.done:,.0f}{unit}, {duration(spent)}"
        share = min(max(self.done / self.total, 0.0), 1.0)
        left = f", about {duration(spent / share - spent)} left" if share > 0 else ""
        return f"{self.what}: {self.done:,.0f} of {self.total:,.0f}{unit}, {100 * share:.0f} %{left}"

    def close(self) -> None:
        """Takes the line away."""
        if self._shown and self._live:
            self._write("\r\x1b[2K")
        self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # nobody reads: that must not end the work
            self._enabled = False


def duration(spent_s: float) -> str:
    """12.3 -> "12 s", 90 -> "1 min 30 s", 4000 -> "1 h 6 min"."""
    whole = max(round(spent_s), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def track(items: Iterable[T], what: str, total: float | None = None, *, unit: str = "") -> Iterator[T]:
    """Yields the items and shows how many of `total` are done."""
    with Progress(what, total, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance()
