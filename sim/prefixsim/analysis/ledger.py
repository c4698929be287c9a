# mypy: disable-error-code="no-untyped-call"
"""The ledger: where every prompt token went, counted at first admission (definitions: docs/definitions.md).

Nested levels, each the longest prefix that could have been served under one more restriction; neighbours' differences are
the losses. The parts are non-negative and sum to the prompt tokens of every admitted request; both are checked in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.kernels import committed_prefix
from prefixsim.analysis.segments import Segments, build_segments, inserted_tokens, known_tokens
from prefixsim.records import (
    LEDGER_PARTS,
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
    REQ_CACHED_TOKENS,
    REQ_COMPUTED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_REJECTED,
)
from prefixsim.workload.intern import ChainIndex, NamespaceRule, Trie, build_trie
from prefixsim.workload.table import BOOL, I64, Workload

PART_MEANINGS = {
    "new": "not a prefix of anything that had arrived before",
    "namespace": "known, but under another salt, LoRA or extra key",
    "last_token": "the engine must compute at least the last prompt token",
    "granularity": "less than a full block or page",
    "engine_rule": "never kept or never used, by the engine's rules or options",
    "in_flight": "known, but its KV had not been computed yet",
    "routing": "computed, but on another replica",
    "evicted": "computed here, but no longer resident",
    "bypass": "resident, but the lookup was skipped",
    "hit_device": "served from GPU memory",
    "hit_host": "served from the host tier",
}


class LedgerError(RuntimeError):
    """The engine's numbers contradict each other: a defect of the program, never of the input."""


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What an engine by rule never keeps or uses.

    caching: False where prefix caching is switched off. keeps_outputs: False where generated tokens are never inserted
    (SGLang `strip_thinking_cache`). keeps_last: False where the last token of a request that ends by a stop token is never
    computed (all but SGLang's overlap schedule). What window groups never keep is in the rows (REQ_COMPUTED_TOKENS).
    """

    caching: bool = True
    keeps_outputs: bool = True
    keeps_last: bool = True


def admitted(rows: I64) -> BOOL:
    """bool (n,): requests inside the ledger: admitted at least once and not rejected."""
    return (rows[:, REQ_ADMITTED_NS] >= 0) & (rows[:, REQ_STATUS] != STATUS_REJECTED)


def ledger(
    workload: Workload,
    rows: I64,
    *,
    granularity: int,
    rule: NamespaceRule,
    facts: LedgerFacts = LedgerFacts(),
    trie: Trie | None = None,
    segments: Segments | None = None,
    any_namespace: Segments | None = None,
    chains: ChainIndex | None = None,
    first_commit_ns: Sequence[I64] | None = None,
) -> I64:
    """Ledger int64 (n, 11), columns `LEDGER_PARTS`; rows of requests never admitted are 0.

    rows: request table (n, 16), see records.REQUEST_COLUMNS. granularity: tokens a block/page. trie or segments: of `rule`,
    reused where the caller has them; any_namespace: segments of rule "none". first_commit_ns: one int64 (n_chains,) for each
    replica, with `chains`, where there are several replicas; None: a single one.
    Raises LedgerError when the engine's own numbers cannot be nested.
    """
    if segments is None:
        segments = build_segments(trie if trie is not None else build_trie(workload, rule))
    inside = admitted(rows)
    prompt = np.where(inside, workload.prompt_tokens, 0)
    lookup_ns = np.where(inside, rows[:, REQ_ADMITTED_NS], -1)
    arrived_ns = rows[:, REQ_RELEASED_NS]
    inserted = inserted_tokens(workload)

    def known(where: Segments, upto: I64, ties: bool = False) -> I64:
        return known_tokens(where, prompt, upto, arrived_ns, lookup_ns, ties)

    def floored(tokens: I64) -> I64:
        return np.maximum(np.minimum(tokens, prompt - 1), 0) // granularity * granularity

    level2 = known(segments, inserted)
    here = floored(np.where(inside, rows[:, REQ_KNOWN_TOKENS], 0))
    if (here > floored(level2)).any():
        level2 = _settle_ties(workload, level2, here, known(segments, inserted, True), floored)
    namespaced = bool(workload.salt.any() or workload.lora.any() or workload.extra_key.any()) and rule != "none"
    level1 = level2
    if namespaced:
        if any_namespace is None:
            any_namespace = build_segments(build_trie(workload, "none"))
        level1 = np.maximum(known(any_namespace, inserted), level2)
    level3 = np.maximum(np.minimum(level2, prompt - 1), 0)
    level4 = level3 // granularity * granularity
    level4a = level4
    if not facts.caching:
        level4a = np.zeros_like(level4)
    elif not facts.keeps_outputs:
        level4a = np.minimum(level4, floored(known(segments, workload.prompt_tokens, True)))
    elif not facts.keeps_last and workload.stop.any():
        level4a = np.minimum(level4, floored(known(segments, inserted - workload.stop, True)))
    computed = np.maximum(floored(np.where(inside, rows[:, REQ_COMPUTED_TOKENS], 0)), here)

    def kept(tokens: I64) -> I64:
        """Less what this replica computed and by rule did not keep: tokens `here` to `computed`."""
        return tokens - (np.minimum(tokens, computed) - np.minimum(tokens, here))

    level5 = level6 = np.minimum(level4a, here)
    if first_commit_ns is not None and chains is not None and len(first_commit_ns) > 1:
        elsewhere = floored(_elsewhere(chains, rows[:, REQ_REPLICA], first_commit_ns, lookup_ns) * granularity)
        level5 = np.maximum(kept(np.minimum(level4a, elsewhere)), level6)
    level4a = kept(level4a)
    cached = np.where(inside, rows[:, REQ_CACHED_TOKENS], 0)
    host = np.where(inside, rows[:, REQ_CACHED_HOST_TOKENS], 0)
    resident = np.where(inside, rows[:, REQ_DEVICE_TOKENS], 0) + host
    level7 = np.minimum(level6, floored(resident))
    levels = np.stack([prompt, level1, level2, level3, level4, level4a, level5, level6, level7, cached], axis=1)
    parts = np.empty((workload.n, len(LEDGER_PARTS)), dtype=np.int64)
    parts[:, :9] = levels[:, :-1] - levels[:, 1:]
    parts[:, 9] = cached - host
    parts[:, 10] = host
    _check(workload, parts, levels, prompt, floored(resident), here)
    return parts


def _elsewhere(chains: ChainIndex, replica: I64, first_commit_ns: Sequence[I64], lookup_ns: I64) -> I64:
    """int64 (n,): full blocks of each row that a replica other than its own had computed at its lookup. What its own has
    computed is known from the row; at that very instant it computes the row itself."""
    first, second = first_commit_ns[0], np.full_like(first_commit_ns[0], NEVER)
    owner = np.zeros(first.shape[0], dtype=np.int32)
    for q, commits in enumerate(first_commit_ns[1:], 1):
        second = np.minimum(second, np.maximum(first, commits))
        owner[commits < first] = q
        first = np.minimum(first, commits)
    out = np.zeros(replica.shape[0], dtype=np.int64)
    for q in np.unique(replica[lookup_ns >= 0]).tolist():
        others = np.where(owner == q, second, first)
        asked = np.where(replica == q, lookup_ns, -1)
        out += committed_prefix(chains.run_offset, chains.run_start, chains.run_end, others, asked)
    return out


def _settle_ties(workload: Workload, level2: I64, here: I64, most: I64, floored: object) -> I64:
    """Where the replica had computed more than arrivals *before* the lookup explain, requests that arrived at that very
    instant may have been looked up first: then they were known. Anything beyond that is a contradiction."""
    reachable = floored(most)  # type: ignore[operator]
    if (here > reachable).any():
        r = int(np.argmax(here - reachable))
        raise LedgerError(
            f"request {workload.request_id(r)}: {here[r]} prompt tokens were computed before its lookup, but only "
            f"{reachable[r]} were known to any other request"
        )
    return np.where(here > floored(level2), np.minimum(most, np.maximum(level2, here)), level2)  # type: ignore[operator]


def _check(workload: Workload, parts: I64, levels: I64, prompt: I64, resident: I64, here: I64) -> None:
    """The invariant: parts >= 0, summing to the prompt; nothing resident that was never computed here."""
    bad = np.flatnonzero((parts < 0).any(axis=1) | (parts.sum(axis=1) != prompt) | (resident > here))
    if bad.shape[0]:
        r = int(bad[0])
        shown = dict(zip(LEDGER_PARTS, parts[r].tolist(), strict=True))
        raise LedgerError(
            f"the ledger of request {workload.request_id(r)} does not add up ({bad.shape[0]} requests): "
            f"prompt {prompt[r]}, levels {levels[r].tolist()}, resident {resident[r]}, parts {shown}"
        )


def ledger_totals(parts: I64) -> dict[str, int]:
    """Sums over requests, by name of part."""
    return {name: int(value) for name, value in zip(LEDGER_PARTS, parts.sum(axis=0), strict=True)}


def ledger_by(parts: I64, labels: I64, count: int) -> I64:
    """int64 (count + 1, 11): sums for each label 0..count-1; the last row: requests without a label (-1)."""
    out = np.zeros((count + 1, parts.shape[1]), dtype=np.int64)
    np.add.at(out, np.where(labels < 0, count, labels), parts)
    return out
