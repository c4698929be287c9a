"""A replica's totals, and its statistics under vLLM's own names (SPEC section 8)."""

from __future__ import annotations

import numpy as np

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.facts import Settings
from prefixsim.records import I64
from prefixsim.workload.intern import ChainIndex


def totals(s: I64, settings: Settings, refused: int) -> dict[str, int]:
    """Counts of the run, tokens and requests."""
    bs = settings.block_size
    return {
        "evicted_tokens": int(s[st.I_EVICTED]) * bs,
        "evicted_blocks": int(s[st.I_EVICTED]),
        "preemptions": int(s[st.I_PREEMPTIONS]),
        "steps": int(s[st.I_STEPS]),
        "peak_kv_tokens": int(s[st.I_USED_PEAK]) * bs,
        "capacity_tokens": (settings.num_gpu_blocks - 1) * bs,
        "lookup_tokens": int(s[st.I_FIRST_LOOKUP]),
        "cached_tokens": int(s[st.I_FIRST_CACHED]),
        "lookups": int(s[st.I_LOOKUPS]),
        "finished": int(s[st.I_FINISHED]),
        "rejected": refused,
        "cut_at_max_model_len": int(s[st.I_CUT]),
        "output_tokens": int(s[st.I_GENERATED]),
    }


def counters(s: I64, settings: Settings, used_blocks: int) -> dict[str, float]:
    """vLLM's metrics at the end of the run. `(log line)` is "Prefix cache hit rate" of its log, a fraction here; preempted
    lookups are in neither the log line nor Prometheus."""
    usable = settings.num_gpu_blocks - 1
    window = int(s[st.I_WINDOW_QUERIES])
    return {
        "vllm:prefix_cache_queries": float(s[st.I_QUERIES]),
        "vllm:prefix_cache_hits": float(s[st.I_HITS]),
        "preempted prefix cache queries": float(s[st.I_AGAIN_QUERIES]),
        "preempted prefix cache hits": float(s[st.I_AGAIN_HITS]),
        "Prefix cache hit rate (log line)": float(s[st.I_WINDOW_HITS]) / window if window else 0.0,
        "vllm:num_preemptions": float(s[st.I_PREEMPTIONS]),
        "vllm:prompt_tokens": float(s[st.I_FIRST_LOOKUP]),
        "vllm:prompt_tokens_cached": float(s[st.I_FIRST_CACHED]),
        "vllm:generation_tokens": float(s[st.I_GENERATED]),
        "vllm:kv_cache_usage_perc": used_blocks / usable,
        "vllm:kv_cache_usage_perc (peak)": float(s[st.I_USED_PEAK]) / usable,
        "vllm:num_requests_running": float(s[st.I_RUNNING]),
    }


def notes(s: I64, settings: Settings, inputs: EngineInputs, refused: int) -> tuple[str, ...]:
    """Sentences for people: what was refused or cut, and when zero hits are certain."""
    out = []
    longest = settings.max_model_len
    if refused:
        out.append(
            f"{refused} requests were rejected: a prompt must be shorter than max_model_len = {longest:,} tokens "
            f"(no more than the KV cache of {settings.num_gpu_blocks - 1:,} blocks holds), as vLLM's front end demands"
        )
    if s[st.I_CUT]:
        out.append(f"{int(s[st.I_CUT])} requests ended early, at max_model_len = {longest:,} tokens")
    w = inputs.workload
    if settings.enable_prefix_caching and w.n and int(w.prompt_tokens.max()) <= settings.block_size:
        out.append(
            f"0 hits are certain: the longest prompt has {int(w.prompt_tokens.max()):,} tokens, and only blocks of "
            f"{settings.block_size:,} tokens before a prompt's last token can be hit"
        )
    elif settings.enable_prefix_caching and w.n > 1 and not shares_blocks(inputs.chains):
        out.append(
            f"0 hits are certain: no two requests share a whole block of {settings.block_size:,} tokens from their "
            "first token on"
        )
    return tuple(out)


def shares_blocks(chains: ChainIndex) -> bool:
    """Whether any two rows have a chain in common: fewer distinct chains than blocks in all rows."""
    last = chains.run_offset[1:][np.diff(chains.run_offset) > 0] - 1
    return int(chains.run_end[last].sum()) > chains.n_chains
