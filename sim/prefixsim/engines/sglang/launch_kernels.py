# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: when a step starts and ends, and its row of the timeline. Compiled through `prefixsim.jit`."""

from __future__ import annotations

from prefixsim.engines.sglang.state import (
    F_EVICT_NS,
    F_HOST_MARK,
    F_INSERT_NS,
    F_MATCH_NS,
    F_SPLIT_NS,
    S_ADMITTED,
    S_AVAILABLE,
    S_BATCHES,
    S_CACHED_TOKENS,
    S_EVICTABLE,
    S_EVICTED,
    S_FINISHED,
    S_GPU_FREE,
    S_HOST_COSTS,
    S_HOST_EXTRA_NS,
    S_HOST_NS,
    S_LINK,
    S_LOAD_WAIT,
    S_LOADING,
    S_LOOKUP_TOKENS,
    S_NOW,
    S_OVERLAP,
    S_PAGE,
    S_PAGES,
    S_PEAK_USED,
    S_RETRACTIONS,
    S_STALL_NS,
    S_STEP_CLOCK,
    S_TIMELINE,
    S_TIMELINE_STRIDE,
    S_W_EVICT_LEAVES,
    S_W_INSERT,
    S_W_MATCH,
    S_W_SPLIT,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
)
from prefixsim.engines.tiers.layout import T_IN_PS, T_LATENCY_PS
from prefixsim.engines.tiers.link_kernels import duration_ns, transfer_in
from prefixsim.hardware.step_kernels import C_LAYERS, step_ns
from prefixsim.jit import lean_kernel
from prefixsim.records import (
    TL_CACHED_TOKENS,
    TL_EVICTED_TOKENS,
    TL_FINISHED,
    TL_KV_USED_TOKENS,
    TL_LOOKUP_TOKENS,
    TL_PREEMPTIONS,
    TL_RUNNING,
    TL_WAITING,
)


@lean_kernel
def launch(scalars, floats, coef, gemm_us, lm_head_us, tokens, prefills, work, longest, decodes, kv_tokens, sampled):
    """Starts a step on the GPU: (start, end) in ns, host work since the last one included."""
    now = max(scalars[S_NOW], scalars[S_STALL_NS])
    if scalars[S_STEP_CLOCK] > 0:
        return now, now + scalars[S_STEP_CLOCK]
    gpu = step_ns(coef, gemm_us, lm_head_us, tokens, prefills, work, longest, decodes, kv_tokens, sampled)
    host = 0
    if scalars[S_HOST_COSTS] == 1:
        total = (
            scalars[S_W_MATCH] * floats[F_MATCH_NS]
            + scalars[S_W_INSERT] * floats[F_INSERT_NS]
            + scalars[S_W_SPLIT] * floats[F_SPLIT_NS]
            + scalars[S_W_EVICT_LEAVES] * floats[F_EVICT_NS]
        )
        host = int(total) - int(floats[F_HOST_MARK])
        floats[F_HOST_MARK] = total
        scalars[S_HOST_NS] += host
    if scalars[S_OVERLAP] == 1:
        start = max(now, scalars[S_GPU_FREE])
        scalars[S_HOST_EXTRA_NS] += max(0, host - gpu)
        end = start + max(gpu, host)
    else:
        start = now + host
        scalars[S_HOST_EXTRA_NS] += host
        end = start + gpu
    scalars[S_GPU_FREE] = end
    return start, end


@lean_kernel
def load_with_step(scalars, coef, start, end):
    """A step that needs KV from host memory: each layer is computed when its share has been loaded. Layers are alike, so
    either the load's first share and all computing, or the whole load and the last layer's computing ends last."""
    pages = scalars[S_LOADING]
    scalars[S_LOADING] = 0
    link = scalars[S_LINK:]
    took = duration_ns(pages, link[T_IN_PS], link[T_LATENCY_PS])
    done = transfer_in(link, start, pages)
    layers = max(1, int(coef[C_LAYERS]))
    gpu = end - start
    later = max(end, done - took + took // layers + gpu, done + gpu // layers)
    scalars[S_LOAD_WAIT] += later - end
    scalars[S_GPU_FREE] = later
    return later


@lean_kernel
def note_step(scalars, timeline, row):
    """Timeline row of a step, every stride-th."""
    used = (scalars[S_PAGES] - scalars[S_AVAILABLE] - scalars[S_EVICTABLE]) * scalars[S_PAGE]
    scalars[S_PEAK_USED] = max(scalars[S_PEAK_USED], used)
    if scalars[S_BATCHES] % scalars[S_TIMELINE_STRIDE] == 0:
        at = scalars[S_TIMELINE]
        row[TL_RUNNING] = scalars[S_ADMITTED]
        row[TL_WAITING] = scalars[S_WAIT_TAIL] - scalars[S_WAIT_HEAD]
        row[TL_KV_USED_TOKENS] = used
        row[TL_EVICTED_TOKENS] = scalars[S_EVICTED] * scalars[S_PAGE]
        row[TL_PREEMPTIONS] = scalars[S_RETRACTIONS]
        row[TL_LOOKUP_TOKENS] = scalars[S_LOOKUP_TOKENS]
        row[TL_CACHED_TOKENS] = scalars[S_CACHED_TOKENS]
        row[TL_FINISHED] = scalars[S_FINISHED]
        for c in range(row.shape[0]):
            timeline[at, c] = row[c]
        scalars[S_TIMELINE] = at + 1
    scalars[S_BATCHES] += 1
