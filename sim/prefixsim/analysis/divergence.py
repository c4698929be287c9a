# mypy: disable-error-code="no-untyped-call"
"""Divergence points: where traffic splits, and how many tokens would be shared behind each if its branches were equal.

1. Every row that adds something to the trie leaves the known path at one point. Points are ranked by an upper bound: the
   prompt tokens behind them that were not shared.
2. At a point, the rows' continuations are compared: content that follows in *different* branches (an anchor) shows where
   they come together again. What lies before the anchor is the differing piece.
3. Tokens lost = tokens *behind* the piece that an infinite cache would serve if the pieces were equal, less those it serves
   now: measured on an edited copy of the workload, not estimated. Where continuations never meet again (what the user
   wrote), nothing is lost.
The kind of a piece is told by evidence alone: how many distinct ones there are, and whether a session or tenant has its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixsim.analysis.anchors import ANCHOR_TOKENS, SCAN, common_order, reordered, shared_anchors
from prefixsim.analysis.branch_points import find_points, through
from prefixsim.analysis.ceilings import ceilings, require_content
from prefixsim.analysis.rewrite import move, only, rewrite
from prefixsim.analysis.segments import build_segments
from prefixsim.workload.intern import NamespaceRule, Trie, build_trie
from prefixsim.workload.table import BOOL, I64, Workload

MOST_ROWS, EXAMPLES = 200_000, 3
UNIQUE_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Divergence:
    """One point. depth: equal tokens before it. requests: rows that pass it; differing: those of them with a piece that differs
    (all, where none was found); branches: distinct differing pieces (or continuations). kind: see KINDS.
    piece_tokens: (least, median, most) tokens of the piece.
    lost_tokens: prompt tokens behind the pieces that an infinite cache would serve more if the pieces were equal.
    groups: (group, requests, lost tokens), most lost first. examples: differing pieces as content/token ids.
    rows int64 (k,), cut_to int64 (k,): the rows and where their piece ends (tokens from their start). sampled_from: 0, or how
    many rows there are in truth where only evenly spread ones were looked at: all numbers are then those of the sample."""

    depth: int
    requests: int
    differing: int
    branches: int
    kind: str
    piece_tokens: tuple[int, int, int]
    lost_tokens: int
    groups: tuple[tuple[str, int, int], ...]
    examples: tuple[tuple[int, ...], ...]
    bound_tokens: int
    rows: I64 = field(repr=False)
    cut_to: I64 = field(repr=False)
    sampled_from: int = 0

    def sentence(self) -> str:
        """What a person should read."""
        where = f"after {self.depth:,} equal tokens" if self.depth else "at the very first token"
        names = [f"`{g}`" for g, _, lost in self.groups[:3] if g and (lost or not self.lost_tokens)]
        of = f" of group {' and '.join(names)}" if names else ""
        some = f"{self.differing:,} of {self.requests:,}" if self.differing < self.requests else f"{self.requests:,}"
        head = f"{where}{of}: {some} requests go {self.branches:,} ways"
        if self.sampled_from:
            head = f"(of {self.sampled_from:,} requests, {self.requests:,} evenly spread ones were looked at) {head}"
        if self.kind == "content":
            return f"{head}; what follows differs to the end (new content), so nothing is lost here"
        least, median, most = self.piece_tokens
        size = f"{least:,}" if least == most else f"{least:,}-{most:,} (median {median:,})"
        what = KINDS[self.kind]
        behind = f"behind it {self.lost_tokens:,} tokens would be shared"
        if self.kind == "reordered":
            return f"{head}; {what}; in one order {self.lost_tokens:,} more tokens would be shared"
        return f"{head} over a piece of {size} tokens; {what}; {behind}"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "depth_tokens": self.depth,
            "requests": self.requests,
            "differing": self.differing,
            "branches": self.branches,
            "kind": self.kind,
            "kind_meaning": KINDS[self.kind],
            "piece_tokens": dict(zip(("least", "median", "most"), self.piece_tokens, strict=True)),
            "lost_tokens": self.lost_tokens,
            "groups": [{"name": n or None, "requests": r, "lost_tokens": lost} for n, r, lost in self.groups[:20]],
            "examples": [list(e) for e in self.examples],
            "sampled_from": self.sampled_from or None,
            "sentence": self.sentence(),
        }


KINDS = {
    "unique per request": "different in every request, as an id or a timestamp would be",
    "unique per session": "one for each session, as a session id or its start time would be",
    "unique per tenant": "one for each tenant, as a user's or tenant's own text would be",
    "variants": "a small set of variants",
    "varies": "many variants",
    "optional": "present in some requests only",
    "reordered": "the same parts follow in different orders (tools or documents)",
    "content": "contents differ to the end",
}


def divergence_points(
    workload: Workload,
    *,
    top: int = 8,
    reuse_outputs: bool = True,
    rule: NamespaceRule = "vllm",
    trie: Trie | None = None,
    candidates: int = 24,
) -> list[Divergence]:
    """The points behind which most tokens are lost, most first; at most `top`. Raises NotModelledError for lengths-only
    traces."""
    require_content(workload, "divergence points")
    trie = trie if trie is not None else build_trie(workload, rule)
    segments = build_segments(trie)
    points = find_points(workload, segments, trie)
    found: list[Divergence] = []
    for p in np.argsort(-points.bound, kind="stable")[:candidates].tolist():
        if points.bound[p] <= 0:
            break
        rows, child = through(workload, segments, points, p)
        depth = int(points.depth[p])
        if np.unique(child).shape[0] < 2 or any(_inside(d, rows, depth) for d in found):
            continue
        found.append(_examine(workload, rows, child, depth, int(points.bound[p]), reuse_outputs, rule))
    found.sort(key=lambda d: (-d.lost_tokens, -d.requests, -d.bound_tokens, d.depth))
    return found[:top]


def _inside(other: Divergence, rows: I64, depth: int) -> bool:
    """The point lies within a piece that was already found to differ."""
    if other.kind == "content" or not other.depth <= depth:
        return False
    i = np.searchsorted(other.rows, rows)
    i = np.minimum(i, other.rows.shape[0] - 1)
    mine = (other.rows[i] == rows) & (other.cut_to[i] > depth)
    return bool(mine.mean() > 0.5)


def divergence_rows(workload: Workload, trie: Trie, granularity: int, top: int) -> list[tuple[int, I64, int]]:
    """Points that do not lie on a block boundary, by the tokens their rows lose to it (rows that part there x tokens over):
    (depth, rows through int64, how many part there); at most `top`, each with at least two rows parting."""
    segments = build_segments(trie)
    points = find_points(workload, segments, trie)
    parting = np.bincount(points.point_of_creator, minlength=points.depth.shape[0])
    lost = parting * (points.depth % granularity) * (parting > 1)
    out = []
    for p in np.argsort(-lost, kind="stable")[:top].tolist():
        if lost[p] > 0:
            out.append((int(points.depth[p]), through(workload, segments, points, p)[0], int(parting[p])))
    return out


def piece_owners(workload: Workload, point: Divergence) -> I64:
    """int64 (k,): a number for each row of a point, equal where the differing pieces are equal."""
    known: dict[tuple[int, ...], int] = {}
    sizes = (point.cut_to - point.depth).tolist()
    return np.array(
        [
            known.setdefault(_piece_ids(workload, r, point.depth, size), len(known))
            for r, size in zip(point.rows.tolist(), sizes, strict=True)
        ],
        dtype=np.int64,
    )


def _examine(
    workload: Workload, rows: I64, child: I64, depth: int, bound: int, reuse_outputs: bool, rule: NamespaceRule
) -> Divergence:
    shared, seen, sampled = shared_anchors(workload, rows, child, depth)
    skips = shared.first(workload, seen, depth, SCAN)
    met = skips[skips >= 0]
    branches = int(np.unique(child).shape[0])

    def nothing() -> Divergence:
        groups = _by_group(workload, rows, np.zeros(rows.shape[0], dtype=np.int64))
        n = rows.shape[0]
        return Divergence(depth, n, n, branches, "content", (0, 0, 0), 0, groups, (), bound, rows, rows)

    if met.shape[0] < max(2, skips.shape[0] // 10):
        return nothing()
    if reordered(sampled):
        return _reorder(workload, rows, child, depth, bound, reuse_outputs, rule) or nothing()
    everyone = rows.shape[0]
    if everyone > MOST_ROWS:
        some = np.linspace(0, everyone - 1, MOST_ROWS).round().astype(np.int64)
        rows, child = rows[some], child[some]
    piece = shared.first(workload, rows, depth, 4 * int(met.max()) + 8 * ANCHOR_TOKENS)
    meets = piece >= 0
    if meets.sum() < 2 or not piece.max(initial=0):
        return nothing()
    mine, size = rows[meets], piece[meets]
    cut = depth + np.maximum(piece, 0)
    here = only(workload, rows)
    edited = np.flatnonzero(piece > 0)
    without = move(here, edited, np.full(edited.shape[0], depth), cut[edited], None)
    before, after = _prefixes(here, without, reuse_outputs, rule)
    lost = np.maximum(after - depth, 0) - np.maximum(before - cut, 0)
    total = int(lost.sum())
    if total <= 0:
        return nothing()
    keys = [_piece_ids(workload, int(r), depth, int(s)) for r, s in zip(mine, size, strict=True)]
    distinct = list(dict.fromkeys(keys))
    real = size[size > 0]
    return Divergence(
        depth=depth,
        sampled_from=everyone if everyone > rows.shape[0] else 0,
        requests=rows.shape[0],
        differing=mine.shape[0],
        branches=len(distinct),
        kind=_kind(workload, mine, keys, len(distinct)),
        piece_tokens=(int(real.min()), int(np.median(real)), int(real.max())),
        lost_tokens=total,
        groups=_by_group(workload, rows, lost),
        examples=tuple(k[:8] for k in distinct if k)[:EXAMPLES],
        bound_tokens=bound,
        rows=rows,
        cut_to=cut,
    )


def _prefixes(before: Workload, after: Workload, reuse_outputs: bool, rule: NamespaceRule) -> tuple[I64, I64]:
    """int64 (n,) each: tokens each prompt shares in an infinite cache, before and after an edit."""
    old = ceilings(before, (1,), reuse_outputs=reuse_outputs, rule=rule).prefix_tokens
    return old, ceilings(after, (1,), reuse_outputs=reuse_outputs, rule=rule).prefix_tokens


def _piece_ids(workload: Workload, r: int, depth: int, size: int) -> tuple[int, ...]:
    """Content ids (token ids, where atoms are tokens) of `size` tokens behind `depth`."""
    a = int(workload.atom_offset[r])
    if workload.atom_tokens is None:
        return tuple(workload.atom_id[a + depth : a + depth + size].tolist())
    ends = np.cumsum(workload.atom_tokens[a : int(workload.atom_offset[r + 1])], dtype=np.int64)
    first = int(np.searchsorted(ends, depth, side="right"))
    last = int(np.searchsorted(ends, depth + size, side="left"))
    return tuple(workload.atom_id[a + first : a + last + 1].tolist()) if size else ()


def _kind(workload: Workload, rows: I64, keys: list[tuple[int, ...]], distinct: int) -> str:
    n = rows.shape[0]
    if distinct >= UNIQUE_SHARE * n and n > 2:
        return "unique per request"
    for name, labels in (("session", workload.session[rows]), ("tenant", workload.tenant[rows])):
        owners = len(set(labels.tolist()))
        if (labels < 0).any() or owners < 2:
            continue
        pairs = len(set(zip(labels.tolist(), keys, strict=True)))
        if pairs <= owners / UNIQUE_SHARE and distinct >= UNIQUE_SHARE * owners:
            return f"unique per {name}"
    if distinct == 2 and () in keys:
        return "optional"
    return "variants" if distinct <= max(32, n // 20) else "varies"


def _by_group(workload: Workload, rows: I64, lost: I64) -> tuple[tuple[str, int, int], ...]:
    labels = workload.group[rows]
    out = []
    for label in np.unique(labels).tolist():
        here: BOOL = labels == label
        name = workload.group_names[label] if label >= 0 else ""
        out.append((name, int(here.sum()), int(lost[here].sum())))
    return tuple(sorted(out, key=lambda g: (-g[2], -g[1], g[0])))


def _reorder(
    workload: Workload, rows: I64, child: I64, depth: int, bound: int, reuse_outputs: bool, rule: NamespaceRule
) -> Divergence | None:
    """Measures the gain of one common order of the parts: the commonest first. Only where parts are atoms of their own."""
    if workload.atom_tokens is None:
        return None
    plans = common_order(workload, rows, depth)
    here = only(workload, rows)
    changed = rewrite(here, {int(np.searchsorted(rows, r)): p for r, p in plans.items()})
    before, after = _prefixes(here, changed, reuse_outputs, rule)
    lost = after - before
    if int(lost.sum()) <= 0:
        return None
    return Divergence(
        depth,
        rows.shape[0],
        rows.shape[0],
        int(np.unique(child).shape[0]),
        "reordered",
        (0, 0, 0),
        int(lost.sum()),
        _by_group(workload, rows, lost),
        (),
        bound,
        rows,
        np.full(rows.shape[0], depth + 1, dtype=np.int64),
    )
