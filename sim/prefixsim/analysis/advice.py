# mypy: disable-error-code="no-untyped-call"
"""Concrete edits and what they gain. Every number is measured on an edited copy of the workload, never inferred.

Here edits are made and measured against the infinite cache; `study.explain` runs the scenario's engines on the same copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixsim.analysis.anchors import common_order
from prefixsim.analysis.ceilings import Ceilings, ceilings
from prefixsim.analysis.divergence import Divergence, divergence_rows, piece_owners
from prefixsim.analysis.rewrite import Keep, Put, move, only, rewrite
from prefixsim.analysis.segments import build_segments, inserted_tokens, shared_with_others
from prefixsim.workload.intern import NamespaceRule, Trie, build_trie
from prefixsim.workload.table import I64, Workload

LEAST_GAIN = 0.001
"""Edits that save less than this share of the prompt tokens are not worth a sentence."""
CUT_SHARE = 0.02
"""Only so small a share of a shared part is proposed to be cut."""
MOVABLE = ("unique per request", "unique per session", "unique per tenant", "variants", "varies", "optional")


@dataclass(frozen=True, slots=True)
class Advice:
    """kind: move, order, pad, trim, block_size, pool or router. text: the edit, for a person.

    workload: the edited copy (prompt edits) or None; settings: scenario keys to change (engine edits) or {}.
    before, after: (hit tokens, prompt tokens) of an infinite cache with blocks of `granularity` tokens.
    engine: the engine an engine edit is about, else "".
    """

    kind: str
    text: str
    granularity: int
    before: tuple[int, int]
    after: tuple[int, int]
    workload: Workload | None = field(default=None, repr=False)
    settings: dict[str, Any] = field(default_factory=dict)
    engine: str = ""

    @property
    def saved_tokens(self) -> int:
        """Prompt tokens that need not be computed any more, in an infinite cache."""
        return (self.before[1] - self.before[0]) - (self.after[1] - self.after[0])


def prompt_advice(
    workload: Workload,
    points: Sequence[Divergence],
    granularity: int,
    *,
    base: Ceilings,
    trie: Trie,
    reuse_outputs: bool = True,
    rule: NamespaceRule = "vllm",
    top: int = 3,
) -> list[Advice]:
    """Edits of prompts, most saved first: differing pieces moved back, parts put in one order, shared parts padded or cut to
    a multiple of the block. `base`: ceilings of the workload as it is."""
    made: list[Advice | None] = []
    before = base.total(granularity)

    def measured(kind: str, text: str, changed: Workload) -> Advice | None:
        after = ceilings(changed, (granularity,), reuse_outputs=reuse_outputs, rule=rule).total(granularity)
        advice = Advice(kind, text, granularity, before, after, changed)
        return advice if advice.saved_tokens > LEAST_GAIN * before[1] else None

    for point in [p for p in points if p.lost_tokens > LEAST_GAIN * before[1]][:top]:
        if point.kind in MOVABLE:
            changed, behind = move_back(workload, point, rule)
            if behind:
                made.append(measured("move", _move_text(point, behind), changed))
        elif point.kind == "reordered":
            changed = rewrite(workload, common_order(workload, point.rows, point.depth))
            text = f"put the parts {_place(point.depth)}{_of(point)} in one fixed order (the commonest first)"
            made.append(measured("order", text, changed))
    if granularity > 1:
        for depth, rows, names, count in _uneven_ends(workload, trie, granularity, top):
            over = depth % granularity
            of = f" of group {names}" if names else ""
            end = f"the shared part{of} that ends after {depth:,} tokens ({count:,} requests part there)"
            both = []
            if over >= granularity // 2 or depth > granularity:
                pad = granularity - over
                text = f"pad {end} by {pad:,} token{'s' if pad > 1 else ''} to {_blocks(depth + pad, granularity)}"
                padded = {int(r): (Keep(0, depth), Put(depth, pad), Keep(depth, -1)) for r in rows}
                both.append(measured("pad", text, rewrite(workload, padded)))
            if over <= CUT_SHARE * depth:  # more than that is content, not slack
                text = f"cut {end} by {over:,} token{'s' if over > 1 else ''} to {_blocks(depth - over, granularity)}"
                cut = {int(r): (Keep(0, depth - over), Keep(depth, -1)) for r in rows}
                both.append(measured("trim", text, rewrite(workload, cut)))
            real = [a for a in both if a is not None and a.after[0] >= a.before[0]]
            if real:
                made.append(max(real, key=lambda a: a.saved_tokens))
    return sorted((a for a in made if a is not None), key=lambda a: -a.saved_tokens)


def _blocks(tokens: int, granularity: int) -> str:
    return f"{tokens:,} = {tokens // granularity:,} blocks of {granularity}"


def _of(point: Divergence) -> str:
    names = [f"`{g}`" for g, _, lost in point.groups[:3] if g and lost]
    return f" of group {' and '.join(names)}" if names else ""


def _place(depth: int) -> str:
    return f"after the first {depth:,} tokens" if depth else "at the beginning"


def _move_text(point: Divergence, behind: int) -> str:
    least, median, most = point.piece_tokens
    size = f"{median:,} tokens" if least == most else f"{least:,} to {most:,} tokens"
    return f"move the differing piece ({size} {_place(point.depth)}{_of(point)}) behind the {behind:,} shared tokens that follow it"


def move_back(workload: Workload, point: Divergence, rule: NamespaceRule) -> tuple[Workload, int]:
    """A copy in which each row's differing piece stands behind what it then shares with rows of *other* pieces; and how many
    tokens that is (median of the rows moved; 0: nothing to move)."""
    rows, end = point.rows, point.cut_to
    here = only(workload, rows)
    depth = np.full(rows.shape[0], point.depth)
    has = np.flatnonzero(end > depth)
    without = move(here, has, depth[has], end[has], None)
    segments = build_segments(build_trie(without, rule))
    owner = piece_owners(workload, point)
    ahead = shared_with_others(segments, without.prompt_tokens, inserted_tokens(without), owner) - depth
    moves = (end > depth) & (ahead > 0)
    if not moves.any():
        return workload, 0
    changed = move(workload, rows[moves], depth[moves], end[moves], (end + ahead)[moves])
    return changed, int(np.median(ahead[moves]))


def _uneven_ends(workload: Workload, trie: Trie, granularity: int, top: int) -> list[tuple[int, I64, str, int]]:
    """Where shared parts end inside a block: (depth, rows through, names of groups, rows that part there), most lost first."""
    out = []
    for depth, rows, parting in divergence_rows(workload, trie, granularity, top):
        labels, counts = np.unique(workload.group[rows], return_counts=True)
        names = [workload.group_names[g] for g in labels[np.argsort(-counts)][:2].tolist() if g >= 0]
        out.append((depth, rows, " and ".join(f"`{n}`" for n in names), parting))
    return out
