"""Damaged run folders: whatever bytes they hold, the report and the exports end in a page or in an error for people."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_run

from prefixsim.errors import PrefixsimError
from prefixsim.report.compare_metrics import compare
from prefixsim.report.export import export
from prefixsim.report.folder import open_run
from prefixsim.report.html import render

FILES = (
    "summary.json",
    "requests.csv",
    "timeline.csv",
    "gaps.csv",
    "curves.json",
    "divergence.json",
    "scenario.resolved.yaml",
)
PIECES = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"nan",
    b"1e999",
    b"-1",
    b"9" * 400,
    b'"',
    b",,,,",
    b"\n",
    b"{",
    b"]",
    b"null",
    b"true",
    b"[[]]",
    b"inf",
]


def damage(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to four small faults: bytes replaced, inserted, cut out, doubled, or the file cut short."""
    for _ in range(rng.integers(1, 5)):
        at, size = int(rng.integers(0, len(raw) + 1)), int(rng.integers(1, 40))
        piece = PIECES[rng.integers(len(PIECES))]
        raw = [
            raw[:at] + piece + raw[at:],
            raw[:at] + piece + raw[at + size :],
            raw[:at] + raw[at + size :],
            raw[:at] + raw[at : at + size] * 2 + raw[at + size :],
            raw[:at],
        ][rng.choice(5, p=[0.3, 0.3, 0.2, 0.15, 0.05])]
    return raw


def rounds(source: Path, place: Path, seed: int, count: int) -> tuple[int, int]:
    """(rounds that ended in a page, rounds that ended in an error for people)."""
    rng = np.random.default_rng(seed)
    pages = errors = 0
    for _ in range(count):
        name = FILES[rng.integers(len(FILES))]
        (place / name).write_bytes(damage((source / name).read_bytes(), rng))
        try:
            run = open_run(place)
            assert "<h1>" in render(run)
            for fmt in ("prometheus", "openmetrics", "chrome-trace", "csv"):
                export(run, fmt, place / "out")
            compare(run, place / "out", engine="vllm")
            pages += 1
        except PrefixsimError:
            errors += 1
        shutil.copy(source / name, place / name)
    return pages, errors


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source = write_run(tmp_path / "source", n=8)
    shutil.copytree(source, tmp_path / "place")
    return source, tmp_path / "place"


def test_damaged_folders_quickly(folders: tuple[Path, Path]) -> None:
    pages, errors = rounds(*folders, seed=1, count=60)
    assert pages > 5
    assert errors > 5


@pytest.mark.slow
def test_damaged_folders_for_long(folders: tuple[Path, Path]) -> None:
    pages, errors = rounds(*folders, seed=2, count=3000)
    assert pages > 100
    assert errors > 100
