"""From a folder of operator tables to a finished profile: the fits, the check on whole steps, the sentence on validity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefixsim.hardware import profiles as pr
from prefixsim.hardware.calibrate.fit import FitReport, fit_folder
from prefixsim.hardware.calibrate.whole_steps import StepErrors, whole_step_errors

TABLE_NAMES = {
    "a100-sxm-80g": "a100",
    "h100-sxm-80g": "h100",
    "rtx-4090": "RTX4090",
    "rtx-pro-6000": "RTXPRO6000",
}
"""Profile -> the tables' name of the GPU, where they differ."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted profile, what was fitted and skipped, and its errors on whole steps (None: the tables allow none)."""

    profile: pr.GpuProfile
    report: FitReport
    steps: StepErrors | None


def fit_profile(
    folder: Path,
    base: pr.GpuProfile,
    *,
    table_gpu: str | None = None,
    name: str | None = None,
    date: str,
    tables_from: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Fits one GPU. `base` gives the datasheet part and whatever the tables do not hold. Raises InputError."""
    table_gpu = table_gpu or TABLE_NAMES.get(base.name, base.name)
    profile, report = fit_folder(folder, table_gpu, base, date=date, tables_from=tables_from, note=note)
    steps = whole_step_errors(folder, table_gpu, profile)
    if steps:
        note(f"whole steps, shapes mostly held out: {steps.unseen}")
    kernels = {s.source.removeprefix(f"{tables_from}, ") for s in report.sections.values()}
    stack = " | ".join(sorted(kernels))
    provenance = pr.Provenance(gpu=base.title, kernel_stack=stack, note=f"fitted to operator tables on {date}")
    profile = profile.model_copy(
        update={
            "name": name or base.name,
            "provenance": provenance,
            "validity": validity(report, steps, profile.engine_vllm),
        }
    )
    return Fitted(profile, report, steps)


def validity(report: FitReport, steps: StepErrors | None, engine: pr.EngineOverhead) -> str:
    """The sentence every report prints. engine: vLLM's overheads, fitted on this GPU's end-to-end points or another's."""
    has = set(report.sections)
    past = "mixed_decode_penalty_ratio" in has
    known = []
    if steps:
        e = steps.unseen
        known.append(
            f"step time ±{e.mape_pct:.0f} % (p90 {e.p90_pct:.0f} %) on whole dense bf16 steps of shapes not fitted, TP <= 8, kernels alone"
        )
    if past and "prefill_attention" in has:
        parts = ("prefill_attention", "decode_attention", "mixed_decode_penalty_ratio")
        p, d, m = (f"±{report.sections[x].errors.mape_pct:.0f} %" for x in parts)
        known.append(f"prefill attention with past KV {p}, decode attention {d}, mixed batches {m} on held-out rows")
    if "gemm_fp8" in has:
        block = report.sections.get("gemm_fp8_block")
        blocks = f", by 128x128 blocks ±{block.errors.mape_pct:.0f} %" if block else ""
        known.append(f"FP8 GEMMs ±{report.sections['gemm_fp8'].errors.mape_pct:.0f} % a kernel{blocks}")
    doubts = [] if past else ["past-KV prefill"]
    if engine.step_us.mape_pct is not None:
        known.append(f"vLLM's TPOT end to end ±{engine.step_us.mape_pct:.0f} %")
    else:
        doubts.insert(0, "whole runs (engine overheads of another GPU)")
    if "gemm_bf16" not in has:
        doubts.append("GEMMs (assumed efficiencies)")
    doubts += ["MoE", "MLA"]
    return f"{'; '.join(known) or 'nothing checked on whole steps'}; not validated on this GPU: {', '.join(doubts)}"
