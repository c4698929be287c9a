"""Options of a vLLM engine, under vLLM's own names; and the facts that differ between versions, as named switches."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from prefixsim.scenario.base import MOST, Strict

VLLM_VERSIONS = ("0.33", "0.11")


class VllmFacts(Strict):
    """Switches for what changed between versions; None: as the version in `kind` has it.

    Example:
        engines: [{name: vllm, kind: vllm@0.33, facts: {split_free_queue: false}}]
    """

    split_free_queue: bool | None = None
    """Freed blocks without a hash go to the front of the free queue (0.33: true; 0.11: false, all appended tail first)."""
    stats_count_retries: bool | None = None
    """Every lookup of a request that could not be allocated counts in the statistics (0.33: false; 0.11: true)."""


class KvConnectorConfig(Strict):
    """Of vLLM's `kv_connector_extra_config`, what the native offloading takes.

    Example:
        engines: [{name: vllm, kind: vllm@0.33, kv_offloading_size: 256, kv_connector_extra_config: {store_threshold: 2}}]
    """

    store_threshold: int = Field(0, ge=0, le=MOST)
    """Offers of a block after which it is stored; below 2: at once."""
    max_tracker_size: int = Field(64_000, ge=1, le=MOST)
    """Blocks whose offers are counted."""
    eviction_policy: Literal["lru", "arc"] = "lru"
    """Of the host tier; arc is refused as not modelled."""


class VllmOptions(Strict):
    """One vLLM engine. Option names are those of `vllm serve`.

    Example:
        engines: [{name: vllm, kind: vllm@0.33, block_size: 32, max_num_seqs: 256}]
    """

    name: str
    """Name in results."""
    kind: Literal["vllm", "vllm@0.33", "vllm@0.11"] = "vllm@0.33"
    """Version whose behaviour is imitated; vllm is the newest."""
    block_size: int = Field(16, ge=1, le=1 << 20)
    """Tokens of a block, the unit that is hashed and cached."""
    num_gpu_blocks_override: int | None = Field(None, ge=2, le=MOST)
    """Number of KV blocks, vLLM's null block included; default: from the GPU's memory."""
    gpu_memory_utilization: float = Field(0.92, gt=0, le=1)
    """Share of the GPU's memory that vLLM may use; sizes the KV pool unless num_gpu_blocks_override does."""
    enable_prefix_caching: bool = True
    """Off: nothing is hashed, nothing hits."""
    max_num_seqs: int | None = Field(None, ge=1, le=MOST)
    """Requests that run at once; default: vLLM's for the GPU (1024 on H100/H200-class, else 256)."""
    max_num_batched_tokens: int | None = Field(None, ge=1, le=MOST)
    """Tokens of one step at most; default: vLLM's for the GPU (8192 on H100/H200-class, else 2048; 16384 from 160 GiB)."""
    max_model_len: int | None = Field(None, ge=1, le=MOST)
    """Prompt and output of a request together, tokens; default: no limit but the pool."""
    enable_chunked_prefill: bool = True
    """Off: a prompt is computed in one step or not at all."""
    long_prefill_token_threshold: int = Field(0, ge=0, le=MOST)
    """Most new tokens of one request a step; 0: no limit."""
    async_scheduling: bool | None = None
    """Two steps in flight (0.33: true; 0.11: false)."""
    scheduler_reserve_full_isl: bool | None = None
    """Admission tests room for the whole prompt (0.33: true; 0.11: false)."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """priority: smaller `priority` of the request first; the largest is preempted."""
    watermark: float = Field(0.0, ge=0, lt=1)
    """Share of the blocks that an admission leaves free while something runs."""
    layout: Literal["full", "swa", "hybrid"] | None = None
    """KV groups: full attention, sliding window, or one of each; default: what vLLM makes of the model. `full` on a model with
    window layers is `--disable-hybrid-kv-cache-manager`."""
    sliding_window: int | None = Field(None, ge=1, le=MOST)
    """Window in tokens, for swa and hybrid; default: the model's."""
    prefix_cache_retention_interval: int | None = Field(0, ge=0, le=MOST)
    """For sliding-window groups; 0: vLLM's default, null: dense."""
    kv_offloading_size: float | None = Field(None, ge=0, le=1 << 20)
    """Host memory for offloaded KV blocks, GiB, all GPUs of a replica together; null or 0: no host tier."""
    kv_offloading_backend: Literal["native", "lmcache"] = "native"
    """Backend of the host tier; lmcache is refused as not modelled."""
    kv_connector_extra_config: KvConnectorConfig = KvConnectorConfig()
    """Options of the host tier."""
    facts: VllmFacts = VllmFacts()
    """What differs between versions, switch by switch."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise ValueError(
                f"max_num_batched_tokens {tokens} is less than max_num_seqs {seqs}; vLLM does not start so"
            )
        longest = self.max_model_len
        if not self.enable_chunked_prefill and tokens is not None and longest is not None and tokens < longest:
            raise ValueError(
                f"enable_chunked_prefill false: max_num_batched_tokens {tokens} is less than max_model_len {longest}; "
                "vLLM does not start so"
            )
        return self
