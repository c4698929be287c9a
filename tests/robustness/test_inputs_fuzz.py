"""Every kind of file a person gives: damaged copies are refused in words or taken, within seconds and bounded memory."""

from __future__ import annotations

import importlib.util

import pytest

from robustness import input_kinds
from robustness.fuzzing import rounds

NEEDS = {"run_folder_parquet": ("pyarrow",), "zstd_trace": ("zstandard",), "tokenizers": ("tokenizers", "tiktoken")}
HEAVY = (
    "operator_tables",
    "plan_study",
    "run_folder",
    "run_folder_npz",
    "run_folder_parquet",
    "profiles",
    "sweep_study",
)
"""Kinds whose rounds take tenths of a second."""


@pytest.mark.parametrize("name", input_kinds.CASES)
def test_damaged_inputs(tmp_path, name):
    made(tmp_path, name, count=6 if name in HEAVY else 30, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", input_kinds.CASES)
def test_thousands_of_damaged_inputs(tmp_path, name):
    seen = made(tmp_path, name, count=1000 if name in HEAVY else 3000, seed=2)
    assert min(seen.values()) > 20, seen  # both happen, or the test says nothing


def made(folder, name, *, count, seed):
    """The rounds of a kind, whose good files are taken."""
    for module in NEEDS.get(name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    kind = input_kinds.CASES[name](folder)
    kind.use()
    return rounds(kind, f"{name} {seed}", count)
