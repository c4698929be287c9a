"""The operators that `calibrate` times, in torch: the same code on CUDA and on the CPU (a smaller grid there).

Every operator gets a ring of input copies larger than four times the last-level cache, filled with random numbers, so that
weights come from memory as in serving. On CUDA the ring is captured in one graph and timed by events around its replay;
on the CPU by the CPU time of one thread. Clocks are read, never set. Nothing but this folder imports torch.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Row = dict[str, Any]
HEAD_DIM = 128
GPU_SHAPES = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168),
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168),
    (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584),
)  # fmt: skip
"""(n, k) of Llama 3 8B and 70B at TP 1 to 8."""
GPU_M = (1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192, 16384)
CPU_SHAPES = (
    (512, 512), (1024, 512), (512, 1024), (1024, 1024), (2048, 512), (512, 2048), (2048, 1024), (1024, 2048),
    (1536, 1024), (1024, 1536), (2048, 2048), (1536, 512),
)  # fmt: skip
CPU_M = (1, 8, 32, 128, 256, 512)


class Timer:
    """Times a ring of calls; returns (median, p10, p90) in µs of one call."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.device = device
        self.cuda = device == "cuda"
        if not self.cuda:
            torch.set_num_threads(
                1
            )  # threads of one call wait for each other: on a shared machine that is what one would time
        self.repeats = 9 if self.cuda else 21
        self.ring_bytes = 4 * self._cache_bytes()

    def _cache_bytes(self) -> int:
        if self.cuda:
            found = getattr(self.torch.cuda.get_device_properties(0), "L2_cache_size", 0)
            return int(found or 64 << 20)
        return 16 << 20

    def copies(self, size_bytes: int) -> int:
        """Copies of inputs of this size that fill the ring (at least 1, at most 64)."""
        return max(1, min(64 if self.cuda else 16, math.ceil(self.ring_bytes / max(1, size_bytes))))

    def __call__(self, calls: list[Callable[[], Any]]) -> tuple[float, float, float]:
        return self._on_cuda(calls) if self.cuda else self._on_cpu(calls)

    def _on_cuda(self, calls: list[Callable[[], Any]]) -> tuple[float, float, float]:
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for call in calls[:3]:
                call()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        cuda.synchronize()
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        cuda.synchronize()
        one_ms = max(1e-3, start.elapsed_time(end))
        loops = max(1, min(50, int(2.0 / one_ms)))
        times = []
        for _ in range(self.repeats):
            start.record()
            for _ in range(loops):
                graph.replay()
            end.record()
            cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / loops / len(calls))
        return _quantiles(times)

    def _on_cpu(self, calls: list[Callable[[], Any]]) -> tuple[float, float, float]:
        """One thread's own CPU time, so that other processes on a shared machine are not measured with it."""
        for call in calls[:2]:
            call()
        begun = time.thread_time()
        calls[-1]()
        one = max(1e-6, time.thread_time() - begun)
        loops = max(1, min(100, int(3e-4 / one)))
        times, at = [], 0
        for _ in range(self.repeats):
            begun = time.thread_time()
            for _ in range(loops):
                calls[at % len(calls)]()
                at += 1
            times.append((time.thread_time() - begun) * 1e6 / loops)
        return _quantiles(times)


def _quantiles(times: list[float]) -> tuple[float, float, float]:
    low, mid, high = np.quantile(times, [0.1, 0.5, 0.9])
    return float(mid), float(low), float(high)


def _row(section: str, found: tuple[float, float, float], **sizes: Any) -> Row:
    return {"section": section, **sizes, "latency_us": found[0], "p10_us": found[1], "p90_us": found[2]}


def launch(t: Timer) -> Iterator[Row]:
    """An operator that does nothing much: the floor under every kernel."""
    x = t.torch.zeros(1, device=t.device)
    yield _row("launch", t([lambda: x.add_(1.0)] * 64))


def gemm(t: Timer) -> Iterator[Row]:
    """x (m, k) times w (n, k) transposed, bfloat16, one m after another over all shapes."""
    torch = t.torch
    shapes, sizes = (GPU_SHAPES, GPU_M) if t.cuda else (CPU_SHAPES, CPU_M)
    for n, k in spread(shapes):
        count = t.copies(2 * n * k)
        weights = [torch.randn(n, k, device=t.device, dtype=torch.bfloat16) for _ in range(count)]
        for m in sizes:
            x = torch.randn(m, k, device=t.device, dtype=torch.bfloat16)
            found = t([functools.partial(torch.nn.functional.linear, x, w) for w in weights])
            yield _row("gemm", found, m=m, n=n, k=k, gemm_dtype="bfloat16", kernel_source="torch.nn.functional.linear")


