"""`calibrate --fit FOLDER`: the numbers of a GPU profile from operator tables, each section with its held-out error.

A quarter of the shapes (whole shapes, chosen by a hash of their sizes) is never seen by a fit; `mape_pct` and `p90_pct`
in the profile are the errors on those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.errors import InputError, Problem, nearest
from prefixsim.hardware import profiles as pr
from prefixsim.hardware.calibrate.cached import cache_bytes, may_be_cached
from prefixsim.hardware.calibrate.tables import Table, read_table
from prefixsim.hardware.calibrate.write import number
from prefixsim.hardware.fitting import F64, Errors, Fit, fit_log, held_out
from prefixsim.hardware.gemm import Chip, GemmNumbers, dtype_bytes, gemm_us
from prefixsim.hardware.step_kernels import HALF_BLOCK, TILE_ROWS

HEAD_DIM = 128
MIB = float(1 << 20)
GEMM_START = [4.0, 0.7, 0.8, 2.5, 100.0, 0.2, 0.8, 0.85, 0.95, *([0.0] * 6), 100.0]
GEMM_BOUNDS = [
    (0.0, 120.0), (0.02, 1.0), (0.02, 1.0), (0.5, 8.0), (0.0, 4000.0), (0.0, 1.0),
    (0.1, 1.0), (0.1, 1.0), (0.1, 1.0), *([(-0.5, 0.5)] * 6), (0.0, 20_000.0),
]  # fmt: skip
BACKEND = "vllm"
"""Whose attention kernels are fitted."""


@dataclass(frozen=True, slots=True)
class Section:
    """One fitted part: the profile's model, rows fitted, errors on rows held out, and where the rows came from."""

    model: Any
    rows: int
    errors: Errors
    source: str


