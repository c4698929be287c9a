# mypy: disable-error-code="no-untyped-call"
"""Where rows part: branch points of the trie, ranked by the prompt tokens behind them that are not shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.divergence_kernels import point_bounds
from prefixsim.analysis.segments import Segments
from prefixsim.workload.intern import Trie
from prefixsim.workload.table import I64, Workload

WINDOW_TOKENS = 64
"""Points this close behind another one are seen as part of its piece (a timestamp splits at each of its digits)."""


@dataclass(frozen=True, slots=True)
class Points:
    """Branch points by (segment, depth); roots are the last ones, `root_first` on."""

    segment: I64
    depth: I64
    offset: I64
    bound: I64
    root_of: I64
    root_first: int
    point_of_creator: I64
    row_of_visit: I64
    by_segment: I64
    segment_offset: I64


def find_points(workload: Workload, segments: Segments, trie: Trie) -> Points:
    """All points at which a row leaves the path known before it, inside its prompt."""
    n = workload.n
    offset, segment, end = segments.visit_offset, segments.visit_segment, segments.visit_end
    count = np.diff(offset)
    row_of_visit = np.repeat(np.arange(n), count)
    last = offset[1:] - 1
    filled = count > 0
    creator = np.flatnonzero(filled & (segment[np.maximum(last, 0)] == np.arange(n)))
    deep = count[creator] > 1
    parent = np.where(deep, segment[np.maximum(last[creator] - 1, 0)], -1)
    depth = np.where(deep, end[np.maximum(last[creator] - 1, 0)], 0)
    keep = depth < workload.prompt_tokens[creator]
    creator, parent, depth = creator[keep], parent[keep], depth[keep]
    inner = parent >= 0
    pairs, number = np.zeros((2, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    if inner.any():
        pairs, number = np.unique(np.stack([parent[inner], depth[inner]]), axis=1, return_inverse=True)
    roots = int(trie.namespace.max(initial=0)) + 1
    point_segment = np.concatenate([pairs[0], -1 - np.arange(roots)])
    point_depth = np.concatenate([pairs[1], np.zeros(roots, dtype=np.int64)])
    point_offset = np.searchsorted(pairs[0], np.arange(n + 1))
    root_first = pairs.shape[1]
    root_of = root_first + trie.namespace.astype(np.int64)
    point_of_creator = root_of[creator]
    point_of_creator[inner] = number.reshape(-1)
    bound = point_bounds(
        offset,
        segment,
        end,
        workload.prompt_tokens,
        creator,
        depth,
        point_offset,
        point_depth,
        root_of,
        WINDOW_TOKENS,
    )
    by_segment = np.argsort(segment, kind="stable")
    segment_offset = np.searchsorted(segment[by_segment], np.arange(n + 1))
    return Points(
        point_segment,
        point_depth,
        point_offset,
        bound,
        root_of,
        root_first,
        point_of_creator,
        row_of_visit,
        by_segment,
        segment_offset,
    )


def through(workload: Workload, segments: Segments, points: Points, p: int) -> tuple[I64, I64]:
    """Rows (ascending) whose prompt goes on behind the point, and the segment each goes on in."""
    s, depth = int(points.segment[p]), int(points.depth[p])
    if s < 0:
        rows = np.flatnonzero((points.root_of == p) & (np.diff(segments.visit_offset) > 0))
        return rows, segments.visit_segment[segments.visit_offset[rows]]
    visits = points.by_segment[points.segment_offset[s] : points.segment_offset[s + 1]]
    rows = points.row_of_visit[visits]
    end = segments.visit_end[visits]
    keep = (end >= depth) & (workload.prompt_tokens[rows] > depth)
    visits, rows, end = visits[keep], rows[keep], end[keep]
    following = segments.visit_segment[np.minimum(visits + 1, segments.visit_segment.shape[0] - 1)]
    return rows, np.where(end > depth, s, following)
