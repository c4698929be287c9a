"""What differs between versions of vLLM, vLLM's own defaults, and the numbers that an engine runs with."""

from __future__ import annotations

from dataclasses import dataclass

from prefixsim.errors import ScenarioError
from prefixsim.hardware.memory import vllm_default_limits
from prefixsim.scenario.engine_vllm import VllmOptions

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Named switches; each may be set alone by a user (docs/vllm.md has the table with sources)."""

    async_scheduling: bool
    scheduler_reserve_full_isl: bool
    split_free_queue: bool
    stats_count_retries: bool


VERSIONS = {
    "0.33": VersionFacts(
        async_scheduling=True, scheduler_reserve_full_isl=True, split_free_queue=True, stats_count_retries=False
    ),
    "0.11": VersionFacts(
        async_scheduling=False, scheduler_reserve_full_isl=False, split_free_queue=False, stats_count_retries=True
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a vLLM engine needs to know, resolved. Tokens and blocks; `num_gpu_blocks` counts the null block.

    max_model_len: prompt and outputs of one request; also no more than the pool holds (vLLM does not start otherwise).
    turn_ns: time of one turn of the engine's loop that does not wait for the GPU (1 with `clock: steps`).
    offload_blocks: blocks of the host tier, 0: none.
    """

    block_size: int
    num_gpu_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = UNLIMITED
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = True
    priority: bool = False
    enable_prefix_caching: bool = True
    split_free_queue: bool = True
    stats_count_retries: bool = False
    turn_ns: int = 0
    offload_blocks: int = 0
    store_threshold: int = 0
    max_tracker_size: int = 64_000


def version_of(kind: str) -> str:
    """ "0.33" of "vllm@0.33"; the newest for plain "vllm"."""
    return kind.partition("@")[2] or "0.33"


def resolve(
    o: VllmOptions,
    num_gpu_blocks: int,
    gpu_memory_gib: float,
    architecture: str,
    turn_ns: int,
    longest_tokens: int | None = None,
) -> Settings:
    """Settings of an engine from its options; what is not given, as vLLM itself sets it. longest_tokens: the longest
    sequence, where that is not what the pool holds. Raises ScenarioError for options that vLLM does not start with."""
    facts = VERSIONS[version_of(o.kind)]
    longest = longest_tokens or (num_gpu_blocks - 1) * o.block_size
    if o.max_model_len is not None:
        longest = min(longest, o.max_model_len)
    tokens, seqs = vllm_default_limits(gpu_memory_gib, architecture)
    seqs = seqs if o.max_num_seqs is None else o.max_num_seqs
    if o.max_num_batched_tokens is not None:
        tokens = o.max_num_batched_tokens
    elif o.enable_chunked_prefill:
        tokens = min(tokens, seqs * longest)
    else:
        tokens = min(max(tokens, longest), seqs * longest)
    if o.max_num_seqs is None:
        seqs = min(seqs, tokens)
    elif seqs > tokens:
        raise ScenarioError(
            f"engine '{o.name}': max_num_seqs {seqs} is more than max_num_batched_tokens {tokens}; vLLM does not start so"
        )
    if not o.enable_chunked_prefill:
        longest = min(longest, tokens)

    def pick(own: bool | None, fact: bool) -> bool:
        return fact if own is None else own

    return Settings(
        block_size=o.block_size,
        num_gpu_blocks=num_gpu_blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=longest,
        watermark=o.watermark,
        scheduler_reserve_full_isl=pick(o.scheduler_reserve_full_isl, facts.scheduler_reserve_full_isl),
        enable_chunked_prefill=o.enable_chunked_prefill,
        long_prefill_token_threshold=o.long_prefill_token_threshold,
        async_scheduling=pick(o.async_scheduling, facts.async_scheduling),
        priority=o.scheduling_policy == "priority",
        enable_prefix_caching=o.enable_prefix_caching,
        split_free_queue=pick(o.facts.split_free_queue, facts.split_free_queue),
        stats_count_retries=pick(o.facts.stats_count_retries, facts.stats_count_retries),
        turn_ns=turn_ns,
    )
