"""The typer application and the one place where errors become messages and exit codes."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import pkgutil
import signal
import sys
from functools import cache

import typer

import prefixsim.cli
from prefixsim.errors import EXIT_COULD_NOT_RUN, PrefixsimError, printable

INTERRUPTED = 130

app = typer.Typer(
    name="prefixsim",
    help="Simulate LLM prefix caching: vLLM's hash blocks and SGLang's radix tree on modelled GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from prefixsim import __version__

        typer.echo(f"prefixsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


@cache
def register_commands() -> None:
    """Finds every `cmd_*.py` beside this file, in alphabetical order."""
    for module in sorted(m.name for m in pkgutil.iter_modules(prefixsim.cli.__path__) if m.name.startswith("cmd_")):
        importlib.import_module(f"prefixsim.cli.{module}").register(app)


def run_app() -> None:
    """Runs the application. Exit codes: 0 fine, 1 a check failed, 2 could not run. No traceback reaches a user
    (PREFIXSIM_DEBUG=1 shows it)."""
    _open_what_is_closed()
    _escape_what_cannot_be_encoded()
    _end_as_by_ctrl_c()
    try:
        register_commands()
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk or a closed pipe shows here, not while Python ends
    except PrefixsimError as exc:
        _fail(exc, f"error: {exc}", exc.exit_code)
    except SystemExit as exc:
        if exc.code == INTERRUPTED:  # typer has turned Ctrl-C into it
            _interrupted(exc)
        fault = _behind(exc, EOFError)
        if fault is not None:  # typer takes it for the end of typed input, and its exit code would mean a failed check
            _fail(exc, f"internal error: EOFError: {fault}")
        if isinstance(exc.__context__, BrokenPipeError):  # typer's exit code for it would mean a failed check
            _drop_stdout()
            sys.exit(EXIT_COULD_NOT_RUN)
        raise
    except KeyboardInterrupt as exc:
        _interrupted(exc)
    except MemoryError as exc:
        _fail(exc, "error: out of memory; use a shorter trace, a coarser granularity or fewer replicas")
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(EXIT_COULD_NOT_RUN)
    except OSError as exc:
        _fail(exc, f"error: {exc.filename or _unnamed()}: {exc.strerror or exc}")
    except Exception as exc:  # the last resort: still no traceback
        _fail(
            exc,
            f"internal error: {type(exc).__name__}: {exc}\nThis is a defect in prefixsim; PREFIXSIM_DEBUG=1 shows where.",
        )


def _end_as_by_ctrl_c() -> None:
    """A request to end (kill, a batch system, a closed terminal) is taken as Ctrl-C is: temporary files go, workers stop."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
                signal.signal(number, stop)


def _behind(exc: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first exception of a kind while whose handling this one was raised."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause


def _interrupted(exc: BaseException) -> None:
    sys.unraisablehook = lambda _: None  # compilers that were cut short complain while they are taken down
    _fail(exc, "interrupted; finished results are kept")


def _unnamed() -> str:
    """What an error without a file name is about."""
    try:
        os.getcwd()
    except OSError:
        return "the working folder is gone"
    return "output"


def _fail(exc: BaseException, message: str, code: int = EXIT_COULD_NOT_RUN) -> None:
    if os.environ.get("PREFIXSIM_DEBUG", "") not in ("", "0"):
        raise exc
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
    with contextlib.suppress(OSError):
        print(printable(message), file=sys.stderr, flush=True)
    sys.exit(code)


def _drop_stdout() -> None:
    """Nobody reads it any more, or it cannot be written: what is still buffered goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_is_closed() -> None:
    """A stream that was closed before the start would be None, and its number go to the next file that is opened."""
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _escape_what_cannot_be_encoded() -> None:
    """Where a terminal's encoding lacks a character, or a file name is not UTF-8, JSON's \\uXXXX stands for it."""
    codecs.register_error("prefixsim.escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="prefixsim.escape")


def _escaped(fault: UnicodeError) -> tuple[str, int]:
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    units = fault.object[fault.start : fault.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), fault.end
