"""Times between tokens, counted."""

from __future__ import annotations

import numpy as np

from prefixsim.records import I64


def join_gaps(gaps: I64) -> I64:
    """Pairs (gap ns, count) with equal gaps joined, ascending."""
    if not gaps.shape[0]:
        return gaps.copy()
    order = np.argsort(gaps[:, 0])  # equal ones are summed: their order does not matter
    values = gaps[order, 0]
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return np.stack((values[first], np.add.reduceat(gaps[order, 1], first)), axis=1)
