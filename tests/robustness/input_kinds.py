"""Every kind of file a person gives the program, as small good files and the function that the command calls on them."""

from __future__ import annotations

from robustness import kinds_runs, kinds_studies
from robustness.kinds_base import CASES

__all__ = ["CASES", "kinds_runs", "kinds_studies"]
