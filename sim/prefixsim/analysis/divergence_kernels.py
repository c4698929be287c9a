# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled ranking of divergence points. Twin: `divergence.points_slowly` in the tests' reference."""

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

MOST_POINTS_A_ROW = 4096


@kernel
def point_bounds(
    visit_offset, visit_segment, visit_end, prompt, creator, depth, point_offset, point_depth, root_of, window
):
    """int64 (points,): for each point, tokens that rows diverging there or up to `window` tokens behind it have not shared:
    an upper bound on what equal branches could share. Points of segment s are point_offset[s] .. point_offset[s+1], by
    depth; those of roots (depth 0) come after all segments: root_of[r] is row r's. creator, depth: each diverging row and
    where."""
    out = np.zeros(point_depth.shape[0], np.int64)
    for i in range(creator.shape[0]):
        r, d = creator[i], depth[i]
        gain = prompt[r] - d
        if gain <= 0:
            continue
        if d <= window:
            out[root_of[r]] += gain
        budget = MOST_POINTS_A_ROW
        begin = 0
        for v in range(visit_offset[r], visit_offset[r + 1]):
            s, end = visit_segment[v], visit_end[v]
            if begin >= d:
                break
            if end >= d - window:
                low, high = point_offset[s], point_offset[s + 1]
                while low < high:  # first point at or behind d - window
                    middle = (low + high) // 2
                    if point_depth[middle] < d - window:
                        low = middle + 1
                    else:
                        high = middle
                while low < point_offset[s + 1] and point_depth[low] <= min(d, end) and budget > 0:
                    out[low] += gain
                    low += 1
                    budget -= 1
            begin = end
    return out
