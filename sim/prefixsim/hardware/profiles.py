"""Profiles of GPUs and hosts as files hold them. Every number says its unit (in the key), its kind and its source.

A number is `{value, kind: datasheet|measured|fitted|assumed, source, date, n?, mape_pct?, p90_pct?}`. Efficiencies are
ratios above 0 and at most 1; peaks are dense FLOP/s, and one that the chip cannot reach (a figure with sparsity) is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from prefixsim.scenario.base import Strict

Kind = Literal["datasheet", "measured", "fitted", "assumed"]


class Number(Strict):
    """One number of a profile. mape_pct / p90_pct: mean and 90th percentile of |error| on held-out rows; n: rows used."""

    value: float
    kind: Kind
    source: str = Field(min_length=1)
    date: str
    n: int | None = Field(None, ge=0)
    mape_pct: float | None = Field(None, ge=0)
    p90_pct: float | None = Field(None, ge=0)

    @field_validator("date")
    @classmethod
    def _is_date(cls, text: str) -> str:
        try:
            datetime.date.fromisoformat(text if len(text) > 7 else f"{text}-01")
        except ValueError:
            raise ValueError("expected a date: YYYY-MM-DD or YYYY-MM") from None
        return text


GREATEST = 1e7
"""No number of a profile is above it, in its unit."""


def _check(number: Number, low: float, high: float, *, open_low: bool, what: str) -> Number:
    if number.value > GREATEST:
        raise ValueError(f"must be at most {GREATEST:g}, found {number.value:g}")
    if not (low < number.value if open_low else low <= number.value) or number.value > high:
        raise ValueError(f"{what}, found {number.value:g}")
    return number


Positive = Annotated[
    Number, AfterValidator(lambda n: _check(n, 0, GREATEST, open_low=True, what="must be greater than zero"))
]
NonNegative = Annotated[
    Number, AfterValidator(lambda n: _check(n, 0, GREATEST, open_low=False, what="must not be negative"))
]
Efficiency = Annotated[
    Number,
    AfterValidator(lambda n: _check(n, 0, 1, open_low=True, what="an efficiency is above 0 and at most 1")),
]
Share = Annotated[
    Number, AfterValidator(lambda n: _check(n, 0, 1, open_low=False, what="a share lies between 0 and 1"))
]

FLOP_PER_CLOCK_SM = {
    "ampere": 2048,
    "ada": 1024,
    "hopper": 4096,
    "blackwell": 8192,
    "blackwell-consumer": 1024,
    "cdna3": 2048,
    "cpu": 1 << 20,
}
"""Dense bf16 tensor FLOP per clock and SM (CU): what no dense figure can exceed by much."""


class Device(Strict):
    """What the chip is."""

    architecture: Literal["ampere", "ada", "hopper", "blackwell", "blackwell-consumer", "cdna3", "cpu"]
    memory_nominal_gib: Positive
    memory_usable_gib: Positive
    """What the driver reports as total."""
    sm_count: Positive
    boost_clock_mhz: Positive
    peak_dense_bf16_tflops: Positive
    peak_dense_fp8_tflops: Positive | None = None
    mem_bandwidth_gb_per_s: Positive
    link_bandwidth_gb_per_s: NonNegative
    """GPU to GPU, one direction; 0: no link."""
    host_link_bandwidth_gb_per_s: Positive
    """To host memory, one direction, pinned."""

    @model_validator(mode="after")
    def _dense(self) -> Device:
        limit = FLOP_PER_CLOCK_SM[self.architecture] * self.sm_count.value * self.boost_clock_mhz.value * 1e-6
        for name, factor in (("peak_dense_bf16_tflops", 1), ("peak_dense_fp8_tflops", 2)):
            number: Number | None = getattr(self, name)
            if number is not None and number.value > 1.2 * factor * limit:
                raise ValueError(
                    f"{name}: {number.value:g} TFLOP/s is more than {self.sm_count.value:g} {self.architecture} SMs "
                    f"can do at {self.boost_clock_mhz.value:g} MHz ({factor * limit:.0f}); a figure with sparsity?"
                )
        if self.memory_usable_gib.value > self.memory_nominal_gib.value:
            raise ValueError("memory_usable_gib exceeds memory_nominal_gib")
        return self


class GemmByTokens(Strict):
    """Factors on a GEMM's time by tokens m, interpolated in log m; 1 at m = 256."""

    m1_factor: Positive
    m32_factor: Positive
    m128_factor: Positive
    m1024_factor: Positive
    m4096_factor: Positive
    m16384_factor: Positive


