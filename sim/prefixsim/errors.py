"""The exception tree. Everything a user can cause is a `PrefixsimError`; the command line prints it without a traceback.

PrefixsimError                 exit 2: could not run
├── InputError                 something a person wrote is wrong (carries every problem found, each with its place)
│   ├── ScenarioError          scenario or study YAML
│   ├── TraceError             a trace file
│   └── ProfileError           a hardware or model profile
├── DoesNotFitError            model and KV cache do not fit the GPU, or a prompt does not fit the pool
├── NotModelledError           a known feature that is refused rather than guessed
├── MissingExtraError          an optional dependency is not installed
└── OutputError                results could not be written
CheckFailed                    exit 1: it ran, and an expectation failed
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXIT_OK, EXIT_CHECK_FAILED, EXIT_COULD_NOT_RUN = 0, 1, 2
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (file, 1-based line and column, key), what was found, what was expected."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        file = None if self.file is None else _cut(self.file, 1000)
        place = ":".join(str(p) for p in (file, self.line, self.column) if p is not None)
        return ": ".join(part for part in (place, _cut(self.key or "", 200), _cut(self.message, 2000)) if part)


def _cut(text: str, most: int) -> str:
    """Names and values in a file may be megabytes long."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


class PrefixsimError(Exception):
    """Base of all errors that are reported to a person. `exit_code` is what the command line exits with."""

    exit_code = EXIT_COULD_NOT_RUN


class InputError(PrefixsimError):
    """Input is wrong. `problems` lists every fault found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class ScenarioError(InputError):
    """A scenario or study file is wrong."""


class TraceError(InputError):
    """A trace file is wrong."""


class ProfileError(InputError):
    """A GPU or model profile is wrong."""


class DoesNotFitError(PrefixsimError):
    """Weights, KV cache or one prompt do not fit; the message says by how much and what would fit."""


class NotModelledError(PrefixsimError):
    """A feature of the real engine that is refused by name instead of being guessed."""


class MissingExtraError(PrefixsimError):
    """An optional dependency is missing."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'prefixsim[{extra}]'")


class OutputError(PrefixsimError):
    """Results could not be written."""


class CheckFailed(PrefixsimError):
    """An expectation or a baseline comparison failed."""

    exit_code = EXIT_CHECK_FAILED


def printable(text: str) -> str:
    """The text with control characters (all but newlines and tabs) as escapes: names in a file must not steer a terminal."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the one known name that begins so, else the closest one; else " (known: a, b, ...)";
    "" if none are known."""
    names = sorted(known)
    longer = [n for n in names if len(name) >= 3 and n.lower().startswith(name.lower())]
    hit = longer if len(longer) == 1 else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if hit:
        return f" (did you mean '{hit[0]}'?)"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f" (known: {shown})"
