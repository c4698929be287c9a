# mypy: disable-error-code="no-untyped-call"
"""What a replica reports: totals, counters under SGLang's names, notes for people."""

from __future__ import annotations

import numpy as np

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.facts import Settings
from prefixsim.records import I64, NEVER

MAX_COMMIT_CHAINS = 1 << 26
"""Above this many chain ids first-commit times are not kept (half a GiB)."""

NODE_BYTES = 600.0
"""Memory of a tree node where the hardware profile says nothing: assumed."""


def totals(arenas: Arenas, inputs: EngineInputs, page: int) -> dict[str, int]:
    """Totals of `EngineRecord`; tokens, ns, bytes."""
    s = arenas.scalars
    node_bytes = inputs.costs.host.tree_node_bytes or NODE_BYTES
    return {
        "evicted_tokens": int(s[st.S_EVICTED]) * page,
        "preemptions": int(s[st.S_RETRACTIONS]),
        "steps": int(s[st.S_BATCHES]),
        "iterations": int(s[st.S_STEPS]),
        "prefill_steps": int(s[st.S_PREFILL_BATCHES]),
        "peak_kv_tokens": int(s[st.S_PEAK_USED]),
        "capacity_tokens": int(s[st.S_PAGES]) * page,
        "available_tokens": int(s[st.S_AVAILABLE]) * page,
        "evictable_tokens": int(s[st.S_EVICTABLE]) * page,
        "protected_tokens": int(s[st.S_PROTECTED]) * page,
        "nodes": int(s[st.S_NODES]),
        "peak_nodes": int(s[st.S_PEAK_NODES]),
        "tree_bytes": round(int(s[st.S_PEAK_NODES]) * node_bytes),
        "host_ns": int(s[st.S_HOST_NS]),
        "host_extra_ns": int(s[st.S_HOST_EXTRA_NS]),
        "match_nodes": int(s[st.S_W_MATCH]),
        "insert_nodes": int(s[st.S_W_INSERT]),
        "split_nodes": int(s[st.S_W_SPLIT]),
        "evicted_nodes": int(s[st.S_W_EVICT]),
        "merged_nodes": int(s[st.S_W_MERGE]),
        "evict_calls": int(s[st.S_W_EVICT_CALLS]),
        "evict_leaves": int(s[st.S_W_EVICT_LEAVES]),
        "rejected": int(s[st.S_REJECTED]),
        "refused_input": int(s[st.S_REFUSED]),
        "aborted": int(s[st.S_ABORTED]),
        "last_end_ns": int(s[st.S_LAST_END]),
    }


def counters(arenas: Arenas, page: int) -> dict[str, float]:
    """SGLang's own metrics at the end of the run. The hit-rate gauge is that of the last prefill report, requests that
    were retracted left out, as SGLang computes it; the `_total` ones include them."""
    s = arenas.scalars
    capacity = int(s[st.S_PAGES]) * page
    used = int(s[st.S_PAGES] - s[st.S_AVAILABLE] - s[st.S_EVICTABLE]) * page
    hit, new = int(s[st.S_LAST_PREFILL_HIT]), int(s[st.S_LAST_PREFILL_INPUT])
    return {
        "cached_tokens": float(s[st.S_CACHED_TOKENS]),
        "sglang:cache_hit_rate": hit / (hit + new) if hit + new else 0.0,
        'sglang:prefill_effective_tokens_total{mode="input"}': float(
            s[st.S_PREFILL_INPUT] - s[st.S_PREFILL_INPUT_AGAIN]
        ),
        'sglang:prefill_effective_tokens_total{mode="device_hit"}': float(
            s[st.S_PREFILL_HIT] - s[st.S_PREFILL_HIT_AGAIN]
        ),
        'sglang:realtime_tokens_total{mode="prefill_compute"}': float(s[st.S_PREFILL_INPUT]),
        'sglang:realtime_tokens_total{mode="prefill_cache"}': float(s[st.S_PREFILL_HIT]),
        'sglang:realtime_tokens_total{mode="decode"}': float(s[st.S_DECODE_TOKENS]),
        "sglang:prompt_tokens_total": float(s[st.S_LOOKUP_TOKENS]),
        "sglang:cached_tokens_total": float(s[st.S_CACHED_TOKENS]),
        "sglang:evicted_tokens_total": float(int(s[st.S_EVICTED]) * page),
        "sglang:token_usage": used / capacity if capacity else 0.0,
        "sglang:kv_used_tokens": float(used),
        "sglang:kv_available_tokens": float(int(s[st.S_AVAILABLE]) * page),
        "sglang:kv_evictable_tokens": float(int(s[st.S_EVICTABLE]) * page),
        "sglang:num_retracted_requests_total": float(s[st.S_RETRACTIONS]),
        "sglang:new_token_ratio": float(arenas.floats[st.F_RATIO]),
        "sglang:max_total_num_tokens": float(capacity),
        "sglang:page_size": float(page),
        "sglang:num_pages": float(s[st.S_PAGES]),
    }


def notes(arenas: Arenas, settings: Settings, inputs: EngineInputs, n_cut: int) -> tuple[str, ...]:
    """Sentences on what was assumed, refused or cut."""
    s = arenas.scalars
    out = list(settings.chosen)
    if settings.schedule == st.RANDOM:
        out.append("schedule_policy random: the order is ours, drawn from the scenario's seed")
    if settings.merge:
        out.append("what-if: single-child parents are merged after evictions; the real SGLang does not do this")
    if settings.strip_thinking:
        out.append("strip_thinking_cache: every output is taken to contain reasoning, so only prompts stay in the tree")
    if inputs.workload.skip_reading_prefix_cache.any():
        out.append("skip_reading_prefix_cache is an option of vLLM requests and is ignored here")
    if s[st.S_REFUSED]:
        out.append(f"{int(s[st.S_REFUSED])} requests refused on arrival: their input exceeds pool or context")
    never = int(s[st.S_REJECTED] - s[st.S_REFUSED])
    if never:
        out.append(f"{never} requests rejected: they did not fit an idle engine (the real one would wait for ever)")
    if s[st.S_ABORTED]:
        out.append(f"{int(s[st.S_ABORTED])} requests aborted: they outgrew the pool while running alone")
    if n_cut:
        out.append(f"outputs of {n_cut} requests are cut to what context and pool allow, as SGLang does")
    if not inputs.costs.host.tree_node_bytes:
        out.append(f"tree memory counts {NODE_BYTES:g} bytes a node (assumed)")
    if inputs.keep_commits and inputs.chains.n_chains > MAX_COMMIT_CHAINS:
        out.append("first-commit times are not kept: too many distinct pages")
    return tuple(out)


def first_commits(arenas: Arenas, inputs: EngineInputs) -> I64 | None:
    """When each chain was first inserted, int64 (n_chains,), NEVER where it was not; None above `MAX_COMMIT_CHAINS`."""
    n = inputs.chains.n_chains
    if n > MAX_COMMIT_CHAINS:
        return None
    out = np.full(n, NEVER, dtype=np.int64)
    log = arenas.commits[: arenas.scalars[st.S_COMMITS]]
    if log.shape[0]:
        start, count, when = log.T
        before = np.cumsum(count) - count
        at = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(before - start, count)
        out[at] = np.repeat(when, count)
    return out