class Gemm(Strict):
    """`launch + (compute^p + memory^p)^(1/p)`, docs/hardware.md."""

    launch_us: NonNegative
    eff_flops_ratio: Efficiency
    eff_bw_ratio: Efficiency
    p_exponent: Positive
    k_ramp_elements: NonNegative
    """Pipeline fill of a tile, in elements of k."""
    n_ramp_elements: NonNegative | None = None
    """Narrow outputs compute slower: time x (1 + n_ramp/n). Left out: 0."""
    wave_share: Share
    """Share of the compute time that is rounded up to whole waves of tiles over the SMs, 0 to 1."""
    tile_64x64_ratio: Efficiency
    """Speed of smaller tiles against 128x256."""
    tile_64x128_ratio: Efficiency
    tile_128x128_ratio: Efficiency
    by_tokens: GemmByTokens | None = None


class PrefillAttention(Strict):
    """`t0 + sum of tile work / SMs + longest_share * longest tile`."""

    t0_us: NonNegative
    tile_us: NonNegative
    eff_flops_ratio: Efficiency
    longest_share: NonNegative


class DecodeAttention(Strict):
    """`t0 + hypot(cta * heads / SMs, KV bytes / (bandwidth * eff) * (1 + ramp / heads))`, heads = sequences x KV heads."""

    t0_us: NonNegative
    cta_us: NonNegative
    eff_bw_ratio: Efficiency
    ramp_heads: NonNegative


class AllReduceSize(Strict):
    """One all-reduce over g GPUs: the lower of two lines, latency-bound and bandwidth-bound."""

    small_us: NonNegative
    small_us_per_mib: NonNegative
    large_us: NonNegative
    large_us_per_mib: NonNegative


class AllReduce(Strict):
    """By number of GPUs."""

    gpus2: AllReduceSize | None = None
    gpus4: AllReduceSize | None = None
    gpus8: AllReduceSize | None = None


class EngineOverhead(Strict):
    """What the serving engine adds to a step beyond the GPU's kernels."""

    step_us: NonNegative
    per_layer_us: NonNegative
    per_seq_us: NonNegative
    elementwise_passes: NonNegative
    """Norms, activations, copies: how often a token's hidden state (16 bits) crosses the GPU's memory in a layer."""
    kernel_time_ratio: Positive | None = None
    """Time of this engine's GEMMs and all-reduces against the profile's; left out: 1."""


class VllmMemory(Strict):
    """Memory vLLM finds taken outside PyTorch."""

    non_torch_tp1_gib: NonNegative
    non_torch_tp_gib: NonNegative


class Provenance(Strict):
    """On what the numbers were made."""

    gpu: str
    driver: str = "unknown"
    torch: str = "none"
    kernel_stack: str
    note: str = ""


class GpuProfile(Strict):
    """One GPU."""

    name: str
    title: str
    provenance: Provenance
    device: Device
    gemm_bf16: Gemm
    gemm_fp8: Gemm | None = None
    gemm_fp8_block: Gemm | None = None
    prefill_attention: PrefillAttention
    decode_attention: DecodeAttention
    mixed_decode_penalty_ratio: Positive
    allreduce: AllReduce | None = None
    engine_vllm: EngineOverhead
    engine_sglang: EngineOverhead
    engine_trtllm: EngineOverhead | None = None
    vllm_memory: VllmMemory
    price_usd_per_hour: NonNegative | None = None
    validity: str = Field(min_length=1)
    """One sentence for every report: how good the numbers are and where they stop."""


class HostProfile(Strict):
    """Costs on the scheduler's CPU."""

    name: str
    title: str
    provenance: Provenance
    hash_ns_per_token_block16: NonNegative
    hash_ns_per_token_block64: NonNegative
    hash_ns_per_token_block128: NonNegative
    match_ns_per_node: NonNegative
    insert_ns_per_node: NonNegative
    split_ns_per_node: NonNegative
    evict_ns_per_node: NonNegative
    tree_node_bytes: NonNegative


def numbers(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Number]]:
    """(dotted key, number) of every number in a profile, in file order."""
    for name in type(model).model_fields:
        value: Any = getattr(model, name)
        if isinstance(value, Number):
            yield prefix + name, value
        elif isinstance(value, BaseModel):
            yield from numbers(value, f"{prefix}{name}.")
