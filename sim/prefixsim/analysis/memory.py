"""Cache sizes in GiB and GPUs, where hardware is known."""

from __future__ import annotations

from dataclasses import dataclass

from prefixsim.errors import InputError, PrefixsimError
from prefixsim.scenario.models import Scenario


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """bytes_per_token: KV bytes of one token over all GPUs of a replica. kv_gib_per_gpu: KV cache that fits one GPU beside
    the model, or None where unknown."""

    bytes_per_token: int
    kv_gib_per_gpu: float | None


def cache_memory(
    scenario: Scenario | None, gpu: str | None = None, model: str | None = None, tensor_parallel_size: int = 1
) -> CacheMemory | None:
    """Memory by the scenario's hardware, or by profiles named on the command line; None where neither says.

    `model` alone gives bytes a token; the KV cache of a GPU needs both. Raises InputError for unknown profiles.
    """
    from prefixsim.hardware.load import load_hardware, load_model
    from prefixsim.scenario.engine_vllm import VllmOptions
    from prefixsim.scenario.hardware import HardwareSpec

    if gpu is None and model is None:
        if scenario is None or scenario.hardware is None:
            return None
        spec, base = scenario.hardware, scenario.base_dir
    elif model is None:
        raise InputError("--gpu needs --model: bytes of a token depend on the model")
    elif gpu is None:
        profile = load_model(model)
        elements = profile.layers * profile.kv_elements_per_gpu(tensor_parallel_size)
        return CacheMemory(round(elements * 2) * tensor_parallel_size, None)
    else:
        spec, base = HardwareSpec(gpu=gpu, model=model, tensor_parallel_size=tensor_parallel_size), None
    hardware = load_hardware(spec, base_dir=base)
    options = scenario.engines[0] if scenario is not None else VllmOptions(name="vllm")
    try:
        per_gpu: float | None = hardware.kv_capacity(options).kv_gib
    except PrefixsimError:
        per_gpu = None
    return CacheMemory(hardware.kv_bytes_per_token * spec.tensor_parallel_size, per_gpu)
