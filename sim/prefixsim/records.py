"""The frozen records that one room of the house hands to the next. Arrays are never changed after hand-over.

Per-request numbers travel as one C-contiguous int64 array of shape (n_requests, len(REQUEST_COLUMNS)): kernels write a
request's whole row in one or two cache lines. Column numbers are the module constants below; kernels compile them in, so
`prefixsim.jit` hashes this file with the kernels' sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
"""A time that does not come (ns)."""
UNSET = -1
"""A time or count that was never written."""

REQUEST_COLUMNS: dict[str, str] = {
    "replica": "replica that served the request (-1: never routed)",
    "status": "see STATUS_*",
    "released_ns": "when it reached the engine's queue: trace arrival, or completion awaited + delay",
    "admitted_ns": "schedule instant of its first admission (its lookup)",
    "first_token_ns": "when its first output token was processed",
    "finish_ns": "when its last output token was processed",
    "cached_tokens": "prompt tokens served from cache at first admission, all tiers (the engine's cached_tokens)",
    "cached_host_tokens": "of these, from the host tier or below",
    "known_tokens": "longest prefix of its sequence ever committed on this replica before that lookup, full blocks/pages, uncapped",
    "preemptions": "preemptions (vLLM) or retractions (SGLang)",
    "recomputed_tokens": "tokens whose KV was computed again after a preemption",
    "chunks": "prefill chunks of the first admission",
    "lookup_tokens": "tokens of the sequence looked up at first admission (the prompt)",
    "ready_ns": "when it could first be scheduled (released, plus block hashing on the host)",
    "device_tokens": "prompt tokens found resident on the device at first admission, before any bypass",
    "computed_tokens": "longest prefix ever computed on this replica before that lookup, where its rules keep less than they compute (vLLM's window groups); else 0",
}
(
    REQ_REPLICA,
    REQ_STATUS,
    REQ_RELEASED_NS,
    REQ_ADMITTED_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_FINISH_NS,
    REQ_CACHED_TOKENS,
    REQ_CACHED_HOST_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_PREEMPTIONS,
    REQ_RECOMPUTED_TOKENS,
    REQ_CHUNKS,
    REQ_LOOKUP_TOKENS,
    REQ_READY_NS,
    REQ_DEVICE_TOKENS,
    REQ_COMPUTED_TOKENS,
) = range(16)
assert len(REQUEST_COLUMNS) == REQ_COMPUTED_TOKENS + 1
SHOWN_COLUMNS = tuple(name for name in REQUEST_COLUMNS if name != "computed_tokens")
"""Columns for people: the ledger says what the last one is for."""

STATUS_PENDING, STATUS_WAITING, STATUS_RUNNING, STATUS_FINISHED, STATUS_REJECTED = range(5)
STATUS_NAMES = ("pending", "waiting", "running", "finished", "rejected")

TIMELINE_COLUMNS: dict[str, str] = {
    "start_ns": "when the step's batch began on the GPU",
    "end_ns": "when its output was ready",
    "scheduled_tokens": "tokens computed in the step (prefill + decode)",
    "prefill_tokens": "of these, prefill",
    "running": "requests running after scheduling",
    "waiting": "requests waiting after scheduling",
    "kv_used_tokens": "KV tokens held by running requests (cached but unreferenced ones left out)",
    "evicted_tokens": "cached tokens evicted so far, cumulative",
    "preemptions": "preemptions so far, cumulative",
    "lookup_tokens": "prompt tokens looked up at first admissions so far, cumulative",
    "cached_tokens": "of these served from cache, cumulative",
    "finished": "requests finished so far, cumulative",
}
(
    TL_START_NS,
    TL_END_NS,
    TL_SCHEDULED_TOKENS,
    TL_PREFILL_TOKENS,
    TL_RUNNING,
    TL_WAITING,
    TL_KV_USED_TOKENS,
    TL_EVICTED_TOKENS,
    TL_PREEMPTIONS,
    TL_LOOKUP_TOKENS,
    TL_CACHED_TOKENS,
    TL_FINISHED,
) = range(12)
assert len(TIMELINE_COLUMNS) == TL_FINISHED + 1


LEDGER_PARTS = (
    "new",
    "namespace",
    "last_token",
    "granularity",
    "engine_rule",
    "in_flight",
    "routing",
    "evicted",
    "bypass",
    "hit_device",
    "hit_host",
)
"""Columns of a ledger, in this order; definitions: docs/definitions.md."""


def new_request_rows(n: int) -> I64:
    """Rows of `REQUEST_COLUMNS` for n requests, int64 (n, 16): times UNSET, replica -1, everything else 0."""
    rows = np.zeros((n, len(REQUEST_COLUMNS)), dtype=np.int64)
    for column in (
        REQ_REPLICA,
        REQ_RELEASED_NS,
        REQ_ADMITTED_NS,
        REQ_FIRST_TOKEN_NS,
        REQ_FINISH_NS,
        REQ_READY_NS,
    ):
        rows[:, column] = UNSET
    return rows


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """What one replica leaves behind.

    timeline: int64 (steps, 12), see TIMELINE_COLUMNS; one row a step, or one a group of steps where `timeline_stride` > 1.
    gaps: int64 (m, 2), pairs (inter-token gap ns, how many token gaps had it); pooled ITL is computed from it.
    counters: the engine's own statistics by their own names, e.g. "vllm:prefix_cache_queries".
    totals: evicted_tokens, preemptions, steps, peak_kv_tokens, capacity_tokens, nodes, host_ns, ... (ints).
    notes: sentences for people (assumptions, refusals, certainties).
    """

    name: str
    kind: str
    replica: int
    granularity: int
    capacity_tokens: int
    timeline: I64
    gaps: I64
    totals: dict[str, int]
    counters: dict[str, float]
    notes: tuple[str, ...] = ()
    timeline_stride: int = 1
    first_commit_ns: I64 | None = None
    """int64 (n_chains,): when each chain was first committed on this replica (NEVER if not); only kept for fleets."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One engine configuration on one workload: all replicas. `requests` is int64 (n, 16), see REQUEST_COLUMNS."""

    engine: str
    kind: str
    requests: I64
    replicas: tuple[EngineRecord, ...]
    saturated: bool
    saturation_note: str
    notes: tuple[str, ...] = ()
    events: int = 0
    """SimPy events processed."""
    extra: dict[str, Any] = field(default_factory=dict)
