"""vLLM's host tier: its size from the options, what is refused, and what a replica reports of it."""

from __future__ import annotations

from collections.abc import Callable

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.tiers import layout as lt
from prefixsim.engines.tiers.arrays import MAX_BLOCKS, HostTier, link_counters
from prefixsim.engines.vllm.facts import Settings
from prefixsim.errors import DoesNotFitError, NotModelledError
from prefixsim.records import I64
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.units import GIB, NS_PER_S

PAGE_BYTES = 4096
"""Blocks of the shared region are rounded up to the machine's page."""


def offload_blocks(o: VllmOptions, host: HostTier | None) -> int:
    """Blocks of the CPU pool: `kv_offloading_size` (GiB, all GPUs together) over the bytes of a block. Raises
    NotModelledError for what is not modelled, DoesNotFitError for a pool of less than one block."""
    if not o.kv_offloading_size:
        return 0
    refused: list[tuple[Callable[[], bool], str]] = [
        (lambda: o.kv_offloading_backend != "native", f"kv_offloading_backend '{o.kv_offloading_backend}'"),
        (lambda: o.kind == "vllm@0.11", "kv_offloading_size under vllm@0.11 (its connector had other rules)"),
        (lambda: not o.enable_prefix_caching, "kv_offloading_size with enable_prefix_caching: false"),
        (lambda: o.kv_connector_extra_config.eviction_policy != "lru", "eviction_policy other than lru"),
        (lambda: host is None, "kv_offloading_size without `hardware:` or with `clock: steps` (loads take time)"),
    ]
    for applies, what in refused:
        if applies():
            raise NotModelledError(f"engine '{o.name}': {what} is not modelled; native offloading with lru is")
    assert host is not None
    whole = host.bytes_per_token * o.block_size * host.gpus
    blocks = int(o.kv_offloading_size * GIB) // (-(-whole // PAGE_BYTES) * PAGE_BYTES)
    if blocks < 1:
        raise DoesNotFitError(
            f"engine '{o.name}': kv_offloading_size {o.kv_offloading_size:g} GiB holds not one block of {whole / GIB:.3g} GiB"
        )
    return min(blocks, MAX_BLOCKS)


def tier_totals(t: I64, block_size: int) -> dict[str, int]:
    """Counts of the host tier, tokens and ns."""
    return {
        "host_capacity_tokens": int(t[lt.T_CAPACITY]) * block_size,
        "host_peak_tokens": int(t[lt.T_PEAK]) * block_size,
        "host_cached_tokens": int(t[lt.T_FIRST_CACHED]),
        "host_loaded_tokens": int(t[lt.T_IN_BLOCKS]) * block_size,
        "host_stored_tokens": int(t[lt.T_OUT_BLOCKS]) * block_size,
        "host_evicted_tokens": int(t[lt.T_EVICTED]) * block_size,
        "host_store_failures": int(t[lt.T_FAILED]),
        "host_stores_skipped": int(t[lt.T_BELOW]),
        "host_lookups_deferred": int(t[lt.T_DEFERRED]),
        "load_wait_ns": int(t[lt.T_LOAD_WAIT]),
        "link_in_busy_ns": int(t[lt.T_IN_BUSY]),
        "link_out_busy_ns": int(t[lt.T_OUT_BUSY]),
        "link_in_wait_ns": int(t[lt.T_IN_WAIT]),
        "link_out_wait_ns": int(t[lt.T_OUT_WAIT]),
        "link_in_jobs": int(t[lt.T_IN_JOBS]),
        "link_out_jobs": int(t[lt.T_OUT_JOBS]),
    }


def tier_counters(t: I64, inputs: EngineInputs, settings: Settings, end_ns: int) -> dict[str, float]:
    """vLLM's metrics of the connector at the end of the run."""
    assert inputs.host is not None
    block = float(inputs.host.bytes_per_token * settings.block_size * inputs.host.gpus)
    return {
        "vllm:external_prefix_cache_queries": float(t[lt.T_QUERIES]),
        "vllm:external_prefix_cache_hits": float(t[lt.T_HITS]),
        "preempted external prefix cache queries": float(t[lt.T_AGAIN_QUERIES]),
        "preempted external prefix cache hits": float(t[lt.T_AGAIN_HITS]),
        'vllm:prompt_tokens_cached_by_source{source="host"}': float(t[lt.T_FIRST_CACHED]),
        "offloading: bytes loaded": float(t[lt.T_IN_BLOCKS]) * block,
        "offloading: bytes stored": float(t[lt.T_OUT_BLOCKS]) * block,
        "offloading: load time (s)": float(t[lt.T_IN_BUSY]) / NS_PER_S,
        "offloading: store time (s)": float(t[lt.T_OUT_BUSY]) / NS_PER_S,
        **link_counters(t, end_ns),
    }


def tier_notes(host: HostTier) -> tuple[str, ...]:
    """What is exact, what is modelled, what is assumed."""
    out = [
        "host tier modelled: which blocks are stored, evicted and loaded follows the rules of vLLM's "
        "OffloadingConnector as its source has them (not compared by running it); transfers go one after another in each "
        "direction of the link, and stores never hold up a step"
    ]
    assumed = [f"{key} {x['value']:.4g} ({x['source']})" for key, x in host.link.items() if x["kind"] == "assumed"]
    if assumed:
        out.append(f"host link, assumed: {', '.join(assumed)}; `hardware.host_link` overrides")
    return tuple(out)
