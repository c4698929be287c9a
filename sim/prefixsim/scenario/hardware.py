"""A scenario's `hardware:` section: which GPU, which model, how many GPUs a replica, and what the user knows better."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from prefixsim.scenario.base import Strict

Dtype = Literal["auto", "bfloat16", "bf16", "float16", "fp16", "float32", "fp32", "fp8", "fp8_block"]
KvDtype = Literal["auto", "bfloat16", "bf16", "float16", "fp16", "float32", "fp32", "fp8"]


class MemoryOverrides(Strict):
    """Memory a real server logged, per GPU in GiB; what is left out is estimated and marked so.

    Example:
        hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b, memory: {weights_gib: 14.99, cuda_graphs_gib: 0.6}}
    """

    total_gib: float | None = Field(None, gt=0, le=1e6)
    """Memory the driver reports (an 80 GB H100 has 79.19 GiB); default: from the GPU's profile."""
    weights_gib: float | None = Field(None, ge=0, le=1e6)
    """Weights on one GPU."""
    activation_gib: float | None = Field(None, ge=0, le=1e6)
    """Peak of the profiling run."""
    non_torch_gib: float | None = Field(None, ge=0, le=1e6)
    """CUDA context, NCCL buffers."""
    cuda_graphs_gib: float | None = Field(None, ge=0, le=1e6)
    """CUDA graph estimate; vLLM subtracts it since 0.21."""


class HostLinkOverrides(Strict):
    """The link between one GPU and host memory, for host tiers; what is left out is from the GPU's profile or assumed.

    Example:
        hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b, host_link: {bandwidth_gb_per_s: 50}}
    """

    bandwidth_gb_per_s: float | None = Field(None, gt=0, le=1e6)
    """In each direction; default: 82 % of the profile's."""
    per_block_us: float | None = Field(None, ge=0, le=1e6)
    """What a block or page costs beside its bytes."""
    latency_us: float | None = Field(None, ge=0, le=1e6)
    """What a transfer costs beside its blocks."""


class HardwareSpec(Strict):
    """The hardware of one replica. Names are looked up as a path, then in ./hw_profiles, then among the shipped profiles.

    Example:
        hardware: {gpu: h100-sxm-80g, model: llama-3.1-70b, tensor_parallel_size: 4, kv_cache_dtype: fp8}
    """

    gpu: str
    """GPU profile, e.g. h100-sxm-80g, or the path of one."""
    model: str
    """Model profile, e.g. llama-3.1-8b, or the path of one or of a Hugging Face config.json."""
    tensor_parallel_size: int = Field(1, ge=1, le=64)
    """GPUs a replica; weights and KV heads are split over them."""
    dtype: Dtype = "auto"
    """Of the weights; auto: as published. fp8: per-tensor W8A8; fp8_block: 128x128 blocks."""
    kv_cache_dtype: KvDtype = "auto"
    """auto: the activations' dtype."""
    memory: MemoryOverrides = MemoryOverrides()
    """What a real server logged at its start; replaces estimates."""
    host: str = "reference"
    """Host profile: costs of hashing and tree work on the scheduler's CPU."""
    host_link: HostLinkOverrides = HostLinkOverrides()
    """PCIe to host memory; used by host tiers only."""
    usd_per_gpu_hour: float | None = Field(None, ge=0, le=1e6)
    """Price; default: the profile's."""
