"""`calibrate`: runs the microbenchmark, keeps every raw row, fits the profile's numbers and says how good the fits are."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim import __version__
from prefixsim.errors import InputError, MissingExtraError, PrefixsimError, nearest
from prefixsim.hardware import profiles as pr
from prefixsim.hardware.calibrate.fit import (
    DECODE_BOUNDS,
    DECODE_START,
    GEMM_BOUNDS,
    GEMM_START,
    PREFILL_BOUNDS,
    PREFILL_START,
    decode_section,
    decode_us,
    gemm_rows,
    gemm_section,
    prefill_section,
    prefill_us,
)
from prefixsim.hardware.calibrate.kept import Kept
from prefixsim.hardware.calibrate.tables import Table
from prefixsim.hardware.calibrate.write import number, profile_path, to_yaml
from prefixsim.hardware.fitting import F64, Errors, fit_log, held_out
from prefixsim.hardware.gemm import Chip
from prefixsim.paths import write_whole

CPU_GEMM_BOUNDS = [
    (0.0, 500.0), (0.02, 1.0), (0.02, 1.0), (0.5, 8.0), (0.0, 4000.0), (0.0, 0.01),
    *([(0.99, 1.0)] * 3), *([(-2.0, 2.0)] * 6), (0.0, 4000.0),
]  # fmt: skip
CPU_GEMM_START = [10.0, 0.6, 0.6, 2.0, 100.0, 0.005, 0.995, 0.995, 0.995, *([0.0] * 6), 10.0]
BASES = {
    "H200": "h200", "H100": "h100-sxm-80g", "H20": "h20", "A100": "a100-sxm-80g", "GB200": "gb200", "B200": "b200",
    "L40S": "l40s", "RTX 4090": "rtx-4090", "RTX PRO 6000": "rtx-pro-6000", "MI300X": "mi300x",
}  # fmt: skip
Note = Callable[[str], None]


def calibrate_device(
    out: Path, gpu: str | None, name: str | None, device: str, budget_s: float, wanted: list[str] | None, json_: bool
) -> None:
    """The command. Writes the profile and `<name>.raw.csv` beside it, or, cut short, neither: what is measured by then is
    kept, and the next calibration goes on from there."""
    torch = _torch()
    from prefixsim.hardware.calibrate.torch_ops import SECTIONS, Timer

    for section in wanted or []:
        if section not in SECTIONS:
            raise InputError(f"--sections: unknown section {section!r}{nearest(section, SECTIONS)}")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: found {device!r}, expected auto, cuda or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise PrefixsimError("--device cuda: torch finds no CUDA device here; --device cpu measures this CPU")
    base = _base(torch, device, gpu)
    name = name or (base.name if base else "cpu")
    path = profile_path(out, "gpus", name)
    raw = path.with_suffix(".raw.csv")
    clocks = _clocks(torch, device)
    kept = Kept(path, {"device": _device(torch, device), "torch": torch.__version__, "prefixsim": __version__})
    if said := kept.find():
        _say(said)
    chosen = [s for s in SECTIONS if wanted is None or s in wanted]
    _measure(Timer(torch, device), {s: SECTIONS[s] for s in chosen}, budget_s, kept, _say)
    rows = [row for section in chosen for row in kept.sections[section]]
    write_whole(raw, _csv(rows), folders=True)
    what = f"measured by: prefixsim calibrate --device {device}; raw rows: {raw.name}; clocks {clocks} -> {_clocks(torch, device)}"
    result = _profile(torch, device, name, base, rows, what)
    summary: dict[str, Any] = {
        "device": device,
        "raw": str(raw),
        "rows": len(rows),
        "sections_done": chosen,
    }
    if result is None:
        summary["profile"] = None
    else:
        profile, errors = result
        write_whole(path, to_yaml(profile, f"Measured by: prefixsim calibrate --device {device}"))
        summary |= {"profile": str(path), "validity": profile.validity}
        summary["held_out"] = {
            k: {"n": e.n, "mape_pct": round(e.mape_pct, 2), "p90_pct": round(e.p90_pct, 2)} for k, e in errors.items()
        }
    if set(kept.sections) <= set(chosen):
        kept.forget()
    print(json.dumps(summary) if json_ else _text(summary))
    if result is None:
        raise PrefixsimError(
            f"too few rows of the section gemm: no profile, the raw rows are in {raw}; give it a larger --budget"
        )


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("calibrate (measuring)", "calibrate") from None
    return torch


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _measure(timer: Any, sections: dict[str, Any], budget_s: float, kept: Kept, say: Note) -> None:
    """Runs the sections that are not kept yet, within their budgets. Raises what cuts it short, and says how to go on."""
    total = sum(share for share, _ in sections.values())
    for section, (share, operator) in sections.items():
        if section in kept.sections:
            continue
        limit = time.monotonic() + budget_s * share / total
        rows: list[dict[str, Any]] = []
        cut = False
        try:
            for row in operator(timer):
                rows.append(row)
                if time.monotonic() > limit:
                    cut = True
                    break
        except BaseException as exc:
            reason = f"{type(exc).__name__}: {exc}"
            if isinstance(exc, KeyboardInterrupt):
                reason = "interrupted"
            elif "OutOfMemory" in type(exc).__name__:
                reason = "out of CUDA memory"
            done = [s for s in sections if s in kept.sections]
            how = "run it again to go on from there"
            if done:
                how += f", or with --sections {','.join(done)} for a profile of these alone"
            text = (
                f"section {section}: {reason:.300}; no profile is written; measured so far: "
                f"{', '.join(done) or 'nothing'} (in {kept.path}): {how}"
            )
            if not isinstance(exc, Exception):
                say(text)
                raise
            raise PrefixsimError(text) from None
        say(f"{section}: {len(rows)} rows{', cut short by its budget' if cut else ''}")
        kept.add(section, rows)


def _base(torch: Any, device: str, gpu: str | None) -> pr.GpuProfile | None:
    from prefixsim.hardware.load import load_gpu

    if gpu is not None:
        return load_gpu(gpu)
    if device == "cpu":
        return None
    found = torch.cuda.get_device_name(0)
    for part, profile in BASES.items():
        if part in found:
            return load_gpu(profile)
    raise InputError(
        f"{found}: no profile gives its datasheet part: write one (docs/hardware.md) and name it with --gpu"
    )


def _device(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name(0)) if device == "cuda" else platform.processor() or platform.machine()


def _clocks(torch: Any, device: str) -> str:
    if device == "cuda":
        try:
            return f"{torch.cuda.clock_rate()} MHz"
        except Exception:
            return "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return f"{float(next(x for x in lines if x.startswith('cpu MHz')).split(':')[1]):.0f} MHz"
    except (OSError, StopIteration, ValueError):
        return "unknown"


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(k for row in rows for k in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(rows: list[dict[str, Any]], section: str, **equal: str) -> Table | None:
    mine = [r for r in rows if r["section"] == section and all(r.get(k) == v for k, v in equal.items())]
    if not mine:
        return None
    names = [k for k in mine[0] if k != "section"]
    text = {k: np.array([str(r[k]) for r in mine]) for k in names if isinstance(mine[0][k], str)}
    numbers = {k: np.array([float(r[k]) for r in mine]) for k in names if k not in text}
    return Table(section, Path(section), text, numbers)


def _profile(
    torch: Any, device: str, name: str, base: pr.GpuProfile | None, rows: list[dict[str, Any]], what: str
) -> tuple[pr.GpuProfile, dict[str, Errors]] | None:
    """The profile and the held-out errors of its sections; None when the GEMMs do not suffice and there is no base."""
    today = datetime.date.today().isoformat()
    table = _table(rows, "gemm", gemm_dtype="bfloat16")
    enough = table is not None and len(table) >= 24
    if base is None and not enough:
        return None
    profile = base if base is not None else _cpu_base(torch, name, rows, what, today)
    d = profile.device
    bw, sms = d.mem_bandwidth_gb_per_s.value * 1e9, d.sm_count.value
    chip = Chip(d.peak_dense_bf16_tflops.value * 1e12, bw, sms)
    cpu = device == "cpu"
    update: dict[str, Any] = {}
    errors: dict[str, Errors] = {}
    jobs = [("gemm_bf16", "bfloat16", chip)]
    if d.peak_dense_fp8_tflops is not None:
        jobs.append(("gemm_fp8", "fp8", Chip(d.peak_dense_fp8_tflops.value * 1e12, bw, sms)))
    for key, dtype, peaks in jobs:
        part = _table(rows, "gemm", gemm_dtype=dtype)
        if part is not None and len(part) >= 24:
            start, bounds = (CPU_GEMM_START, CPU_GEMM_BOUNDS) if cpu else (GEMM_START, GEMM_BOUNDS)
            fit, n, errors[key] = gemm_rows(part, peaks, dtype, start=start, bounds=bounds)
            update[key] = gemm_section(fit, n, errors[key], what, today, "measured")
    part = _table(rows, "prefill", kernel_source="default" if cpu else "flash")
    if part is not None and len(part) >= 8:
        c = part.number
        names = ("batch_size", "isl", "past", "num_heads", "num_key_value_heads")

        def pre(v: F64, keep: Any, c: Any = c) -> F64:
            return prefill_us(v, chip, *(c[x][keep] for x in names))

        keys = [f"{q:.0f}@{p:.0f}" for q, p in zip(c["isl"], c["past"], strict=True)]
        v, n, errors["prefill_attention"] = _fit(pre, c["latency_us"], keys, PREFILL_START, PREFILL_BOUNDS, cpu)
        update["prefill_attention"] = prefill_section(v, n, errors["prefill_attention"], what, today, "measured")
    part = _table(rows, "decode")
    if part is not None and len(part) >= 8:
        c = part.number

        def dec(v: F64, keep: Any, c: Any = c) -> F64:
            return decode_us(v, chip, c["batch_size"][keep], c["step"][keep] + 1, c["num_key_value_heads"][keep])

        keys = [f"{b:.0f}x{s:.0f}" for b, s in zip(c["batch_size"], c["step"], strict=True)]
        v, n, errors["decode_attention"] = _fit(dec, c["latency_us"], keys, DECODE_START, DECODE_BOUNDS, cpu)
        update["decode_attention"] = decode_section(v, n, errors["decode_attention"], what, today, "measured")
    text = ", ".join(f"{k} ±{e.mape_pct:.0f} %" for k, e in errors.items())
    stack = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        if device == "cuda"
        else f"torch {torch.__version__}, CPU"
    )
    provenance = pr.Provenance(
        gpu=_device(torch, device),
        torch=torch.__version__,
        kernel_stack=f"{stack}; SDPA on contiguous KV, not a serving engine's paged kernels",
        note=what,
    )
    validity = f"measured on this device, errors on held-out shapes: {text}; whole steps, MoE, MLA and paged attention not validated"
    profile = profile.model_copy(update=update | {"name": name, "provenance": provenance, "validity": validity})
    return profile, errors


def _fit(model: Any, observed: F64, keys: list[str], start: Any, bounds: Any, cpu: bool) -> tuple[F64, int, Errors]:
    out = held_out(keys)
    wide = [(low, 1e5 if high > 1.5 else high) for low, high in bounds] if cpu else bounds
    fit = fit_log(lambda v: model(v, ~out), observed[~out], start, wide)
    return fit.params, int((~out).sum()), Errors.of(model(fit.params, out), observed[out])


def _cpu_base(torch: Any, name: str, rows: list[dict[str, Any]], what: str, today: str) -> pr.GpuProfile:
    """A profile of this CPU: peaks are the best rates seen; what nothing measured is assumed zero or stated."""

    def seen(value: float) -> pr.Number:
        return number(value, "measured", what, today)

    def guess(value: float, why: str) -> pr.Number:
        return number(value, "assumed", why, today)

    gemms = [r for r in rows if r["section"] == "gemm"]
    flops = max(2.0 * r["m"] * r["n"] * r["k"] / r["latency_us"] for r in gemms) * 1e6
    moved = [2.0 * r["bytes"] / r["latency_us"] for r in rows if r["section"] == "copy" and r["direction"] == "device"]
    moved += [2.0 * (r["n"] * r["k"] + r["m"] * r["k"] + r["m"] * r["n"]) / r["latency_us"] for r in gemms]
    gb_per_s = max(moved) * 1e6 / 1e9
    try:
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    except (ValueError, OSError):
        ram = 1.0
    cores = float(torch.get_num_threads())
    none = guess(0.0, "a CPU profile: for tests and for comparing formulas, no serving engine")
    overhead = pr.EngineOverhead(step_us=none, per_layer_us=none, per_seq_us=none, elementwise_passes=none)
    one = guess(1.0, "not measured: too few attention rows")
    blank = pr.Gemm(
        launch_us=none,
        eff_flops_ratio=one,
        eff_bw_ratio=one,
        p_exponent=one,
        k_ramp_elements=none,
        wave_share=none,
        tile_64x64_ratio=one,
        tile_64x128_ratio=one,
        tile_128x128_ratio=one,
    )
    return pr.GpuProfile(
        name=name,
        title=f"{platform.processor() or platform.machine()} CPU, {cores:.0f} threads",
        provenance=pr.Provenance(gpu="none", kernel_stack="torch on CPU"),
        device=pr.Device(
            architecture="cpu",
            memory_nominal_gib=seen(ram),
            memory_usable_gib=seen(ram),
            sm_count=seen(cores),
            boost_clock_mhz=guess(2000.0, "not read; no number here depends on it"),
            peak_dense_bf16_tflops=seen(flops * 1.02 / 1e12),
            mem_bandwidth_gb_per_s=seen(gb_per_s * 1.02),
            link_bandwidth_gb_per_s=none,
            host_link_bandwidth_gb_per_s=seen(gb_per_s * 1.02),
        ),
        gemm_bf16=blank,
        prefill_attention=pr.PrefillAttention(t0_us=none, tile_us=none, eff_flops_ratio=one, longest_share=none),
        decode_attention=pr.DecodeAttention(t0_us=none, cta_us=none, eff_bw_ratio=one, ramp_heads=none),
        mixed_decode_penalty_ratio=one,
        engine_vllm=overhead,
        engine_sglang=overhead,
        vllm_memory=pr.VllmMemory(non_torch_tp1_gib=none, non_torch_tp_gib=none),
        validity="set later",
    )


def _text(summary: dict[str, Any]) -> str:
    lines = [f"raw rows: {summary['raw']} ({summary['rows']})"]
    if summary["profile"]:
        lines.append(f"profile: {summary['profile']}")
        lines += [f"  {k}: held out {e['n']} rows, MAPE {e['mape_pct']} %" for k, e in summary["held_out"].items()]
        lines.append(summary["validity"])
    return "\n".join(lines)
