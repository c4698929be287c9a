"""Progress: silent for short work, one rewritten line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from prefixsim.report.progress import Progress, duration, track


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_short_work_is_silent(clock: Clock) -> None:
    out = Screen()
    with Progress("reading", 10, file=out, clock=clock) as progress:
        for _ in range(10):
            clock.now += 0.19
            progress.advance()
    assert out.getvalue() == ""


def test_long_work_shows_the_time_left_and_goes_away(clock: Clock) -> None:
    out = Screen()
    with Progress("reading", 100, unit="rows", file=out, clock=clock) as progress:
        for _ in range(25):
            clock.now += 1
            progress.advance()
    shown = out.getvalue()
    assert "reading: 25 of 100 rows, 25 %, about 1 min 15 s left" in shown
    assert shown.endswith("\r\x1b[2K")


def test_plain_lines_where_nobody_looks(clock: Clock) -> None:
    out = io.StringIO()
    with Progress("reading", 100, file=out, clock=clock) as progress:
        for _ in range(100):
            clock.now += 1
            progress.advance()
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 4  # at 2, 32, 62 and 92 s


def test_quiet(clock: Clock) -> None:
    out = Screen()
    with Progress("reading", 100, file=out, clock=clock, enabled=False) as progress:
        clock.now = 100
        progress.at(50)
    assert out.getvalue() == ""


def test_unknown_total_and_a_reader_who_left(clock: Clock) -> None:
    out = Screen()
    progress = Progress("reading", file=out, clock=clock)
    clock.now = 3
    progress.at(1234, "parsing")
    assert "parsing: 1,234, 3 s" in out.getvalue()
    out.close()
    clock.now = 9
    progress.advance()  # writing fails: the work goes on


def test_track_yields_everything() -> None:
    assert list(track(range(5), "counting", 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min 0 s"), (4000, "1 h 6 min"), (-1, "0 s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
