"""Writes profiles as YAML that reads back: one number a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from prefixsim.hardware.profiles import Number


def number(
    value: float, kind: str, source: str, date: str, *, n: int | None = None, errors: tuple[float, float] | None = None
) -> Number:
    """A profile number; errors: (MAPE, p90) on held-out rows in percent. Values keep 4 significant digits."""
    mape, p90 = (round(errors[0], 2), round(errors[1], 2)) if errors and math.isfinite(errors[0]) else (None, None)
    rounded = float(f"{value:.4g}") if abs(value) > 1e-6 else 0.0
    return Number(value=rounded, kind=kind, source=source, date=date, n=n, mape_pct=mape, p90_pct=p90)  # type: ignore[arg-type]


def to_yaml(profile: BaseModel, header: str = "") -> str:
    """A profile as text. `header`: comment lines put first."""
    lines = [f"# {line}" if line else "#" for line in header.splitlines()]
    _section(profile, lines, "")
    return "\n".join(lines) + "\n"


def _section(model: BaseModel, lines: list[str], indent: str) -> None:
    for name in type(model).model_fields:
        value: Any = getattr(model, name)
        if value is None or value == "":
            continue
        if isinstance(value, Number):
            parts = [
                f"value: {_plain(value.value)}",
                f"kind: {value.kind}",
                f"source: {json.dumps(value.source, ensure_ascii=False)}",
            ]
            parts.append(f"date: {value.date}")
            for key in ("n", "mape_pct", "p90_pct"):
                if getattr(value, key) is not None:
                    parts.append(f"{key}: {_plain(getattr(value, key))}")
            lines.append(f"{indent}{name}: {{{', '.join(parts)}}}")
        elif isinstance(value, BaseModel):
            lines.append(f"{indent}{name}:")
            _section(value, lines, indent + "  ")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}")


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def profile_path(out: Path, kind: str, name: str) -> Path:
    """Where a new profile goes: `out` itself if it names a YAML file, else `out/<kind>/<name>.yaml`."""
    return out if out.suffix in (".yaml", ".yml") else out / kind / f"{name}.yaml"
