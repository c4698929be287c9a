"""The mutator itself, and that what is explained still exists."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from mutants import mutants

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "sim" / "prefixsim"
MODULES = [m for t in tomllib.loads((HERE / "targets.toml").read_text())["target"] for m in t["modules"]]

SOURCE = '''
def f(a: int, b: int = 1) -> int:
    """Not touched."""
    if a < b and b > 0:
        a += 1
    return min(a, b)


class C:
    @property
    def p(self):
        return not self.x

    def check(self):
        assert self.x == 1
'''

EXPECTED = [
    "C.p: return not self.x => (left out)",
    "C.p: return not self.x => return self.x",
    "f: a += 1 => (left out)",
    "f: a += 1 => a += 0",
    "f: a += 1 => a -= 1",
    "f: if a < b and b > 0 => if False",
    "f: if a < b and b > 0 => if True",
    "f: if a < b and b > 0 => if a < b",
    "f: if a < b and b > 0 => if a < b and b > 1",
    "f: if a < b and b > 0 => if a < b and b >= 0",
    "f: if a < b and b > 0 => if a <= b and b > 0",
    "f: if a < b and b > 0 => if b > 0",
    "f: return min(a, b) => (left out)",
    "f: return min(a, b) => return a",
    "f: return min(a, b) => return b",
]


def test_each_fault_is_named_and_takes_effect() -> None:
    found = {m.name: m for m in mutants(SOURCE)}
    assert sorted(found) == EXPECTED
    space: dict[str, Any] = {}
    exec(SOURCE, space)
    original = space["f"].__code__
    assert space["f"](0, 1) == 1
    space["f"].__code__ = found["f: a += 1 => a += 0"].code()
    assert space["f"](0, 1) == 0
    space["f"].__code__ = found["f: if a < b and b > 0 => if a <= b and b > 0"].code()
    assert space["f"](1, 1) == 1
    assert space["f"](0, 1) == 1
    assert len({m.code() for m in found.values()} | {original}) == len(found) + 1, "no fault leaves a trace in the next"


@pytest.mark.parametrize("module", MODULES)
def test_names_are_unique(module: str) -> None:
    names = [m.name for m in mutants((PACKAGE / module).read_text())]
    assert len(set(names)) == len(names) > 20


def test_what_is_explained_exists() -> None:
    """An explanation goes when its line does."""
    for module, reasons in tomllib.loads((HERE / "explained.toml").read_text()).items():
        found = mutants((PACKAGE / module).read_text())
        names = {m.name for m in found} | {"*" + m.name.removeprefix(m.function) for m in found}
        assert not reasons.keys() - names, module
        assert all(reasons.values())
