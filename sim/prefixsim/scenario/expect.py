"""The baseline file of `prefixsim check`: values once measured, to be compared with. JSON, committed beside the scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from prefixsim.errors import InputError, Problem
from prefixsim.paths import read_regular, write_whole
from prefixsim.scenario.base import Strict

BASELINE_VERSION = 1
MAX_BYTES = 64 << 20


class BaselineMetric(Strict):
    """A value: the mean over the repeats, with the half width of its 95 % confidence interval, and how far a later one may
    be off (absolute)."""

    value: float
    half_width: float = Field(0.0, ge=0)
    tolerance: float = Field(0.0, ge=0)


class BaselinePoint(Strict):
    """A divergence point with tokens lost behind it, to tell new ones by."""

    depth_tokens: int
    group: str | None = None
    kind: str
    lost_tokens: int


class BaselineScenario(Strict):
    """What was measured on one scenario. ledger: engine -> part -> tokens."""

    run_id: str
    prefixsim: str
    repeats: int = Field(1, ge=1)
    prompt_tokens: int = Field(ge=0)
    metrics: dict[str, BaselineMetric]
    ledger: dict[str, dict[str, int]] = {}
    divergence: list[BaselinePoint] = []


class Baseline(Strict):
    """The file: scenarios by name."""

    schema_version: Literal[1] = 1
    scenarios: dict[str, BaselineScenario] = {}


def read_baseline(path: Path) -> Baseline:
    """Reads a baseline. Raises InputError: missing, not JSON, another schema version, wrong keys (each named)."""
    try:
        raw: Any = json.loads(read_regular(path, MAX_BYTES))
    except OSError as exc:
        hint = "; --update-baseline makes it" if isinstance(exc, FileNotFoundError) else ""
        raise InputError(Problem(f"cannot be read: {exc.strerror or exc}{hint}", file=str(path))) from None
    except (ValueError, RecursionError) as exc:
        line = getattr(exc, "lineno", None)
        raise InputError(Problem(f"not a JSON baseline: {exc}", file=str(path), line=line)) from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != BASELINE_VERSION:
        raise InputError(
            Problem(
                f"schema version {version!r}, this program reads {BASELINE_VERSION}: make it anew with --update-baseline",
                file=str(path),
                key="schema_version",
            )
        )
    try:
        return Baseline.model_validate(raw)
    except ValidationError as exc:
        raise InputError(
            [
                Problem(fault["msg"], file=str(path), key=".".join(str(p) for p in fault["loc"]))
                for fault in exc.errors(include_url=False)
            ]
        ) from None


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes it whole or not at all, keys sorted. Raises OutputError."""
    write_whole(path, json.dumps(baseline.model_dump(mode="json"), indent=2, sort_keys=True) + "\n")
