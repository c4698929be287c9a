"""Options of an SGLang engine, under SGLang's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from prefixsim.scenario.base import MOST, Strict

EVICTION_POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first", "random")


class SglangFacts(Strict):
    """Switches that are not SGLang options.

    Example:
        engines: [{name: sglang, kind: sglang, facts: {merge_single_child_parents: true}}]
    """

    merge_single_child_parents: bool = False
    """What-if: after an eviction a parent left with one child is merged with it. The real SGLang does not do this."""


class EvictionConfig(Strict):
    """Parameters of slru and tlru.

    Example:
        engines: [{name: sglang, kind: sglang, radix_eviction_policy: slru, radix_eviction_policy_config: {protected_threshold: 3}}]
    """

    protected_threshold: int = Field(2, ge=0, le=MOST)
    """slru: hits from which a node is protected."""
    threshold: int = Field(0, ge=0, le=MOST)
    """tlru: tokens that a prompt may have to compute without harm."""
    next_prompt_estimate: int = Field(0, ge=0, le=MOST)
    """tlru: expected tokens of the next prompt beyond the history."""


class SglangOptions(Strict):
    """One SGLang engine. Option names are those of `sglang serve`.

    Example:
        engines: [{name: sglang, kind: sglang@0.5.23, page_size: 1, schedule_policy: lpm}]
    """

    name: str
    """Name in results."""
    kind: Literal["sglang", "sglang@0.5.23"] = "sglang@0.5.23"
    """Version whose behaviour is imitated; sglang is the newest."""
    page_size: int = Field(1, ge=1, le=1 << 20)
    """Tokens of a page, the unit of the tree; 1: any length matches."""
    max_total_tokens: int | None = Field(None, ge=1, le=MOST)
    """Tokens in the KV pool; default: from the GPU's memory."""
    mem_fraction_static: float | None = Field(None, gt=0, lt=1)
    """Share of the GPU's memory for weights and KV pool; default: SGLang's formula for the GPU."""
    disable_radix_cache: bool = False
    """True: nothing is kept, nothing hits."""
    radix_eviction_policy: Literal["lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru"] = "lru"
    """Which unlocked leaf goes first when memory is short."""
    radix_eviction_policy_config: EvictionConfig = EvictionConfig()
    """Parameters of slru and tlru."""
    schedule_policy: Literal["fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first", "random"] = "fcfs"
    """Order of the waiting queue."""
    max_running_requests: int | None = Field(None, ge=1, le=MOST)
    """Requests that run at once; default: SGLang's for this pool."""
    chunked_prefill_size: int | None = Field(None, ge=-1, le=MOST)
    """Tokens of a prompt that are computed at once; default: SGLang's for the GPU's memory; -1: no chunking."""
    max_prefill_tokens: int = Field(16384, ge=1, le=MOST)
    """New tokens of one prefill batch at most."""
    schedule_conservativeness: float = Field(1.0, ge=0, le=1e6)
    """Scales the share of a request's future output that admission keeps free."""
    disable_overlap_schedule: bool = False
    """True: a batch is scheduled when the one before has been processed."""
    context_length: int | None = Field(None, ge=1, le=MOST)
    """Prompt and output of a request together, tokens; default: no limit but the pool."""
    strip_thinking_cache: bool = False
    """True: only the prompt of a finished request stays in the tree (every output is taken to be thinking)."""
    enable_hierarchical_cache: bool = False
    """HiCache: a host tier under the GPU's pool."""
    hicache_ratio: float | None = Field(None, ge=0, le=1 << 20)
    """Host tokens for each token of the GPU's pool; default 2.0; 0: no host tier."""
    hicache_size: float = Field(0.0, ge=0, le=1 << 20)
    """Host memory of each GPU, GB (10^9 bytes); above 0 it replaces the ratio."""
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = "write_through"
    """Copied to host memory at the first use, at the second, or when evicted."""
    hicache_storage_backend: str | None = None
    """A third tier; not modelled."""
    facts: SglangFacts = SglangFacts()
    """What-ifs that SGLang has no option for."""
