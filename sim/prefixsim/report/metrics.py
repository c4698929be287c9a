"""The engines' own metrics: which of them a run's tables give, under which names, with which histogram bounds.

Names and bounds are those of vLLM 0.33.0 (vllm/v1/metrics) and SGLang 0.5.23 (sglang/srt/observability), so that a board made
for them shows a simulation. This file is data: what is counted when, and from which columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from prefixsim.report.tables import F64


@dataclass(frozen=True, slots=True)
class Finished:
    """Finished requests, a column each, float64 (n,); times in seconds of the run, a count that is not known NaN."""

    released_s: F64
    admitted_s: F64
    first_token_s: F64
    finish_s: F64
    lookup_tokens: F64
    cached_tokens: F64
    cached_host_tokens: F64
    output_tokens: F64
    preemptions: F64

    @property
    def mean_gap_s(self) -> F64:
        """Seconds between output tokens, on average over the request; NaN where there is one token."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                self.output_tokens > 1, (self.finish_s - self.first_token_s) / (self.output_tokens - 1), np.nan
            )


COLUMNS = tuple(f.name for f in fields(Finished))
OPTIONAL = ("cached_host_tokens", "output_tokens")

Value = Callable[[Finished], F64]


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram metric: value of each request, counted (`weight` times) when the column `at` says."""

    name: str
    bounds: tuple[float, ...]
    value: Value
    at: str = "finish_s"
    weight: Value | None = None
    says: str = ""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter metric, its name without `_total`: what each request adds when the column `at` says. It stays 0 where the
    engine's own counter in the summary is 0 (nothing was looked up), and for `rare` ones also where there is none."""

    name: str
    adds: Value
    at: str
    labels: Mapping[str, str] | None = None
    rare: bool = False


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge metric: a column of the timeline, or 1 throughout where it has none."""

    name: str
    column: str = ""
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """An engine family's metrics.

    usage: name of the gauge that is a share of the pool; counts: name of a counter -> cumulative timeline column.
    generated: counter of output tokens, if it grows with each token; hit_rate, throughput: gauges computed from the
    requests.
    """

    prefix: str
    labels: Mapping[str, str]
    gauges: tuple[Gauge, ...]
    usage: str
    counts: Mapping[str, str]
    counters: tuple[Counter, ...]
    histograms: tuple[Histogram, ...]
    generated: str | None = None
    hit_rate: str | None = None
    throughput: str | None = None


def _span(start: str, end: str) -> Value:
    return lambda r: getattr(r, end) - getattr(r, start)


def _ones(r: Finished) -> F64:
    return np.ones(len(r.finish_s))


def _computed(r: Finished) -> F64:
    return r.lookup_tokens - r.cached_tokens


def _on_device(r: Finished) -> F64:
    return r.cached_tokens - np.nan_to_num(r.cached_host_tokens)


def _not_on_device(r: Finished) -> F64:
    return r.lookup_tokens - _on_device(r)


def _on_host(r: Finished) -> F64:
    return np.nan_to_num(r.cached_host_tokens)


_TTFT, _E2E, _QUEUE = (
    _span("released_s", "first_token_s"),
    _span("released_s", "finish_s"),
    _span("released_s", "admitted_s"),
)
_GAPS = "a request's mean gap, as often as it has gaps, when it finishes"


def _itl(name: str, bounds: tuple[float, ...]) -> Histogram:
    return Histogram(name, bounds, lambda r: r.mean_gap_s, weight=lambda r: r.output_tokens - 1, says=_GAPS)


_VLLM_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_VLLM_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_VLLM_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_VLLM_TOKENS = tuple(float(m * 10**e) for e in range(7) for m in (1, 2, 5))[:-2]
_SGLANG_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_SGLANG_GAP = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06),
    *(0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_SGLANG_QUEUE = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200),
    *(300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
_SGLANG_TOKENS = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10_000, 12_500, 15_000, 17_500),
    *(20_000, 22_500, 25_000, 27_500, 30_000, 35_000, 40_000, 60_000, 80_000, 100_000, 200_000, 300_000, 400_000),
    *(600_000, 800_000, 1_000_000, 1_100_000),
)

VLLM = Family(
    prefix="vllm",
    labels={"engine": "0"},
    gauges=(
        Gauge("num_requests_running", "running"),
        Gauge("num_requests_waiting", "waiting"),
        Gauge("num_requests_waiting_by_reason", "waiting", {"reason": "capacity"}),
        Gauge("engine_sleep_state", labels={"sleep_state": "awake"}),
    ),
    usage="kv_cache_usage_perc",
    counts={"num_preemptions": "preemptions"},
    counters=(
        Counter("prefix_cache_queries", lambda r: r.lookup_tokens, "admitted_s"),
        Counter("prefix_cache_hits", _on_device, "admitted_s"),
        Counter("external_prefix_cache_queries", _not_on_device, "admitted_s", rare=True),
        Counter("external_prefix_cache_hits", _on_host, "admitted_s", rare=True),
        Counter("prompt_tokens", lambda r: r.lookup_tokens, "first_token_s"),
        Counter("prompt_tokens_cached", lambda r: r.cached_tokens, "first_token_s"),
        Counter("prompt_tokens_by_source", _computed, "first_token_s", {"source": "local_compute"}),
        Counter("prompt_tokens_by_source", _on_device, "first_token_s", {"source": "local_cache_hit"}),
        Counter("prompt_tokens_by_source", _on_host, "first_token_s", {"source": "external_kv_transfer"}),
        Counter("prompt_tokens_cached_by_source", _on_device, "admitted_s", {"source": "device"}),
        Counter("prompt_tokens_cached_by_source", _on_host, "admitted_s", {"source": "host"}),
        Counter("request_success", _ones, "finish_s"),
    ),
    histograms=(
        Histogram("time_to_first_token_seconds", _VLLM_TTFT, _TTFT, at="first_token_s"),
        _itl("inter_token_latency_seconds", _VLLM_GAP),
        Histogram("request_time_per_output_token_seconds", _VLLM_GAP, lambda r: np.nan_to_num(r.mean_gap_s)),
        Histogram("e2e_request_latency_seconds", _VLLM_LATENCY, _E2E),
        Histogram("request_queue_time_seconds", _VLLM_LATENCY, _QUEUE),
        Histogram("request_prefill_time_seconds", _VLLM_LATENCY, _span("admitted_s", "first_token_s")),
        Histogram("request_decode_time_seconds", _VLLM_LATENCY, _span("first_token_s", "finish_s")),
        Histogram("request_inference_time_seconds", _VLLM_LATENCY, _span("admitted_s", "finish_s")),
        Histogram("request_prompt_tokens", _VLLM_TOKENS, lambda r: r.lookup_tokens),
        Histogram("request_generation_tokens", _VLLM_TOKENS, lambda r: r.output_tokens),
        Histogram("request_max_num_generation_tokens", _VLLM_TOKENS, lambda r: r.output_tokens),
        Histogram("request_prefill_kv_computed_tokens", _VLLM_TOKENS, _computed),
        Histogram("request_params_n", (1, 2, 5, 10, 20), _ones),
        Histogram("request_num_preemptions", (1, 2, 3, 4, 5, 10, 20), lambda r: r.preemptions),
    ),
    generated="generation_tokens",
)
SGLANG = Family(
    prefix="sglang",
    labels={"engine_type": "unified"},
    gauges=(
        Gauge("num_running_reqs", "running"),
        Gauge("num_queue_reqs", "waiting"),
        Gauge("num_used_tokens", "kv_used_tokens"),
        Gauge("kv_used_tokens", "kv_used_tokens"),
    ),
    usage="token_usage",
    counts={"num_retracted_requests": "preemptions", "evicted_tokens": "evicted_tokens"},
    counters=(
        Counter("prompt_tokens", lambda r: r.lookup_tokens, "finish_s"),
        Counter("generation_tokens", lambda r: r.output_tokens, "finish_s"),
        Counter("cached_tokens", _on_device, "finish_s", {"cache_source": "device"}),
        Counter("cached_tokens", _on_host, "finish_s", {"cache_source": "host"}),
        Counter("num_requests", _ones, "finish_s"),
    ),
    histograms=(
        Histogram("time_to_first_token_seconds", _SGLANG_TTFT, _TTFT, at="first_token_s"),
        _itl("inter_token_latency_seconds", _SGLANG_GAP),
        Histogram("request_time_per_output_token_seconds", _SGLANG_GAP, lambda r: r.mean_gap_s),
        Histogram("e2e_request_latency_seconds", (*_SGLANG_TTFT, 600, 1200, 1800, 2400), _E2E),
        Histogram("queue_time_seconds", _SGLANG_QUEUE, _QUEUE, at="admitted_s"),
        Histogram("prompt_tokens_histogram", _SGLANG_TOKENS, lambda r: r.lookup_tokens),
        Histogram("uncached_prompt_tokens_histogram", _SGLANG_TOKENS, _computed),
        Histogram("generation_tokens_histogram", _SGLANG_TOKENS, lambda r: r.output_tokens),
    ),
    hit_rate="cache_hit_rate",
    throughput="gen_throughput",
)
FAMILIES = {family.prefix: family for family in (VLLM, SGLANG)}


def family_of(engine: Mapping[str, Any]) -> Family | None:
    """The engine's family, by its kind ("vllm@0.33")."""
    return FAMILIES.get(str(engine.get("kind") or "").partition("@")[0])
