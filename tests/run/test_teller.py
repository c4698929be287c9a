"""What is told on stderr: lines in a log, one line that is rewritten on a terminal, nothing when quiet."""

from __future__ import annotations

import io
import re

import pytest

from prefixsim.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("prefixsim.jit.kernels_are_cached", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    return now


def test_a_terminal_shows_one_line_with_the_time_left(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", err := Terminal())
    with progress.progress() as say:
        say("simulating " + "a very long name " * 8)
        for second in range(1, 401):
            clock[0] = second
            say.share(second, 4000)
    drawn = err.getvalue().split("\r\x1b[2K")
    assert drawn[-1] == ""  # taken away at the end
    assert "\n" not in err.getvalue()
    assert max(map(len, drawn)) < 80  # a line that wraps would leave its beginning behind
    assert "left" not in drawn[2]
    assert drawn[-2].endswith(" ... 10 %, about 1 h 0 min left")


def test_a_log_has_plain_lines_and_quiet_has_none(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", err := io.StringIO())
    with progress.progress() as say:
        say("reading")
        say.share(1, 2)
    assert err.getvalue() == "reading\n"
    monkeypatch.setattr("sys.stderr", err := Terminal())
    with progress.progress(quiet=True) as say:
        say("reading")
        say.share(1, 2)
    assert err.getvalue() == ""
    assert not re.search(r"\x1b", err.getvalue())
