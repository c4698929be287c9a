"""How much KV cache fits: the engines' own arithmetic, each component measured (given) or estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefixsim.errors import DoesNotFitError
from prefixsim.hardware.models import ModelProfile
from prefixsim.scenario.hardware import MemoryOverrides
from prefixsim.units import GIB

WEIGHT_BYTES = {"bfloat16": 2.0, "float32": 4.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "mxfp4": 0.5 + 1 / 32}

# vLLM >= 0.17, H100, from gpu/kv_capacity.csv (8,192 batched tokens, 1,024 sequences): the sampler's logits work space
# is 12.7 bytes a sequence and vocabulary entry, the layers' a byte count per token, see docs/hardware.md.
VLLM_SAMPLER_BYTES = 12.7
# vLLM 0.11: fitted to the three points logged there (TP 1 and 2), not checked on others.
VLLM_011_SAMPLER_BYTES = 36.7
VLLM_011_NON_TORCH_GIB = (0.13, 0.55)
"""At TP 1, at TP 2 and more."""
VLLM_HIDDEN_BUFFERS = 1.62


@dataclass(frozen=True, slots=True)
class Component:
    """Memory of one kind on one GPU. kind: "measured" (given by the user) or "estimated"."""

    gib: float
    kind: str
    how: str

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"gib": round(self.gib, 6), "kind": self.kind, "how": self.how}


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """KV cache of one replica, per GPU. blocks counts vLLM's null block, as its log does (SGLang: pages, padding left out).

    tokens = blocks * block size. For a model with sliding-window layers (vLLM: two groups share the blocks), tokens is
    the number of full-attention and window tokens together; see `note`.
    """

    kv_gib: float
    blocks: int
    tokens: int
    block_size: int
    bytes_per_token: int
    components: dict[str, Component]
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "kv_gib": round(self.kv_gib, 6),
            "blocks": self.blocks,
            "tokens": self.tokens,
            "block_size": self.block_size,
            "bytes_per_token_per_gpu": self.bytes_per_token,
            "components": {k: v.as_dict() for k, v in self.components.items()},
            "note": self.note,
        }


def weights_gib(model: ModelProfile, dtype: str, tp: int) -> float:
    """Weights on each of `tp` GPUs, GiB. Embedding and lm_head stay in 16 bits where the layers are quantised."""
    counts = model.param_counts()
    rest = 4.0 if dtype == "float32" else 2.0
    layer = WEIGHT_BYTES["bfloat16" if dtype == "mxfp4" else dtype]
    experts = WEIGHT_BYTES[dtype]
    total = counts["embedding"] * rest + (counts["attention"] + counts["mlp"]) * layer + counts["experts"] * experts
    norms = (2 * model.layers + 1) * model.hidden_size * rest
    return (total / tp + norms) / GIB


def vllm_activation_gib(
    model: ModelProfile, dtype: str, tp: int, tokens: int, seqs: int, *, sampler_bytes: float = VLLM_SAMPLER_BYTES
) -> float:
    """Peak of vLLM's profiling run: layer buffers of `tokens` tokens, and the sampler's of `seqs` sequences."""
    width = 4 if dtype == "float32" else 2
    inter = model.intermediate_size
    if model.moe:
        inter = max(
            model.moe.expert_intermediate_size * model.moe.experts_per_token, model.moe.shared_intermediate_size
        )
    layers = tokens * width * (inter / tp + VLLM_HIDDEN_BUFFERS * model.hidden_size)
    return (layers + sampler_bytes * seqs * model.vocab_size) / GIB


def vllm_default_limits(gpu_gib: float, architecture: str) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a vLLM server where the user gives none."""
    if gpu_gib >= 160:
        return 16384, 1024
    if gpu_gib >= 70 and architecture != "ampere":
        return 8192, 1024
    return 2048, 256


def sglang_static_fraction(gpu_gib: float, tp: int, chunk: int | None) -> float:
    """SGLang's default mem_fraction_static when KV is sized after graph capture is not known: reserve by chunk and TP."""
    if chunk is None or chunk < 0:
        chunk = 2048 if gpu_gib < 20 else 4096 if gpu_gib < 60 else 8192 if gpu_gib < 160 else 16384
    reserved_mib = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024
    if gpu_gib > 60:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return (gpu_gib * 1024 - reserved_mib) / (gpu_gib * 1024)


def component(given: float | None, estimate: float, how: str) -> Component:
    """The user's number where there is one, else the estimate."""
    return Component(estimate, "estimated", how) if given is None else Component(given, "measured", "given")


def finish(
    budget_gib: float,
    parts: dict[str, Component],
    bytes_per_token: int,
    block_size: int,
    *,
    what: str,
    note: str = "",
    hint: str = "",
) -> KvCapacity:
    """budget - parts = KV cache, cut into blocks. Raises DoesNotFitError when nothing, or not one block, is left."""
    used = sum(p.gib for p in parts.values())
    kv = budget_gib - used
    block_bytes = bytes_per_token * block_size
    blocks = int(kv * GIB // block_bytes) if kv > 0 else 0
    if blocks < 2:
        need = used + 2 * block_bytes / GIB
        listed = ", ".join(f"{name} {p.gib:.2f} ({p.kind})" for name, p in parts.items())
        raise DoesNotFitError(
            f"{what} does not fit: needs {need:.2f} GiB a GPU before any KV cache [{listed}], "
            f"{budget_gib:.2f} GiB may be used: {need - budget_gib:.2f} GiB too much. {hint}".rstrip()
        )
    return KvCapacity(kv, blocks, blocks * block_size, block_size, bytes_per_token, parts, note)


def override_dict(memory: MemoryOverrides) -> dict[str, float]:
    """Overrides that were given."""
    return {k: v for k, v in memory.model_dump().items() if v is not None}
