"""SGLang's host tier (HiCache): its size from the options, what is refused, and what a replica reports of it."""

from __future__ import annotations

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang import state as st
from prefixsim.engines.tiers import layout as lt
from prefixsim.engines.tiers.arrays import HostTier, link_counters
from prefixsim.errors import DoesNotFitError, NotModelledError
from prefixsim.records import I64, NEVER
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.units import NS_PER_S

RATIO = 2.0
LOAD_FLOOR_TOKENS = 10
"""Fewer tokens than this are computed again instead of loaded."""
GB = 1_000_000_000


def host_pages(o: SglangOptions, pages: int, host: HostTier | None) -> int:
    """Pages of the host pool; 0: none. Raises NotModelledError for what is not modelled, DoesNotFitError for a pool of
    less than a page."""
    if not o.enable_hierarchical_cache or o.disable_radix_cache:
        return 0
    if o.hicache_size == 0 and o.hicache_ratio == 0:
        return 0
    refused = (
        (
            o.hicache_storage_backend is not None,
            f"hicache_storage_backend '{o.hicache_storage_backend}' (a third tier)",
        ),
        (o.schedule_policy == "dfs-weight", "enable_hierarchical_cache with schedule_policy dfs-weight"),
        (o.facts.merge_single_child_parents, "enable_hierarchical_cache with merge_single_child_parents"),
        (host is None, "enable_hierarchical_cache without `hardware:` or with `clock: steps` (loads take time)"),
    )
    for applies, what in refused:
        if applies:
            raise NotModelledError(f"engine '{o.name}': {what} is not modelled")
    assert host is not None
    if o.hicache_size > 0:
        tokens = int(o.hicache_size * GB) // max(1, host.bytes_per_token)
    else:
        tokens = int(pages * o.page_size * (RATIO if o.hicache_ratio is None else o.hicache_ratio))
    if tokens < o.page_size:
        raise DoesNotFitError(f"engine '{o.name}': a host pool of {tokens} tokens holds no page of {o.page_size}")
    return tokens // o.page_size + 1


def backup_uses(o: SglangOptions) -> int:
    """Uses of a node after which it is copied; 0: when it is evicted."""
    return {"write_through": 1, "write_through_selective": 2, "write_back": 0}[o.hicache_write_policy]


def prepare(scalars: I64, pages: int, uses: int, page: int, host: HostTier) -> None:
    """Writes the host tier's scalars. uses: as `backup_uses` says."""
    scalars[[st.S_HOST_PAGES, st.S_HOST_AVAILABLE]] = pages
    scalars[st.S_BACKUP_USES] = uses or NEVER
    scalars[st.S_WRITE_BACK] = uses == 0
    scalars[st.S_LOAD_FLOOR] = LOAD_FLOOR_TOKENS
    scalars[st.S_LINK + lt.T_IN_PS] = host.in_ps(page)
    scalars[st.S_LINK + lt.T_OUT_PS] = host.out_ps(page)
    scalars[st.S_LINK + lt.T_LATENCY_PS] = host.latency_ps


def tier_totals(s: I64, page: int) -> dict[str, int]:
    """Counts of the host tier, tokens and ns."""
    link = s[st.S_LINK :]
    return {
        "host_capacity_tokens": int(s[st.S_HOST_PAGES]) * page,
        "host_peak_tokens": int(s[st.S_HOST_PEAK]) * page,
        "host_cached_tokens": int(s[st.S_HOST_CACHED]),
        "host_loaded_tokens": int(link[lt.T_IN_BLOCKS]) * page,
        "host_stored_tokens": int(link[lt.T_OUT_BLOCKS]) * page,
        "host_evicted_tokens": int(s[st.S_HOST_EVICTED]) * page,
        "host_store_failures": int(s[st.S_HOST_FAILED]),
        "host_loads_skipped_tokens": int(s[st.S_LOAD_SKIPPED]) * page,
        "load_wait_ns": int(s[st.S_LOAD_WAIT]),
        "write_back_stall_ns": int(s[st.S_STALLED]),
        "link_in_busy_ns": int(link[lt.T_IN_BUSY]),
        "link_out_busy_ns": int(link[lt.T_OUT_BUSY]),
        "link_in_wait_ns": int(link[lt.T_IN_WAIT]),
        "link_out_wait_ns": int(link[lt.T_OUT_WAIT]),
        "link_in_jobs": int(link[lt.T_IN_JOBS]),
        "link_out_jobs": int(link[lt.T_OUT_JOBS]),
    }


def tier_counters(s: I64, inputs: EngineInputs, page: int) -> dict[str, float]:
    """SGLang's own metrics of the host tier at the end of the run."""
    assert inputs.host is not None
    link, page_bytes = s[st.S_LINK :], float(inputs.host.bytes_per_token * page)
    return {
        'sglang:cached_tokens_total{cache_source="host"}': float(s[st.S_HOST_CACHED]),
        "sglang:load_back_tokens_total": float(link[lt.T_IN_BLOCKS]) * page,
        "sglang:load_back_bytes_total": float(link[lt.T_IN_BLOCKS]) * page_bytes,
        "sglang:load_back_duration_seconds_sum": float(link[lt.T_IN_BUSY]) / NS_PER_S,
        "host tier: tokens backed up": float(link[lt.T_OUT_BLOCKS]) * page,
        "sglang:hicache_backup_bytes_total": float(link[lt.T_OUT_BLOCKS]) * page_bytes,
        "sglang:hicache_backup_duration_seconds_sum": float(link[lt.T_OUT_BUSY]) / NS_PER_S,
        **link_counters(link, int(s[st.S_LAST_END])),
    }


def tier_notes(host: HostTier) -> tuple[str, ...]:
    """What is exact, what is modelled, what is assumed."""
    out = [
        "host tier modelled: backups, evictions and loads follow the rules of SGLang's HiCache as its source has them "
        "(not compared by running it); each backup of a node is a transfer of its own, transfers go one after another in each "
        "direction of the link, and a load delays its prefill layer by layer; nodes of the tree count those in host memory"
    ]
    assumed = [f"{key} {x['value']:.4g} ({x['source']})" for key, x in host.link.items() if x["kind"] == "assumed"]
    if assumed:
        out.append(f"host link, assumed: {', '.join(assumed)}; `hardware.host_link` overrides")
    return tuple(out)