def gemm_fp8(t: Timer) -> Iterator[Row]:
    """The same in FP8 with per-tensor scales (`torch._scaled_mm`); CUDA with FP8 units only."""
    torch = t.torch
    if not t.cuda or torch.cuda.get_device_capability() < (8, 9):
        return
    one = torch.ones((), device=t.device)
    for n, k in spread(GPU_SHAPES):
        count = t.copies(n * k)
        weights = [torch.randn(n, k, device=t.device).to(torch.float8_e4m3fn).t() for _ in range(count)]
        for m in GPU_M[2:]:
            x = torch.randn(m, k, device=t.device).to(torch.float8_e4m3fn)
            scaled = functools.partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            found = t([functools.partial(scaled, x, w) for w in weights])
            yield _row("gemm", found, m=m, n=n, k=k, gemm_dtype="fp8", kernel_source="torch._scaled_mm")


def prefill(t: Timer) -> Iterator[Row]:
    """One request's chunk of q tokens after `past` cached ones: SDPA, causal lower-right, grouped query heads."""
    torch = t.torch
    heads = ((32, 8), (64, 8), (8, 1)) if t.cuda else ((8, 2),)
    grid = [(q, p) for q in (128, 512, 2048, 8192) for p in (0, 2048, 8192, 32768, 131072)]
    grid = grid if t.cuda else [(q, p) for q in (32, 128, 256) for p in (0, 128, 512)]
    for nq, nkv in heads:
        for q, past in spread(grid):
            for backend in ("flash", "cudnn") if t.cuda else ("default",):
                count = max(1, min(8, t.copies(4 * nkv * (q + past) * HEAD_DIM)))
                try:
                    calls = [_sdpa(t, 1, nq, nkv, q, past + q, backend) for _ in range(count)]
                    found = t(calls)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    continue  # this backend does not take this shape
                yield _row(
                    "prefill",
                    found,
                    batch_size=1,
                    isl=q,
                    past=past,
                    num_heads=nq,
                    num_key_value_heads=nkv,
                    kernel_source=backend,
                )


def decode(t: Timer) -> Iterator[Row]:
    """b sequences of one new token over s cached ones each (contiguous KV, SDPA), and one skewed set as two calls."""
    heads = ((32, 8), (64, 8), (8, 1)) if t.cuda else ((8, 2),)
    grid = [(b, s) for b in (1, 8, 32, 128, 256) for s in (256, 1024, 4096, 16384, 65536) if b * s <= 1 << 21]
    grid = grid if t.cuda else [(b, s) for b in (1, 4, 16) for s in (64, 256, 1024)]
    for nq, nkv in heads:
        for b, s in spread(grid):
            count = max(1, min(8, t.copies(4 * b * nkv * s * HEAD_DIM)))
            found = t([_sdpa(t, b, nq, nkv, 1, s, "default") for _ in range(count)])
            yield _row(
                "decode",
                found,
                batch_size=b,
                num_heads=nq,
                num_key_value_heads=nkv,
                step=s - 1,
                kernel_source="sdpa, contiguous KV",
            )
        long, short = (32768, 1024) if t.cuda else (1024, 64)
        one, many = _sdpa(t, 1, nq, nkv, 1, long, "default"), _sdpa(t, 15, nq, nkv, 1, short, "default")
        found = t([functools.partial(_both, one, many)])
        yield _row(
            "decode_skewed", found, batch_size=16, num_heads=nq, num_key_value_heads=nkv, longest=long, others=short
        )


def mixed(t: Timer) -> Iterator[Row]:
    """A prefill chunk and decodes one after the other: two calls, not a serving engine's joint kernel (raw only)."""
    sets = ((512, 4096, 64, 1024), (2048, 0, 128, 2048)) if t.cuda else ((64, 64, 4, 128),)
    nq, nkv = (32, 8) if t.cuda else (8, 2)
    for q, past, b, s in sets:
        pre, dec = _sdpa(t, 1, nq, nkv, q, past + q, "default"), _sdpa(t, b, nq, nkv, 1, s, "default")
        found = t([functools.partial(_both, pre, dec)])
        yield _row(
            "mixed", found, prefill_chunk=q, kv_prefill=past, n_decode=b, kv_decode=s, n_q_heads=nq, n_kv_heads=nkv
        )


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    first()
    second()


