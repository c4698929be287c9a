"""Runs the command line in this process, exactly as the `prefixsim` script does."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def prefixsim(*args: object) -> Result:
    """Exit code, stdout and stderr of one command."""
    from prefixsim.cli.app import run_app

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["prefixsim", *map(str, args)]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_app()
    except SystemExit as exc:
        code = exc.code
    finally:
        sys.argv = argv
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
