"""Model profiles: architecture numbers, from our YAML or straight from a Hugging Face config.json.

What follows from them: parameters by kind, bytes of weights, KV bytes of a token, GEMM shapes (`shapes.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from prefixsim.errors import NotModelledError, Problem, ProfileError
from prefixsim.paths import read_regular
from prefixsim.scenario.base import Strict

MAX_CONFIG_BYTES = 4 << 20
FULL_ATTENTION, WINDOW_ATTENTION = "full_attention", "sliding_attention"


class Moe(Strict):
    """Mixture of experts."""

    experts: int = Field(ge=2)
    experts_per_token: int = Field(ge=1)
    expert_intermediate_size: int = Field(ge=1)
    shared_intermediate_size: int = Field(0, ge=0)
    """Width of the experts that every token goes through, all together; 0: none."""
    dense_layers: int = Field(0, ge=0)
    """Layers with an ordinary MLP."""


class Mla(Strict):
    """Multi-head latent attention: what is cached is `kv_lora_rank + qk_rope_head_dim` numbers a token and layer."""

    q_lora_rank: int = Field(0, ge=0)
    kv_lora_rank: int = Field(ge=1)
    qk_nope_head_dim: int = Field(ge=1)
    qk_rope_head_dim: int = Field(ge=1)
    v_head_dim: int = Field(ge=1)


class ModelProfile(Strict):
    """One model. Counts have no unit; sizes are numbers of elements."""

    name: str
    title: str
    source: str = Field(min_length=1)
    kind: Literal["datasheet", "assumed"] = "datasheet"
    """datasheet: published by the model's makers."""
    date: str
    layers: int = Field(ge=1, le=1000)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    attention_heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    weights_dtype: Literal["bfloat16", "fp8", "fp8_block", "mxfp4"] = "bfloat16"
    """As published. fp8_block: 128x128 scaled blocks; mxfp4: experts in 4 bits, the rest bfloat16."""
    max_position_embeddings: int | None = Field(None, ge=1)
    sliding_window: int | None = Field(None, ge=1)
    window_layers: int = Field(0, ge=0)
    """Layers whose attention is limited to `sliding_window` tokens."""
    moe: Moe | None = None
    mla: Mla | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ModelProfile:
        if self.attention_heads % self.kv_heads:
            raise ValueError(f"attention_heads {self.attention_heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.window_layers > self.layers or (self.window_layers and self.sliding_window is None):
            raise ValueError("window_layers needs sliding_window and cannot exceed layers")
        if self.moe and (self.moe.experts_per_token > self.moe.experts or self.moe.dense_layers > self.layers):
            raise ValueError("moe: more experts per token than experts, or more dense layers than layers")
        return self

    def attention_params(self) -> int:
        """Weights of one layer's attention."""
        h, hd = self.hidden_size, self.head_dim
        if self.mla:
            a = self.mla
            qk = a.qk_nope_head_dim + a.qk_rope_head_dim
            q = (h * a.q_lora_rank + a.q_lora_rank * self.attention_heads * qk) if a.q_lora_rank else 0
            q = q or h * self.attention_heads * qk
            kv = h * (a.kv_lora_rank + a.qk_rope_head_dim)
            kv += a.kv_lora_rank * self.attention_heads * (a.qk_nope_head_dim + a.v_head_dim)
            return q + kv + self.attention_heads * a.v_head_dim * h
        return h * hd * (2 * self.attention_heads + 2 * self.kv_heads)

    def expert_params(self) -> int:
        """Weights of one routed expert (0: dense)."""
        return 3 * self.hidden_size * self.moe.expert_intermediate_size if self.moe else 0

    def param_counts(self) -> dict[str, int]:
        """Parameters by kind: attention, mlp (dense and shared experts, router), experts (routed), embedding (with lm_head)."""
        h = self.hidden_size
        moe_layers = self.layers - self.moe.dense_layers if self.moe else 0
        mlp = (self.layers - moe_layers) * 3 * h * self.intermediate_size
        experts = 0
        if self.moe:
            mlp += moe_layers * (3 * h * self.moe.shared_intermediate_size + h * self.moe.experts)
            experts = moe_layers * self.moe.experts * self.expert_params()
        return {
            "attention": self.layers * self.attention_params(),
            "mlp": mlp,
            "experts": experts,
            "embedding": self.vocab_size * h * (1 if self.tie_word_embeddings else 2),
        }

    def kv_elements_per_token(self) -> int:
        """Cached numbers of one token and layer, before tensor parallelism."""
        if self.mla:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        return 2 * self.kv_heads * self.head_dim

    def kv_elements_per_gpu(self, tp: int) -> int:
        """The same on one of `tp` GPUs: KV heads are split, then copied; MLA's latent is copied."""
        if self.mla:
            return self.kv_elements_per_token()
        return 2 * max(1, self.kv_heads // tp) * self.head_dim

    def check_tp(self, tp: int) -> None:
        """Raises NotModelledError when the heads cannot be split over `tp` GPUs (the engines refuse it too)."""
        if self.attention_heads % tp or (self.kv_heads % tp and tp % self.kv_heads):
            raise NotModelledError(
                f"{self.name}: {self.attention_heads} query and {self.kv_heads} KV heads cannot be split over "
                f"tensor_parallel_size {tp}"
            )


_REFUSED = (
    "mamba", "linear_attn", "linear_attention", "ssm", "conv_kernel", "rwkv", "kda", "lightning", "gated_delta",
)  # fmt: skip


def model_from_config(path: Path) -> ModelProfile:
    """Reads a Hugging Face config.json. Raises ProfileError on a missing or wrong field, NotModelledError for layers
    that keep no KV cache of their own length (state-space, linear attention) or that differ in shape."""
    try:
        return _from_config(path, _read_json(path))
    except ValidationError as exc:
        places = [(f["msg"].removeprefix("Value error, "), ".".join(map(str, f["loc"]))) for f in exc.errors()]
        raise ProfileError([Problem(said, str(path), key=key or None) for said, key in places]) from None


def _from_config(path: Path, config: dict[str, Any]) -> ModelProfile:
    if isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    kind = str(config.get("model_type", "unknown"))
    suspicious = [
        k for k in config if any(word in k.lower() for word in _REFUSED) and config[k] not in (None, 0, False)
    ]
    layer_types = config.get("layer_types") or config.get("layers_block_type") or []
    if not isinstance(layer_types, list):
        raise ProfileError(Problem(f"expected a list, found {layer_types!r:.60}", str(path), key="layer_types"))
    odd = sorted({str(t) for t in layer_types} - {FULL_ATTENTION, WINDOW_ATTENTION, "attention"})
    if suspicious or odd or config.get("is_encoder_decoder"):
        what = ", ".join(odd or suspicious or ["encoder-decoder"])
        raise NotModelledError(f"{path}: model_type {kind} has layers that are not modelled: {what}")

    def need(*keys: str) -> int:
        for key in keys:
            value = config.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ProfileError(Problem(f"expected a positive integer, found {value!r:.60}", str(path), key=key))
                return value
        raise ProfileError(Problem(f"missing key '{keys[0]}': not the config.json of a language model?", str(path)))

    def opt(*keys: str) -> int:
        return need(*keys) if any(config.get(k) not in (None, 0) for k in keys) else 0

    layers, hidden, heads = need("num_hidden_layers", "n_layer"), need("hidden_size", "n_embd"), 0
    heads = need("num_attention_heads", "n_head")
    window = opt("sliding_window") if config.get("use_sliding_window", True) else 0
    windowed = sum(t == WINDOW_ATTENTION for t in layer_types)
    if window and not layer_types:
        windowed = layers
    mla = None
    if config.get("kv_lora_rank"):
        mla = Mla(
            q_lora_rank=opt("q_lora_rank"),
            kv_lora_rank=need("kv_lora_rank"),
            qk_nope_head_dim=need("qk_nope_head_dim"),
            qk_rope_head_dim=need("qk_rope_head_dim"),
            v_head_dim=need("v_head_dim"),
        )
    if config.get("index_topk"):
        raise NotModelledError(f"{path}: model_type {kind}: sparse attention (index_topk) is not modelled")
    experts = opt("num_local_experts", "n_routed_experts", "num_experts")
    moe = None
    if experts > 1:
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) not in (1, None):
            raise NotModelledError(f"{path}: experts on some layers only (decoder_sparse_step, mlp_only_layers)")
        width = opt("moe_intermediate_size") or need("intermediate_size")
        shared = opt("shared_expert_intermediate_size") or opt("n_shared_experts") * width
        moe = Moe(
            experts=experts,
            experts_per_token=need("num_experts_per_tok", "experts_per_token"),
            expert_intermediate_size=width,
            shared_intermediate_size=shared,
            dense_layers=opt("first_k_dense_replace"),
        )
    quant = config.get("quantization_config") or {}
    method = str(quant.get("quant_method", "")) if isinstance(quant, dict) else "unknown"
    dtype = {
        "": "bfloat16",
        "mxfp4": "mxfp4",
        "fp8": "fp8_block" if isinstance(quant, dict) and quant.get("weight_block_size") else "fp8",
    }.get(method)
    if dtype is None:
        raise NotModelledError(f"{path}: quantization method {method!r} is not modelled (bfloat16, fp8, mxfp4)")
    name = str(config.get("_name_or_path") or path.resolve().parent.name or path.stem)
    return ModelProfile(
        name=name,
        title=f"{name} ({kind})",
        source=f"{path.name} (Hugging Face), model_type {kind}",
        date="unknown",
        layers=layers,
        hidden_size=hidden,
        intermediate_size=need("intermediate_size", "n_inner", "moe_intermediate_size"),
        attention_heads=heads,
        kv_heads=opt("num_key_value_heads") or heads,
        head_dim=opt("head_dim") or max(1, hidden // heads),
        vocab_size=need("vocab_size"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        weights_dtype=dtype,  # type: ignore[arg-type]
        max_position_embeddings=opt("max_position_embeddings") or None,
        sliding_window=window or None,
        window_layers=windowed if window else 0,
        moe=moe,
        mla=mla,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path, MAX_CONFIG_BYTES).decode("utf-8-sig"))
    except OSError as exc:
        raise ProfileError(Problem(f"cannot be read: {exc.strerror or exc}", str(path))) from None
    except UnicodeDecodeError:
        raise ProfileError(Problem("not UTF-8 text", str(path))) from None
    except RecursionError:
        raise ProfileError(Problem("nested too deeply", str(path))) from None
    except json.JSONDecodeError as exc:
        raise ProfileError(Problem(f"not valid JSON: {exc.msg}", str(path), exc.lineno, exc.colno)) from None
    except ValueError as exc:  # a number of thousands of digits
        raise ProfileError(Problem(f"not valid JSON: {exc}", str(path))) from None
    if not isinstance(data, dict):
        raise ProfileError(Problem("expected a JSON object", str(path)))
    return data
