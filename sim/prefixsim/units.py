"""Conversions. Inside, time is int64 nanoseconds and memory is bytes; files use seconds and GiB unless a name says otherwise."""

from __future__ import annotations

import math

NS_PER_S = 1_000_000_000
GIB = 1 << 30
MAX_TIME_S = 9.0e9
"""Largest time a file may hold, in seconds (285 years): int64 nanoseconds end at 9.22e9 s."""


def seconds_to_ns(seconds: float) -> int:
    """Seconds to the nearest nanosecond (int). Raises ValueError when not finite or outside ±`MAX_TIME_S`."""
    if not math.isfinite(seconds) or abs(seconds) > MAX_TIME_S:
        raise ValueError(f"{seconds} s is not a time this program can hold (finite, at most {MAX_TIME_S:g} s)")
    return round(seconds * NS_PER_S)
