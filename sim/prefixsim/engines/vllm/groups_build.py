"""Building a vLLM replica with sliding-window groups from a scenario's options."""

from __future__ import annotations

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm.facts import Settings, resolve, version_of
from prefixsim.engines.vllm.groups_engine import GroupsEngine
from prefixsim.engines.vllm.groups_twin import GroupRules
from prefixsim.errors import NotModelledError, ScenarioError
from prefixsim.scenario.engine_vllm import VllmOptions


def build_groups(options: VllmOptions, inputs: EngineInputs, turn_ns: int) -> GroupsEngine:
    """The engine. Raises NotModelledError for what such models do not have here, ScenarioError for an impossible option."""
    o = options
    assert o.layout is not None
    if o.sliding_window is None:
        raise ScenarioError(f"engine '{o.name}': layout {o.layout}: sliding_window is missing, and no model gives it")
    settings = resolve(o, inputs.capacity, inputs.gpu_memory_gib, inputs.gpu_architecture, turn_ns, _most(o, inputs))
    _check(o, settings)
    rules = GroupRules(
        layout=o.layout,
        block_size=o.block_size,
        num_gpu_blocks=inputs.capacity,
        sliding_window=o.sliding_window,
        retention=o.prefix_cache_retention_interval,
        max_model_len=settings.max_model_len,
        max_in_flight_tokens=settings.max_num_batched_tokens * (2 if settings.async_scheduling else 1),
        watermark_blocks=int(settings.watermark * inputs.capacity),
    )
    return GroupsEngine(o.name, o.kind, settings, rules, inputs)


def _most(o: VllmOptions, inputs: EngineInputs) -> int:
    """What max_model_len can be at most: hybrid, what the pool holds; window alone, beyond that, what the workload asks."""
    pool = (inputs.capacity - 1) * o.block_size
    if o.layout == "hybrid":
        return pool
    w = inputs.workload
    return max(pool, int((w.prompt_tokens + w.output_tokens).max(initial=0)) + 1)


def _check(o: VllmOptions, settings: Settings) -> None:
    """Raises NotModelledError, ScenarioError."""
    where = f"engine '{o.name}': layout {o.layout}"
    if version_of(o.kind) != "0.33" or not settings.split_free_queue or settings.stats_count_retries:
        raise NotModelledError(f"{where} is modelled as in vLLM 0.33 only, not with facts of other versions")
    if not o.enable_prefix_caching:
        raise NotModelledError(
            f"{where} with enable_prefix_caching: false is not modelled; layout full with it is exact"
        )
    if o.kv_offloading_size:
        raise NotModelledError(f"{where} with a host tier (kv_offloading_size) is not modelled")
    interval = o.prefix_cache_retention_interval
    if interval and interval % o.block_size:
        near = max(interval // o.block_size, 1) * o.block_size
        raise ScenarioError(
            f"engine '{o.name}': prefix_cache_retention_interval {interval} is not a multiple of block_size {o.block_size}, "
            f"as vLLM demands (nearest: {near})"
        )