@dataclass(slots=True)
class FitReport:
    """All sections of one GPU by profile key, and what was skipped with the reason."""

    sections: dict[str, Section] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def fit_folder(
    folder: Path,
    table_gpu: str,
    base: pr.GpuProfile,
    *,
    date: str,
    tables_from: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> tuple[pr.GpuProfile, FitReport]:
    """Fits everything the tables hold for one GPU; the rest stays as in `base`. Raises InputError when they hold nothing."""
    if not folder.is_dir():
        raise InputError(Problem("no such folder of operator tables", file=str(folder)))
    report = FitReport()
    known: set[str] = set()
    for name, job in _JOBS.items():
        table = read_table(folder, name)
        if table is None:
            report.skipped[name] = "no such table"
            continue
        known |= {str(g) for g in np.unique(table.text["gpu"])}
        mine = table.where(gpu=table_gpu)
        mine = Table(mine.name, mine.path, mine.text, mine.number, tables_from)
        if len(mine) == 0:
            report.skipped[name] = f"no rows of {table_gpu}"
            continue
        for key, section in job(mine, base, date).items():
            report.sections[key] = section
            note(f"{key}: {section.rows} rows, held out: {section.errors}")
    if not report.sections:
        raise InputError(
            Problem(f"no rows of GPU {table_gpu!r} in any table{nearest(table_gpu, known)}", file=str(folder))
        )
    return base.model_copy(update={k: s.model for k, s in report.sections.items()}), report


def fit_gemm(table: Table, base: pr.GpuProfile, date: str) -> dict[str, Section]:
    """gemm_bf16, gemm_fp8, gemm_fp8_block, each where there are rows and the GPU has the units."""
    out = {}
    for dtype, key in (("bfloat16", "gemm_bf16"), ("fp8", "gemm_fp8"), ("fp8_block", "gemm_fp8_block")):
        part = table.where(gemm_dtype=dtype)
        peak = base.device.peak_dense_bf16_tflops if dtype == "bfloat16" else base.device.peak_dense_fp8_tflops
        m, n, k = (part.number[c] for c in ("m", "n", "k"))
        part = part.where((n >= 512) & (k >= 512) & (n * k <= 1 << 29) & (m >= 1) & (m <= 16384))
        if dtype != "bfloat16":
            # CUTLASS FP8 kernels take up to twice as long where m is no multiple of 16; full chunks and padded decode
            # batches are multiples.
            part = part.where((part.number["m"] % 16 == 0) | (part.number["m"] <= 16))
        if len(part) < 200 or peak is None:
            continue
        chip = Chip(peak.value * 1e12, base.device.mem_bandwidth_gb_per_s.value * 1e9, base.device.sm_count.value)
        fit, rows, errors = gemm_rows(part.where(~cached_gemms(part, chip, dtype)), chip, dtype)
        out[key] = Section(gemm_section(fit, rows, errors, _source(part), date), rows, errors, _source(part))
    return out


def cached_gemms(part: Table, chip: Chip, dtype: str) -> Any:
    """(N,) rows whose weights may have come from the GPU's cache."""
    m, n, k, t = (part.number[c] for c in ("m", "n", "k", "latency_us"))
    size = n * k * dtype_bytes(dtype)[0]
    return may_be_cached(size, 2e6 * m * n * k / chip.flops, cache_bytes(size, t, chip), chip)


def cached_decodes(b: F64, kv: F64, nkv: F64, t: F64, chip: Chip) -> Any:
    """(N,) rows of decode attention whose KV may have come from the GPU's cache."""
    size = b * kv * nkv * 4.0 * HEAD_DIM
    return may_be_cached(size, np.zeros_like(size), cache_bytes(size, t, chip), chip)


def gemm_rows(
    part: Table,
    chip: Chip,
    dtype: str,
    *,
    start: Sequence[float] = GEMM_START,
    bounds: Sequence[tuple[float, float]] = GEMM_BOUNDS,
) -> tuple[Fit, int, Errors]:
    """Fits the GEMM formula to rows (m, n, k, latency_us); returns the fit, rows fitted and held-out errors."""
    m, n, k, t = (part.number[c] for c in ("m", "n", "k", "latency_us"))
    out = held_out([f"{a:.0f}x{b:.0f}" for a, b in zip(n, k, strict=True)])
    weight, act = dtype_bytes(dtype)

    def model(v: F64, rows: Any) -> F64:
        return gemm_us(GemmNumbers.from_vector(v), chip, m[rows], n[rows], k[rows], weight_bytes=weight, act_bytes=act)

    fit = fit_log(lambda v: model(v, ~out), t[~out], start, bounds)
    return fit, int((~out).sum()), Errors.of(model(fit.params, out), t[out])


def gemm_section(fit: Fit, rows: int, errors: Errors, source: str, date: str, kind: str = "fitted") -> pr.Gemm:
    """A fit as the profile's section."""
    v = fit.params
    make = _maker(kind, source, date, rows, errors)
    by = {f"m{m}_factor": make(float(np.exp(x))) for m, x in zip((1, 32, 128, 1024, 4096, 16384), v[9:15], strict=True)}
    return pr.Gemm(
        launch_us=make(v[0]),
        eff_flops_ratio=make(v[1]),
        eff_bw_ratio=make(v[2]),
        p_exponent=make(v[3]),
        k_ramp_elements=make(v[4]),
        n_ramp_elements=make(v[15]),
        wave_share=make(v[5]),
        tile_64x64_ratio=make(v[6]),
        tile_64x128_ratio=make(v[7]),
        tile_128x128_ratio=make(v[8]),
        by_tokens=pr.GemmByTokens(**by),
    )


def prefill_us(v: F64, chip: Chip, b: F64, q: F64, past: F64, nq: F64, nkv: F64) -> F64:
    """Prefill attention of b equal requests; v: t0, tile, eff, longest share. Same formula as `step_kernels`."""
    unit = 4.0 * HEAD_DIM * TILE_ROWS / (chip.flops * v[2] / chip.sms) * 1e6
    tiles = np.ceil(q * (nq / nkv) / TILE_ROWS) * nkv * b
    work = tiles * (v[1] + unit * (past + q / 2 + HALF_BLOCK))
    return v[0] + work / chip.sms + v[3] * (v[1] + unit * (past + q))


def decode_us(v: F64, chip: Chip, b: F64, kv: F64, nkv: F64) -> F64:
    """Decode attention of b requests of kv tokens; v: t0, cta, eff, ramp. Same formula as `step_kernels`."""
    heads = b * nkv
    reading = heads * kv * 4.0 * HEAD_DIM / (chip.bandwidth * v[2]) * 1e6 * (1 + v[3] / heads)
    return v[0] + np.hypot(v[1] * heads / chip.sms, reading)


PREFILL_START, PREFILL_BOUNDS = [8.0, 3.0, 0.6, 0.4], [(0.0, 100.0), (0.0, 60.0), (0.02, 1.0), (0.0, 2.0)]
DECODE_START, DECODE_BOUNDS = [8.0, 2.0, 0.8, 1.0], [(0.0, 100.0), (0.0, 60.0), (0.02, 1.0), (0.0, 60.0)]


def fit_prefill(table: Table, base: pr.GpuProfile, date: str) -> dict[str, Section]:
    """prefill_attention from rows without past KV, 3 to 16 query heads a KV head."""
    part = _kernel(table.where(backend=BACKEND), "prefill")
    b, q, nq, nkv, t = (part.number[c] for c in ("batch_size", "isl", "num_heads", "num_key_value_heads", "latency_us"))
    keep = (nkv <= 8) & (nq >= 3 * nkv) & (nq <= 16 * nkv) & (q >= 16) & (b * q <= 65536)
    if keep.sum() < 50:
        return {}
    b, q, nq, nkv, t = (x[keep] for x in (b, q, nq, nkv, t))
    out = held_out([f"{x:.0f}/{y:.0f}" for x, y in zip(nq, nkv, strict=True)])
    chip, zero = bf16_chip(base), np.zeros_like(q)

    def model(v: F64, rows: Any) -> F64:
        return prefill_us(v, chip, b[rows], q[rows], zero[rows], nq[rows], nkv[rows])

    fit = fit_log(lambda v: model(v, ~out), t[~out], PREFILL_START, PREFILL_BOUNDS)
    errors = Errors.of(model(fit.params, out), t[out])
    rows, source = int((~out).sum()), _source(part)
    return {"prefill_attention": Section(prefill_section(fit.params, rows, errors, source, date), rows, errors, source)}


def prefill_section(
    v: F64, rows: int, errors: Errors, source: str, date: str, kind: str = "fitted"
) -> pr.PrefillAttention:
    """A fit as the profile's section."""
    make = _maker(kind, source, date, rows, errors)
    return pr.PrefillAttention(
        t0_us=make(v[0]), tile_us=make(v[1]), eff_flops_ratio=make(v[2]), longest_share=make(v[3])
    )


def fit_decode(table: Table, base: pr.GpuProfile, date: str) -> dict[str, Section]:
    """decode_attention; the tables' `step` is the KV length less the new token."""
    part = _kernel(table.where(backend=BACKEND), "decode")
    b, nq, nkv, step, t = (
        part.number[c] for c in ("batch_size", "num_heads", "num_key_value_heads", "step", "latency_us")
    )
    kv = step + 1
    keep = (nkv < nq) & (nkv <= 8) & (nq <= 16 * nkv) & (b <= 1024) & (b * kv <= 1 << 22) & (kv >= 16)
    if keep.sum() < 50:
        return {}
    chip = bf16_chip(base)
    b, kv, nq, nkv, t = (x[keep] for x in (b, kv, nq, nkv, t))
    read = ~cached_decodes(b, kv, nkv, t, chip)
    b, kv, nq, nkv, t = (x[read] for x in (b, kv, nq, nkv, t))
    out = held_out([f"{x:.0f}/{y:.0f}" for x, y in zip(nq, nkv, strict=True)])

    def model(v: F64, rows: Any) -> F64:
        return decode_us(v, chip, b[rows], kv[rows], nkv[rows])

    fit = fit_log(lambda v: model(v, ~out), t[~out], DECODE_START, DECODE_BOUNDS)
    errors = Errors.of(model(fit.params, out), t[out])
    rows, source = int((~out).sum()), _source(part)
    return {"decode_attention": Section(decode_section(fit.params, rows, errors, source, date), rows, errors, source)}


def decode_section(
    v: F64, rows: int, errors: Errors, source: str, date: str, kind: str = "fitted"
) -> pr.DecodeAttention:
    """A fit as the profile's section."""
    make = _maker(kind, source, date, rows, errors)
    return pr.DecodeAttention(t0_us=make(v[0]), cta_us=make(v[1]), eff_bw_ratio=make(v[2]), ramp_heads=make(v[3]))


def fit_allreduce(table: Table, base: pr.GpuProfile, date: str) -> dict[str, Section]:
    """allreduce for 2, 4, 8 GPUs: the newest version's CUDA-graph rows (what a serving engine replays)."""
    part = table.where(impl="vllm_graph")
    if len(part) == 0:
        part = table
    versions = np.unique(part.text["ver"])
    newest = max(versions, key=lambda v: [int(x) if x.isdigit() else 0 for x in str(v).split(".")])
    part = part.where(ver=str(newest))
    source = _source(part)
    sizes, made = {}, []
    predicted, observed = [], []
    for g in (2, 4, 8):
        mine = part.where(part.number["num_gpus"] == g)
        if len(mine) < 8:
            continue
        mib, t = mine.number["message_size"] / MIB, mine.number["latency_us"]
        out = held_out([f"{g}:{x:.6f}" for x in mib])
        seen = mib[~out]

        def model(v: F64, x: F64 = seen) -> F64:
            return _two_lines(v, x)

        fit = fit_log(model, t[~out], [5, 20, 15, 9], [(0, 200), (0, 1e4), (0, 1e3), (0, 1e4)], scale=0.05)
        predicted.append(_two_lines(fit.params, mib[out]))
        observed.append(t[out])
        sizes[g] = fit.params
        made.append(int((~out).sum()))
    if not sizes:
        return {}
    errors = Errors.of(np.concatenate(predicted), np.concatenate(observed))
    make = _maker("fitted", source, date, sum(made), errors)
    names = ("small_us", "small_us_per_mib", "large_us", "large_us_per_mib")
    section = pr.AllReduce(
        **{
            f"gpus{g}": pr.AllReduceSize(**{a: make(x) for a, x in zip(names, v, strict=True)})
            for g, v in sizes.items()
        }
    )
    return {"allreduce": Section(section, sum(made), errors, source)}


def _two_lines(v: F64, mib: F64) -> F64:
    return np.minimum(v[0] + v[1] * mib, v[2] + v[3] * mib)


def fit_past_kv(table: Table, base: pr.GpuProfile, date: str) -> dict[str, Section]:
    """prefill, decode and the mixed-batch penalty together, from batches of one chunk with past KV and some decodes."""
    c = table.number
    keep = (c["prefill_chunk"] + c["n_decode"] > 0) & (c["n_q_heads"] >= 3 * c["n_kv_heads"])
    keep &= (c["n_kv_heads"] == 8) & ((c["kv_decode"] > 0) | (c["n_decode"] == 0))
    part = table.where(keep)
    if len(part) < 200:
        return {}
    q, past, b, kv, nq, nkv, t = (
        part.number[x]
        for x in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "n_q_heads", "n_kv_heads", "time_us")
    )
    out = held_out([f"{x:.0f}/{y:.0f}/{z:.0f}" for x, y, z in zip(q, past, kv, strict=True)])
    chip = bf16_chip(base)

    def model(v: F64, rows: Any) -> F64:
        has_q, has_b = q[rows] > 0, b[rows] > 0
        pre = prefill_us(v[:4], chip, np.ones_like(q[rows]), q[rows], past[rows], nq[rows], nkv[rows])
        dec = decode_us(v[4:8], chip, np.maximum(b[rows], 1), kv[rows], nkv[rows])
        both = pre + (dec - v[4]) * v[8]
        return np.where(has_q & has_b, both, np.where(has_q, pre, dec))

    start, bounds = [*PREFILL_START, *DECODE_START, 1.0], [*PREFILL_BOUNDS, *DECODE_BOUNDS, (0.3, 4.0)]
    fit = fit_log(lambda v: model(v, ~out), t[~out], start, bounds)
    p, rows, source = (
        fit.params,
        int((~out).sum()),
        _source(part),
    )
    predicted = model(p, out)
    found = Errors.of(predicted, t[out])

    def of(mask: Any) -> Errors:
        return Errors.of(predicted[mask[out]], t[out][mask[out]]) if mask[out].any() else found

    pre, dec, mixed = of((q > 0) & (b == 0)), of((q == 0) & (b > 0)), of((q > 0) & (b > 0))
    penalty = _maker("fitted", source, date, rows, mixed)(p[8])
    return {
        "prefill_attention": Section(prefill_section(p[:4], rows, pre, source, date), rows, pre, source),
        "decode_attention": Section(decode_section(p[4:8], rows, dec, source, date), rows, dec, source),
        "mixed_decode_penalty_ratio": Section(penalty, rows, mixed, source),
    }


