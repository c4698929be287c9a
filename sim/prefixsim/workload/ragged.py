"""Rows of unequal length in flat arrays."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.workload.table import I64


def offsets(counts: Any) -> I64:
    """Counts (n,) to offsets int64 (n+1,)."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def gather(flat: Any, start: Any, count: Any) -> Any:
    """The ranges [start[i], start[i] + count[i]) of `flat`, one after another. A view of `flat` where it is just that."""
    from prefixsim.workload.ragged_kernels import copy_ranges

    start = np.ascontiguousarray(start, dtype=np.int64)
    count = np.ascontiguousarray(count, dtype=np.int64)
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    if total == flat.shape[0] and bool(((start == ends - count) | (count == 0)).all()):
        return flat
    out = np.empty(total, dtype=flat.dtype)
    copy_ranges(flat, start, count, out)
    return out
