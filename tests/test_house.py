"""The house rules that no other tool checks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prefixsim import errors


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_help_loads_neither_numba_nor_simpy() -> None:
    loaded = modules_after("from prefixsim.cli.app import register_commands; register_commands()")
    assert "typer" in loaded
    assert not loaded & {"numba", "simpy", "plotly", "torch", "numpy"}


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("blok_size", ["block_size", "page_size"], " (did you mean 'block_size'?)"),
        ("zzz", ["a", "b"], " (known: a, b)"),
        ("x", [], ""),
    ],
)
def test_nearest_name(name: str, known: list[str], said: str) -> None:
    assert errors.nearest(name, known) == said


def test_every_user_error_has_an_exit_code() -> None:
    def tree(cls: type[errors.PrefixsimError]) -> list[type[errors.PrefixsimError]]:
        return [cls, *(s for sub in cls.__subclasses__() for s in tree(sub))]

    codes = {cls.__name__: cls.exit_code for cls in tree(errors.PrefixsimError)}
    assert codes.pop("CheckFailed") == 1
    assert set(codes.values()) == {2}
