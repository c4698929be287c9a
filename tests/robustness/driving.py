"""Drives the command line with hostile input: in this process, or in one of its own with bounds on time and memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MEMORY_BYTES = 4 << 30
SCRIPT = "import sys; sys.argv[0] = 'prefixsim'; from prefixsim.cli.app import run_app; run_app()"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Hung(Exception):
    """A command took longer than it may."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises `Hung` in the block after so many seconds of this process's own time, or ten times as many on the wall: the
    machine may be busy with something else."""

    def stop(*_: object) -> None:
        raise Hung(f"still running after {seconds} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    try:
        for _, clock, limit in timers:
            signal.setitimer(clock, limit)
        yield
    finally:
        for (number, clock, _), handler in zip(timers, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def prefixsim(*args: object, seconds: float = 30) -> Result:
    """Exit code, stdout and stderr of one command, run in this process as the script does."""
    from prefixsim.cli.app import run_app

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["prefixsim", *map(str, args)]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), deadline(seconds):
            run_app()
    except SystemExit as exc:
        code = exc.code
    finally:
        sys.argv = argv
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def apart(
    *args: object,
    env: Mapping[str, str] | None = None,
    seconds: float = 120,
    cwd: Path | None = None,
    file_bytes: int = 0,
) -> subprocess.CompletedProcess[bytes]:
    """One command in a process of its own, with at most 4 GiB of address space; file_bytes: no file grows larger (0: any)."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        if file_bytes:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    own = {"PYTHONDONTWRITEBYTECODE": "1"} if file_bytes else {}  # Python would leave cut short bytecode
    return subprocess.run(
        command(*args), env={**os.environ, **own, **(env or {})}, capture_output=True, timeout=seconds, cwd=cwd, check=False,
        stdin=subprocess.DEVNULL, preexec_fn=limits,
    )  # fmt: skip


def command(*args: object) -> list[str | bytes]:
    """The words that run the command line with this Python."""
    return [sys.executable, "-c", SCRIPT, *(a if isinstance(a, bytes) else str(a) for a in args)]


def for_people(result: Result, code: int = 2) -> str:
    """Asserts that a command ended as it should where it could not run: exit code, a message, bounded, without control
    characters and not the last resort's. Returns the message (`check` prints it on stdout)."""
    text = result.err or result.out
    assert result.code == code, (result.code, text[-500:])
    assert text.strip()
    assert len(text) < 8000, text[:500]
    assert "Traceback" not in text, text
    assert "internal error" not in text, text
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text), repr(text)
    return text
