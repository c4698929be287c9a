# mypy: disable-error-code="no-untyped-call"
"""Hit tokens against capacity, for every capacity at once.

Lookups one after another in arrival order; each looks up the full blocks of its prompt, then touches all blocks of its
prompt and outputs[:-1], deepest first. LRU is then a stack algorithm and prefix-closed: one pass with stack distances is exact
for every capacity. Belady's rule with bypass is an upper bound for any prefix cache of that granularity and capacity under
that order of lookups (proofs: docs/proofs.md). Cost: one operation a run of blocks, whatever the block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from prefixsim.analysis import curve_kernels as kernels
from prefixsim.analysis.ceilings import require_content
from prefixsim.analysis.segments import Segments, build_segments, inserted_tokens, lookup_order
from prefixsim.workload.intern import NamespaceRule, build_trie
from prefixsim.workload.table import I64, Workload

Policy = Literal["lru", "optimal"]
POLICIES: tuple[Policy, ...] = ("lru", "optimal")
MAX_DENSE_POSITIONS = 20_000_000
"""Above this largest stack position, corners are found by sorting instead of by counting."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy at one granularity. capacity int64 (m,), in blocks, ascending; hit_tokens int64 (m,).

    lru: the curve's corners; between them it is a straight line, after the last it is constant: `at` is exact everywhere.
    optimal: `at` computes any capacity exactly; capacity/hit_tokens are the points asked for.
    prompt_tokens, ceiling_tokens: the denominator, and the hits of an infinite cache.
    """

    granularity: int
    policy: Policy
    prompt_tokens: int
    ceiling_tokens: int
    capacity: I64
    hit_tokens: I64
    _reuse: I64 = field(repr=False)
    _n: int = field(repr=False)

    def at(self, capacities: Sequence[int] | I64) -> I64:
        """int64: hit tokens at capacities in blocks (>= 0), exact."""
        wanted = np.maximum(np.asarray(capacities, dtype=np.int64), 0)
        if self.policy == "optimal":
            return _optimal(self._reuse, self._n, wanted) * self.granularity
        i = np.searchsorted(self.capacity, wanted, side="right") - 1
        if self.capacity.shape[0] == 1:
            return np.zeros_like(wanted)
        j = np.minimum(i, self.capacity.shape[0] - 2)
        step = self.capacity[j + 1] - self.capacity[j]
        slope = (self.hit_tokens[j + 1] - self.hit_tokens[j]) // step  # whole: a corner is a change of a whole slope
        return np.where(
            i >= self.capacity.shape[0] - 1,
            self.hit_tokens[-1],
            self.hit_tokens[j] + slope * (wanted - self.capacity[j]),
        )

    def capacity_for(self, share: float) -> int:
        """Smallest capacity in blocks that reaches this share of the ceiling. 0 where the ceiling is 0."""
        goal = -(-round(share * 1_000_000_000) * self.ceiling_tokens // 1_000_000_000)
        low, high = 0, self.saturation_blocks
        while low < high:
            middle = (low + high) // 2
            if int(self.at([middle])[0]) >= goal:
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def saturation_blocks(self) -> int:
        """A capacity that reaches the ceiling: for LRU the smallest one."""
        return int((self._reuse[:, 0] + self._reuse[:, 1] - 1).max(initial=0))


def _optimal(reuse: I64, n: int, capacities: I64) -> I64:
    offset, index = kernels.by_first_use(reuse, n)
    distinct, inverse = np.unique(capacities, return_inverse=True)
    hits = np.array([kernels.optimal_hits(reuse, offset, index, n, int(c)) for c in distinct], dtype=np.int64)
    return hits[inverse.reshape(-1)]


def _corners(reuse: I64) -> tuple[I64, I64]:
    if int((reuse[:, 0] + reuse[:, 1]).max(initial=0)) <= MAX_DENSE_POSITIONS:
        capacity, hits = kernels.corners(reuse)
        return capacity, hits
    where = np.concatenate([reuse[:, 0] - 1, reuse[:, 0] + reuse[:, 1] - 1])
    capacity, inverse = np.unique(np.concatenate([[0], where]), return_inverse=True)
    change = np.zeros(capacity.shape[0], dtype=np.int64)
    np.add.at(change, inverse.reshape(-1)[1:], np.repeat([1, -1], reuse.shape[0]))
    keep = change != 0
    keep[0] = True
    capacity, change = capacity[keep], change[keep]
    hits = np.zeros(capacity.shape[0], dtype=np.int64)
    np.cumsum(np.cumsum(change)[:-1] * np.diff(capacity), out=hits[1:])
    return capacity, hits


def curves(
    workload: Workload,
    granularities: Sequence[int],
    policies: Sequence[Policy] = POLICIES,
    *,
    reuse_outputs: bool = True,
    rule: NamespaceRule = "vllm",
    optimal_capacities: Sequence[int] | None = None,
    segments: Segments | None = None,
    order: I64 | None = None,
) -> list[Curve]:
    """A curve for each granularity and policy, in that order. `optimal_capacities` in blocks (default: 33 points, spaced
    evenly on a logarithmic scale up to LRU's saturation); `order` int64: request indices in order of lookup (default:
    arrival order; beside a run its own order of admissions). Raises NotModelledError for lengths-only traces."""
    require_content(workload, "a curve")
    if segments is None:
        segments = build_segments(build_trie(workload, rule))
    if order is None:
        order = lookup_order(workload)
    inserted = inserted_tokens(workload, reuse_outputs)
    prompt = workload.prompt_tokens
    walk = (segments.visit_offset, segments.visit_segment, segments.visit_end, prompt, inserted, order)
    prompt_tokens = int(prompt[order].sum())
    out = []
    for g in granularities:
        reuse = kernels.reuses(*walk, g)
        ceiling = int(reuse[:, 1].sum()) * g
        for policy in policies:
            if policy == "lru":
                capacity, hits = _corners(reuse)
            else:
                top = int((reuse[:, 0] + reuse[:, 1] - 1).max(initial=0))
                capacity = (
                    np.unique(np.asarray(optimal_capacities, dtype=np.int64))
                    if optimal_capacities is not None
                    else spaced(top)
                )
                hits = _optimal(reuse, order.shape[0], capacity)
            out.append(Curve(g, policy, prompt_tokens, ceiling, capacity, hits * g, reuse, order.shape[0]))
    return out


def spaced(top: int, points: int = 33) -> I64:
    """Capacities from 0 to `top` blocks, evenly spaced on a logarithmic scale; int64, distinct."""
    if top < 1:
        return np.zeros(1, dtype=np.int64)
    return np.unique(np.concatenate([[0], np.round(np.geomspace(1, top, points)).astype(np.int64), [top]]))
