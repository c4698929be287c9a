"""What the report of a run shows besides its tables: curves.json and divergence.json. Nothing for lengths-only traces."""

from __future__ import annotations

import json
from collections.abc import Sequence

from prefixsim.analysis.curves import curves, spaced
from prefixsim.analysis.divergence import divergence_points
from prefixsim.analysis.segments import Segments
from prefixsim.workload.intern import NamespaceRule, Trie
from prefixsim.workload.table import Workload

POINTS = 200
MAX_REQUESTS = 50_000
"""Divergence points of longer workloads are left to `explain` and `report --explain`: a run should not wait for them."""


def run_files(
    workload: Workload, granularities: Sequence[int], rule: NamespaceRule, *, trie: Trie, segments: Segments
) -> dict[str, str]:
    """File name -> JSON text. curves.json: as `prefixsim curve --json` prints it, POINTS capacities a curve, each exact;
    divergence.json: a list as in `prefixsim explain --json`."""
    w = workload
    if not w.source.content_known:
        return {}
    entries = []
    for g in sorted(set(granularities)):
        lru, optimal = curves(w, [g], rule=rule, segments=segments)
        for curve in (lru, optimal):
            where = spaced(lru.saturation_blocks, POINTS if curve is lru else 33)
            points = zip(where.tolist(), curve.at(where).tolist(), strict=True)
            entries.append(
                {
                    "granularity": g,
                    "policy": curve.policy,
                    "ceiling_tokens": curve.ceiling_tokens,
                    "points": [list(p) for p in points],
                }
            )
    out = {"curves.json": json.dumps({"prompt_tokens": int(w.prompt_tokens.sum()), "curves": entries}) + "\n"}
    if w.n <= MAX_REQUESTS:
        found = divergence_points(w, rule=rule, trie=trie, candidates=12)
        out["divergence.json"] = json.dumps([p.as_dict() for p in found], indent=1) + "\n"
    return out
