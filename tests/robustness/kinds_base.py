"""What the kinds of input share: their table, and what no good result breaks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.fuzzing import Kind

CASES: dict[str, Callable[[Path], Kind]] = {}


def kind(make: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
    """Registers a kind under its function's name."""
    CASES[make.__name__] = make
    return make


def put(path: Path, text: str) -> Path:
    """Writes a text file."""
    path.write_text(text, encoding="utf-8")
    return path


def number(value: Any, least: float = 0.0) -> None:
    """Asserts a finite number from `least` up."""
    assert isinstance(value, int | float), value
    assert math.isfinite(value), value
    assert value >= least, value


def sound_summary(summary: dict[str, Any]) -> None:
    """Asserts what no run can break: finite times, shares between 0 and 1, ledgers that sum up to the prompt tokens."""
    for name, part in summary["engines"].items():
        if part["hit_rate"] is not None:
            assert 0 <= part["hit_rate"] <= 1, name
        assert part["cached_tokens"] is None or 0 <= part["cached_tokens"] <= part["prompt_tokens"], name
        if part.get("ledger"):
            assert sum(part["ledger"].values()) == part["prompt_tokens"], name
            assert min(part["ledger"].values()) >= 0, name
        for metric in ("ttft_s", "e2e_s", "itl_s"):
            for q, value in (part.get(metric) or {}).items():
                if value is not None and q != "n":
                    number(value)
    json.dumps(summary, allow_nan=False, default=str)
