"""The most that any prefix cache could serve: an infinite cache, one lookup after another in arrival order.

The ceiling of granularity g counts full blocks of g tokens, without the engine's "one token must be computed" cap. A row's
inserted tokens are a prefix, so its full blocks are known exactly up to its known tokens: one pass at token granularity gives
every granularity (hit_g = floor(prefix / g) * g).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.segments import (
    Segments,
    build_segments,
    inserted_tokens,
    lookup_order,
    outputs_known,
    shared_tokens,
)
from prefixsim.errors import NotModelledError
from prefixsim.workload.intern import NamespaceRule, Trie, build_trie
from prefixsim.workload.table import I32, I64, Workload

DEFAULT_GRANULARITIES = (1, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """prompt_tokens int64 (n,): denominators. prefix_tokens int64 (n,): longest known prefix of each prompt, in tokens (the
    numerators at granularity 1; `hit_tokens` has the others). outputs_known: how many requests have output content."""

    granularities: tuple[int, ...]
    reuse_outputs: bool
    rule: NamespaceRule
    prompt_tokens: I64
    prefix_tokens: I64
    outputs_known: int

    def hit_tokens(self, granularity: int) -> I64:
        """int64 (n,): prompt tokens of each request an infinite cache of this granularity serves."""
        return self.prefix_tokens // granularity * granularity

    def total(self, granularity: int) -> tuple[int, int]:
        """(hit tokens, prompt tokens) of the whole workload."""
        return int(self.hit_tokens(granularity).sum()), int(self.prompt_tokens.sum())

    def lost_to_granularity(self, granularity: int) -> int:
        """Tokens known to the infinite cache that full blocks of this granularity cannot serve."""
        return self.total(1)[0] - self.total(granularity)[0]

    def by(self, labels: I32 | I64, count: int, granularity: int) -> tuple[I64, I64]:
        """(hit tokens, prompt tokens) int64 (count + 1,) for each label 0..count-1; the last entry: requests without (-1)."""
        slot = np.where(labels < 0, count, labels)
        hit = np.zeros(count + 1, dtype=np.int64)
        prompt = np.zeros(count + 1, dtype=np.int64)
        np.add.at(hit, slot, self.hit_tokens(granularity))
        np.add.at(prompt, slot, self.prompt_tokens)
        return hit, prompt


def require_content(workload: Workload, what: str) -> None:
    """Raises NotModelledError where a trace has lengths only: what is shared is then unknown, which is not the same as 0."""
    if not workload.source.content_known:
        name = workload.source.path or workload.source.kind
        raise NotModelledError(
            f"{name}: {what} cannot be computed: the trace has lengths only, not contents, so which prefixes are shared is "
            "unknown (unknown is not 0). Use a trace with token or block ids, or give the requests templates."
        )


def ceilings(
    workload: Workload,
    granularities: Sequence[int] = DEFAULT_GRANULARITIES,
    *,
    reuse_outputs: bool = True,
    rule: NamespaceRule = "vllm",
    trie: Trie | None = None,
    segments: Segments | None = None,
    order: I64 | None = None,
) -> Ceilings:
    """Ceilings of a workload. `trie`/`segments` of the same rule are reused where the caller has them; `order` int64 (m,):
    request indices in order of lookup (default: arrival order). Raises NotModelledError for lengths-only traces."""
    require_content(workload, "a ceiling")
    if segments is None:
        segments = build_segments(trie if trie is not None else build_trie(workload, rule))
    if order is None:
        order = lookup_order(workload)
    prefix = shared_tokens(segments, workload.prompt_tokens, inserted_tokens(workload, reuse_outputs), order)
    return Ceilings(
        granularities=tuple(sorted(set(granularities) | {1})),
        reuse_outputs=reuse_outputs,
        rule=rule,
        prompt_tokens=workload.prompt_tokens,
        prefix_tokens=prefix,
        outputs_known=int(outputs_known(workload).sum()),
    )