def _maker(kind: str, source: str, date: str, rows: int, errors: Errors) -> Callable[[float], pr.Number]:
    return lambda value: number(float(value), kind, source, date, n=rows, errors=(errors.mape_pct, errors.p90_pct))


def bf16_chip(base: pr.GpuProfile) -> Chip:
    d = base.device
    return Chip(d.peak_dense_bf16_tflops.value * 1e12, d.mem_bandwidth_gb_per_s.value * 1e9, d.sm_count.value)


def _kernel(table: Table, what: str) -> Table:
    """The kernel most rows were measured with (a table may mix versions of one engine)."""
    names, counts = np.unique(table.text["kernel_source"], return_counts=True)
    if len(names) <= 1:
        return table
    preferred = [n for n in names if what in str(n)]
    return table.where(kernel_source=str(preferred[0] if preferred else names[np.argmax(counts)]))


def _source(table: Table) -> str:
    """ "gemm.csv.gz: vllm, torch.nn.functional.linear"."""
    parts = [
        ", ".join(str(x) for x in np.unique(table.text[c]))
        for c in ("backend", "kernel_source", "impl", "model")
        if c in table.text
    ]
    return f"{table.origin + ', ' if table.origin else ''}{table.path.name}: {'; '.join(parts)}"


_JOBS: dict[str, Callable[[Table, pr.GpuProfile, str], dict[str, Section]]] = {
    "gemm": fit_gemm,
    "prefill_attention": fit_prefill,
    "decode_attention": fit_decode,
    "allreduce": fit_allreduce,
    "past_kv_attention": fit_past_kv,
}
