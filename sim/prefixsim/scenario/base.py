"""Base of all models that are read from files: unknown keys are errors, values are frozen and not coerced."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MOST = 1 << 40
"""More tokens, blocks or requests than any engine or trace has."""


class Strict(BaseModel):
    """Frozen; unknown keys, NaN and infinities refused; no coercion of strings to numbers or floats to ints."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
