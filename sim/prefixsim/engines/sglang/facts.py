"""SGLang 0.5.23's own defaults and limits, worked out from its options, the GPU and the pool. See docs/sglang.md."""

from __future__ import annotations

from dataclasses import dataclass

from prefixsim.engines.sglang.state import POLICIES, SCHEDULES
from prefixsim.errors import DoesNotFitError, ScenarioError
from prefixsim.scenario.engine_sglang import EvictionConfig, SglangOptions

CHUNK_BY_MEMORY_GIB = ((20, 2048), (60, 4096), (160, 8192))
CHUNK_LARGEST = 16384
CHUNK_UNKNOWN = 4096
INPUT_HEADROOM = 5
"""A prompt must be this much shorter than the longest request, and one token more."""

CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the kernels need to know, defaults filled in. Lengths in tokens, pool in pages.

    chunk: 0 without chunking. max_length: longest prompt + output, None: no limit (golden cases).
    evicts by `policy`, waits by `schedule` (both numbers, see `state`)."""

    page_size: int
    pages: int
    policy: int
    eviction: EvictionConfig
    schedule: int
    max_running: int
    chunk: int
    max_prefill: int
    conservativeness: float
    overlap: bool
    disabled: bool
    merge: bool
    strip_thinking: bool
    max_length: int | None
    host_pages: int = 0
    """Pages of the host tier; 0: none."""
    backup_uses: int = 1
    """Uses of a node after which it is copied to host memory; 0: when it is evicted."""
    chosen: tuple[str, ...] = ()
    """Sentences on defaults that were chosen for the user."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens in the pool, whole pages."""
        return self.pages * self.page_size


def default_chunk(gpu_memory_gib: float) -> int:
    """SGLang's chunked_prefill_size for a GPU's memory (0: unknown)."""
    if gpu_memory_gib <= 0:
        return CHUNK_UNKNOWN
    return next((chunk for limit, chunk in CHUNK_BY_MEMORY_GIB if gpu_memory_gib < limit), CHUNK_LARGEST)


def default_max_running(capacity_tokens: int, context_length: int | None) -> int:
    """SGLang's max_running_requests: 512 full-length requests' worth, between 2048 and 4096, at most half the pool."""
    full = capacity_tokens * 512 // context_length if context_length else 2048
    return max(1, min(max(min(full, 4096), 2048), capacity_tokens // 2))


def settle_options(options: SglangOptions, capacity: int, gpu_memory_gib: float, *, golden: bool) -> Settings:
    """Fills in the engine's defaults. golden: the conformance loop, which knows no limit on input length.

    Raises DoesNotFitError for a pool of less than a page, ScenarioError for a policy the engine would refuse."""
    pages = capacity // options.page_size
    if pages < 1:
        raise DoesNotFitError(
            f"engine '{options.name}': a pool of {capacity} tokens holds no page of {options.page_size}; "
            f"raise max_total_tokens or lower page_size"
        )
    tokens = pages * options.page_size
    schedule = options.schedule_policy
    chosen = []
    if options.disable_radix_cache and schedule in CACHE_AWARE:
        if schedule == "shortest-prefill-first":
            raise ScenarioError(
                f"engine '{options.name}': schedule_policy shortest-prefill-first needs the prefix cache; SGLang refuses "
                "it with disable_radix_cache"
            )
        chosen.append(f"schedule_policy {schedule} is fcfs where the prefix cache is disabled, as in SGLang")
        schedule = "fcfs"
    chunk = options.chunked_prefill_size
    if chunk is None:
        chunk = default_chunk(gpu_memory_gib)
        chosen.append(f"chunked_prefill_size {chunk}: SGLang's default for {gpu_memory_gib:g} GiB of GPU memory")
    running = options.max_running_requests
    if running is None:
        running = default_max_running(tokens, options.context_length)
        chosen.append(f"max_running_requests {running}: SGLang's default for this pool")
    elif not golden:
        running = max(1, min(running, tokens // 2))
    length = None
    if not golden:
        length = min(options.context_length or tokens, tokens) - 1
    return Settings(
        page_size=options.page_size,
        pages=pages,
        policy=POLICIES.index(options.radix_eviction_policy),
        eviction=options.radix_eviction_policy_config,
        schedule=SCHEDULES.index(schedule),
        max_running=running,
        chunk=max(0, chunk),
        max_prefill=options.max_prefill_tokens,
        conservativeness=options.schedule_conservativeness,
        overlap=not options.disable_overlap_schedule,
        disabled=options.disable_radix_cache,
        merge=options.facts.merge_single_child_parents,
        strip_thinking=options.strip_thinking_cache,
        max_length=length,
        chosen=tuple(chosen),
    )
