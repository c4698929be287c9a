"""Whole steps put together from operator tables, and the error of the step-time formula on them.

A layer is four GEMMs (qkv, o, gate_up, down), attention and, from TP 2, two all-reduces, each a row of the tables; the
models are all that the tables' shapes allow (hidden sizes, heads and MLP widths of no model in particular). `held_out`
steps have at least half of their GEMM shapes among those the fit never saw. Steps with a row that may have been read from
the GPU's cache say nothing of serving and are left out (`cached.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from prefixsim.hardware import profiles as pr
from prefixsim.hardware.calibrate.fit import bf16_chip, cached_decodes, cached_gemms, decode_us, prefill_us
from prefixsim.hardware.calibrate.tables import Table, read_table
from prefixsim.hardware.costs import allreduce_us
from prefixsim.hardware.fitting import F64, Errors, held_out
from prefixsim.hardware.gemm import Chip, GemmNumbers, dtype_bytes, gemm_us

HEADS = (
    (40, 8),
    (48, 8),
    (24, 8),
    (20, 4),
    (24, 4),
    (12, 4),
    (40, 4),
    (48, 4),
    (12, 2),
    (10, 2),
    (24, 2),
    (6, 1),
    (5, 1),
)
HIDDEN = (2048, 2560, 3072, 3584, 5120, 6144, 7168, 8192, 10240)
WIDTHS = (768, 1024, 1536, 1792, 2560, 3072, 3584, 5120, 6144, 8192)
MIB = float(1 << 20)
DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Errors over steps of one GPU: all, those mostly held out, and by kind and TP."""

    gpu: str
    everything: Errors
    unseen: Errors
    by_part: dict[str, Errors]


def whole_step_errors(folder: Path, table_gpu: str, gpu: pr.GpuProfile) -> StepErrors | None:
    """Errors of one layer's time over all steps the tables allow; None where a table is missing."""
    tables = {n: read_table(folder, n) for n in ("gemm", "prefill_attention", "decode_attention", "allreduce")}
    if any(t is None for t in tables.values()):
        return None
    mine = {n: t.where(gpu=table_gpu) for n, t in tables.items() if t is not None}
    if any(len(t) == 0 for n, t in mine.items() if n != "allreduce"):
        return None
    chip, table = bf16_chip(gpu), mine["gemm"].where(gemm_dtype=DTYPE)
    gemm = _by_shape(table, ~cached_gemms(table, chip, DTYPE))
    hidden_shapes = dict(zip(gemm, held_out([f"{n}x{k}" for n, k in gemm]), strict=True))
    prefill = _rows(mine["prefill_attention"], ("batch_size", "isl"))
    decode = _rows(mine["decode_attention"], ("batch_size", "step"), bf16_chip(gpu))
    reduce = {g: _reduce(mine["allreduce"], g) for g in (2, 4, 8)}
    found: list[tuple[float, float, bool, str]] = []
    for shapes, nq, nkv, hidden in _layers(gemm):
        unseen = sum(bool(hidden_shapes[s]) for s in shapes) >= 2
        tp = 1 if nkv == 8 else 8 // nkv
        for kind, rows in (("prefill", prefill), ("decode", decode)):
            if (nq, nkv) not in rows:
                continue
            b, length, attention = rows[nq, nkv]
            m = b * length if kind == "prefill" else b
            gemms = np.sum([_lookup(gemm[s], m) for s in shapes], axis=0)
            keep = np.isfinite(gemms) & (m <= 16384) & ((length >= 16) if kind == "prefill" else (b <= 512))
            if kind == "decode":
                keep &= b * length <= 1 << 21
            b, length, m, attention, gemms = (x[keep] for x in (b, length, m, attention, gemms))
            if len(m) == 0:
                continue
            predicted = np.sum([_gemm(gpu, m, *s) for s in shapes], axis=0)
            predicted = predicted + _attention(gpu, kind, b, length, nq, nkv)
            observed = gemms + attention
            measured = reduce.get(tp)
            if measured is not None:
                size = 2.0 * hidden * m
                observed = observed + 2 * np.exp(np.interp(np.log(size), np.log(measured[0]), np.log(measured[1])))
                predicted = predicted + 2 * allreduce_us(gpu, tp, size)
            label = f"{kind}, TP {tp}"
            found.extend(zip(predicted, observed, [unseen] * len(m), [label] * len(m), strict=True))
    if not found:
        return None
    p, o = np.array([f[0] for f in found]), np.array([f[1] for f in found])
    unseen_mask, labels = np.array([f[2] for f in found]), np.array([f[3] for f in found])
    by_part = {str(x): Errors.of(p[labels == x], o[labels == x]) for x in np.unique(labels)}
    return StepErrors(gpu.name, Errors.of(p, o), Errors.of(p[unseen_mask], o[unseen_mask]), by_part)