def _sdpa(t: Timer, b: int, nq: int, nkv: int, q: int, kv: int, backend: str) -> Callable[[], Any]:
    torch = t.torch
    options = {"device": t.device, "dtype": torch.bfloat16}
    query = torch.randn(b, nq, q, HEAD_DIM, **options)
    key, value = (torch.randn(b, nkv, kv, HEAD_DIM, **options) for _ in range(2))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if q == 1:
        return lambda: sdpa(query, key, value, enable_gqa=True)
    if q == kv and t.cuda:
        mask, causal = None, True
    elif t.cuda:
        from torch.nn.attention.bias import causal_lower_right

        mask, causal = causal_lower_right(q, kv), False
    else:
        mask, causal = torch.ones(q, kv, dtype=torch.bool).tril(kv - q), False
    if backend == "default":
        return lambda: sdpa(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    which = SDPBackend.FLASH_ATTENTION if backend == "flash" else SDPBackend.CUDNN_ATTENTION

    def call() -> Any:
        with sdpa_kernel(which):
            return sdpa(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=True)

    return call


def copies(t: Timer) -> Iterator[Row]:
    """Memory traffic: on the device, and (CUDA) to and from pinned host memory, whole and scattered in KV blocks."""
    torch = t.torch
    size = (512 if t.cuda else 32) << 20
    a, b = (torch.empty(size, dtype=torch.uint8, device=t.device) for _ in range(2))
    a.random_(0, 255)
    yield _row("copy", t([lambda: b.copy_(a)]), direction="device", bytes=size, block_bytes=size)
    if not t.cuda:
        return
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    for n in (1 << 20, 16 << 20, 256 << 20):
        part, mine = host[:n], a[:n]
        yield _row(
            "copy",
            t([functools.partial(mine.copy_, part, non_blocking=True)]),
            direction="host_to_device",
            bytes=n,
            block_bytes=n,
        )
        yield _row(
            "copy",
            t([functools.partial(part.copy_, mine, non_blocking=True)]),
            direction="device_to_host",
            bytes=n,
            block_bytes=n,
        )
    for block in (32 << 10, 64 << 10):  # 16 tokens of one layer, 8 KV heads: 64 KiB
        pieces = [(host[i * block * 2 : i * block * 2 + block], a[i * block : (i + 1) * block]) for i in range(256)]
        calls: list[Callable[[], Any]] = [functools.partial(d.copy_, p, non_blocking=True) for p, d in pieces]
        yield _row("copy", t(calls), direction="host_to_device", bytes=block, block_bytes=block)


def allreduce(t: Timer) -> Iterator[Row]:
    """NCCL in one process over 2, 4, 8 GPUs, timed by a wall clock around synchronised calls (no graph)."""
    torch = t.torch
    if not t.cuda or torch.cuda.device_count() < 2:
        return
    from torch.cuda import nccl

    for gpus in (2, 4, 8):
        if torch.cuda.device_count() < gpus:
            break
        for size in (1 << e for e in range(12, 29, 2)):
            data = [torch.zeros(size // 2, dtype=torch.bfloat16, device=f"cuda:{i}") for i in range(gpus)]
            times = []
            for _ in range(t.repeats + 2):
                for i in range(gpus):
                    torch.cuda.synchronize(i)
                begun = time.perf_counter()
                for _ in range(20):
                    nccl.all_reduce(data)
                for i in range(gpus):
                    torch.cuda.synchronize(i)
                times.append((time.perf_counter() - begun) * 1e6 / 20)
            yield _row("allreduce", _quantiles(times[2:]), num_gpus=gpus, message_size=size, impl="nccl, one process")


def spread(items: Any) -> list[Any]:
    """The items in an order whose every beginning covers the whole range (for sections cut short by their budget)."""
    items = list(items)
    step = next(s for s in range(max(2, len(items) // 3), len(items) + 2) if math.gcd(s, len(items)) == 1)
    return [items[i * step % len(items)] for i in range(len(items))]


SECTIONS: dict[str, tuple[float, Callable[[Timer], Iterator[Row]]]] = {
    "launch": (0.02, launch),
    "copies": (0.06, copies),
    "gemm": (0.42, gemm),
    "prefill": (0.18, prefill),
    "decode": (0.14, decode),
    "mixed": (0.04, mixed),
    "gemm_fp8": (0.10, gemm_fp8),
    "allreduce": (0.04, allreduce),
}
"""Section -> share of the budget, operator."""
