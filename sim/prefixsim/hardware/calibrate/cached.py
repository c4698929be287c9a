"""Operator rows whose inputs sat in the GPU's cache: a loop over one small input reads it there, a serving engine does not.

Between two uses of a layer's weights or KV an engine reads all the other layers', so they come from memory. A table made
without clearing the cache shows itself by rows faster than the memory's datasheet peak.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefixsim.hardware.fitting import F64
from prefixsim.hardware.gemm import Chip

FASTER_RATIO, FASTER_ROWS = 1.05, 20
"""So much faster than memory, and in so many rows: then it is not noise."""
SHORT_US = 4.0
"""Reads shorter than this hide behind the launch wherever they come from."""


def cache_bytes(size_bytes: F64, latency_us: F64, chip: Chip) -> float:
    """Largest input (bytes) that was read faster than memory can; 0 where no such rows are.

    size_bytes, latency_us: (N,) what each row reads, and its time.
    """
    faster = size_bytes / chip.bandwidth * 1e6 > FASTER_RATIO * latency_us
    return float(size_bytes[faster].max()) if faster.sum() >= FASTER_ROWS else 0.0


def may_be_cached(size_bytes: F64, work_us: F64, limit: float, chip: Chip) -> npt.NDArray[np.bool_]:
    """(N,) rows that a cache of `limit` bytes may have sped up: bound by reading, and by more than a launch hides.

    work_us: (N,) time of their arithmetic at peak.
    """
    reading = size_bytes / chip.bandwidth * 1e6
    found: npt.NDArray[np.bool_] = (size_bytes <= limit) & (reading >= np.maximum(work_us, SHORT_US))
    return found