def _layers(gemm: dict[tuple[int, int], tuple[F64, F64]]) -> Iterator[tuple[list[tuple[int, int]], int, int, int]]:
    for hidden in HIDDEN:
        for nq, nkv in HEADS:
            for width in WIDTHS:
                shapes = [((nq + 2 * nkv) * 128, hidden), (hidden, nq * 128), (2 * width, hidden), (hidden, width)]
                if all(s in gemm for s in shapes):
                    yield shapes, nq, nkv, hidden


def _by_shape(table: Table, good: npt.NDArray[np.bool_]) -> dict[tuple[int, int], tuple[F64, F64]]:
    """(n, k) -> (m ascending, latency; NaN where not good)."""
    m, n, k, t = (table.number[c] for c in ("m", "n", "k", "latency_us"))
    t = np.where(good, t, np.nan)
    order = np.lexsort((m, k, n))
    m, n, k, t = m[order], n[order], k[order], t[order]
    cuts = np.flatnonzero((np.diff(n) != 0) | (np.diff(k) != 0)) + 1
    return {
        (int(a[0]), int(b[0])): (x, y)
        for a, b, x, y in zip(*(np.split(v, cuts) for v in (n, k, m, t)), strict=True)
    }  # fmt: skip


def _lookup(row: tuple[F64, F64], m: F64) -> F64:
    """Measured time at exactly m; NaN where it was not measured."""
    i = np.minimum(np.searchsorted(row[0], m), len(row[0]) - 1)
    return np.where(row[0][i] == m, row[1][i], np.nan)


def _rows(
    table: Table, columns: tuple[str, str], chip: Chip | None = None
) -> dict[tuple[int, int], tuple[F64, F64, F64]]:
    """(query heads, KV heads) -> the two columns and latency. chip: without decode rows that may have been cached."""
    vllm = table.where(backend="vllm")
    names, counts = np.unique(vllm.text["kernel_source"], return_counts=True)
    vllm = vllm.where(kernel_source=str(names[np.argmax(counts)])) if len(names) else vllm
    if chip is not None:
        b, step, heads, t = (vllm.number[c] for c in (*columns, "num_key_value_heads", "latency_us"))
        vllm = vllm.where(~cached_decodes(b, step + 1, heads, t, chip))
    out = {}
    for nq, nkv in HEADS:
        part = vllm.where((vllm.number["num_heads"] == nq) & (vllm.number["num_key_value_heads"] == nkv))
        if len(part):
            out[nq, nkv] = (part.number[columns[0]], part.number[columns[1]], part.number["latency_us"])
    return out


def _reduce(table: Table, gpus: int) -> tuple[F64, F64] | None:
    part = table.where(table.number["num_gpus"] == gpus, impl="vllm_graph")
    if len(part) == 0:
        return None
    newest = max(np.unique(part.text["ver"]), key=lambda v: [int(x) for x in str(v).split(".")])
    part = part.where(ver=str(newest))
    order = np.argsort(part.number["message_size"])
    return part.number["message_size"][order], part.number["latency_us"][order]


def _gemm(gpu: pr.GpuProfile, m: F64, n: int, k: int) -> F64:
    chip = bf16_chip(gpu)
    weight, act = dtype_bytes(DTYPE)
    return gemm_us(GemmNumbers.of(gpu.gemm_bf16), chip, m, n, k, weight_bytes=weight, act_bytes=act)


def _attention(gpu: pr.GpuProfile, kind: str, b: F64, length: F64, nq: int, nkv: int) -> F64:
    chip = bf16_chip(gpu)
    if kind == "prefill":
        a = gpu.prefill_attention
        v = np.array([a.t0_us.value, a.tile_us.value, a.eff_flops_ratio.value, a.longest_share.value])
        return prefill_us(v, chip, b, length, np.zeros_like(b), np.float64(nq), np.float64(nkv))  # type: ignore[arg-type]
    c = gpu.decode_attention
    v = np.array([c.t0_us.value, c.cta_us.value, c.eff_bw_ratio.value, c.ramp_heads.value])
    return decode_us(v, chip, b, length + 1, np.float64(nkv))  # type: ignore[arg-type]
