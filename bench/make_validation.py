"""Writes docs/validation.md from the reference data kept beside the checkout: python bench/make_validation.py.

Every table is computed here and now from the shipped profiles; nothing is typed in by hand.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from validate_e2e import POINTS, Simulator, errors, read_points

from prefixsim.hardware.calibrate.fit_profile import TABLE_NAMES
from prefixsim.hardware.calibrate.whole_steps import whole_step_errors
from prefixsim.hardware.fitting import Errors
from prefixsim.hardware.load import Hardware, load_gpu, load_hardware, shipped
from prefixsim.hardware.profiles import numbers
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec, MemoryOverrides

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT.parent / "shared" / "gpu"
SECTIONS = ("gemm_bf16", "gemm_fp8", "gemm_fp8_block", "prefill_attention", "decode_attention", "allreduce")
MODELS = {
    "Llama-3.1-8B": ("llama-3.1-8b", {}),
    "Llama-3.1-8B dtype=f32": ("llama-3.1-8b", {"dtype": "fp32"}),
    "Llama-3.1-8B w=fp8": ("llama-3.1-8b", {"dtype": "fp8"}),
    "Qwen2.5-7B kv=fp8": ("qwen2.5-7b", {"kv_cache_dtype": "fp8"}),
    "Qwen3-14B": ("qwen3-14b", {}),
    "Llama-3.3-70B-FP8": ("llama-3.3-70b", {"dtype": "fp8"}),
    "Qwen3-32B": ("qwen3-32b", {}),
    "gpt-oss-20b": ("gpt-oss-20b", {}),
    "Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", {"dtype": "fp8"}),
}


def main() -> None:
    if not TABLES.is_dir():
        sys.exit(f"{TABLES}: no reference data")
    parts = [HEAD, *steps(), *sections(), *capacity(), *end_to_end(), TAIL]
    path = ROOT / "docs" / "validation.md"
    path.write_text("\n".join(parts) + "\n")
    print(path)


def row(*cells: object) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def shown(e: Errors) -> str:
    return f"{e.mape_pct:.1f} / {e.p90_pct:.1f}"


def steps() -> list[str]:
    out = [
        STEPS,
        row("GPU", "steps", "all", "shapes mostly held out", "bias", "prefill TP 1, 2, 4, 8", "decode TP 1, 2, 4, 8"),
    ]
    out.append(row(*["---"] * 7))
    for name in ("h100-sxm-80g", "h200", "a100-sxm-80g", "b200", "l40s"):
        e = whole_step_errors(TABLES, TABLE_NAMES.get(name, name), load_gpu(name))
        if e is None:
            continue
        by = [
            ", ".join(f"{e.by_part[f'{k}, TP {t}'].mape_pct:.1f}" for t in (1, 2, 4, 8) if f"{k}, TP {t}" in e.by_part)
            for k in ("prefill", "decode")
        ]
        out.append(
            row(name, e.everything.n, shown(e.everything), shown(e.unseen), f"{e.everything.bias_pct:+.1f} %", *by)
        )
    return out


def sections() -> list[str]:
    out = [KERNELS, "", row("GPU", *SECTIONS), row(*["---"] * (len(SECTIONS) + 1))]
    for name in shipped("gpus"):
        listed = dict(numbers(load_gpu(name)))
        cells = []
        for section in SECTIONS:
            mine = [n for k, n in listed.items() if k.startswith(f"{section}.")]
            if not mine:
                cells.append("none")
            elif mine[0].mape_pct is None:
                cells.append(mine[0].kind)
            else:
                cells.append(f"{mine[0].mape_pct:.1f} / {mine[0].p90_pct:.1f}")
        out.append(row(name, *cells))
    return out


def capacity() -> list[str]:
    out = [CAPACITY, "", row("server", "logged GiB", "from its components", "from defaults"), row(*["---"] * 4)]
    with (TABLES / "kv_capacity.csv").open(newline="") as f:
        for r in csv.DictReader(f):
            name, more = MODELS[r["model"]]
            gpu = "rtx-4090" if "4090" in r["gpu"] else "h100-sxm-80g"
            logged = float(r["kv_GiB_measured"] or 0)
            logged = logged or float(r["kv_tokens_measured"]) * float(r["bytes_per_token_per_gpu"]) / (1 << 30)

            def found(r=r, name=name, more=more, gpu=gpu, **memory: float) -> float:
                hardware: Hardware = load_hardware(
                    HardwareSpec(
                        gpu=gpu,
                        model=name,
                        tensor_parallel_size=int(r["tp"]),
                        memory=MemoryOverrides(**memory),
                        **more,
                    )
                )
                if r["engine"] == "SGLang":
                    return hardware.kv_capacity(SglangOptions(name="s", mem_fraction_static=float(r["util"]))).kv_gib
                kind = "vllm@0.11" if r["version"].startswith("0.11") else "vllm"
                return hardware.kv_capacity(
                    VllmOptions(name="v", kind=kind, gpu_memory_utilization=float(r["util"]))
                ).kv_gib

            given = "not logged"
            if r["weights_GiB"]:
                value = found(
                    total_gib=float(r["total_GiB"]),
                    weights_gib=float(r["weights_GiB"]),
                    activation_gib=float(r["act_GiB"]),
                    non_torch_gib=float(r["nontorch_GiB"]),
                )
                given = f"{100 * (value / logged - 1):+.2f} %"
            server = f"{r['model']}, {r['gpu']}, TP {r['tp']}, {r['engine']} {r['version'][:7]}"
            out.append(row(server, f"{logged:.2f}", given, f"{100 * (found() / logged - 1):+.1f} %"))
    return out


def end_to_end() -> list[str]:
    points = read_points(POINTS)
    simulator = Simulator()
    found = {p: simulator.run(p) for p in points}
    head = row("points", "n", "TPOT MAPE / p90 %", "TTFT MAPE / p90 %", "not fitted: n", "TPOT MAPE %", "TTFT MAPE %")
    out = [E2E, "", head, row(*["---"] * 7)]
    for group, model in sorted({(p.group, p.model) for p in points}):
        mine = [p for p in points if (p.group, p.model) == (group, model)]
        rest = [p for p in mine if not p.in_fit]
        e, r = errors(mine, [found[p] for p in mine]), errors(rest, [found[p] for p in rest])
        both = (f"{e['tpot_mape_pct']} / {e['tpot_p90_pct']}", f"{e['ttft_mape_pct']} / {e['ttft_p90_pct']}")
        out.append(row(f"{group}, {model}", e["n"], *both, r["n"], r["tpot_mape_pct"], r["ttft_mape_pct"]))
    return out


HEAD = """# Validation of the hardware model

Generated by `python bench/make_validation.py` from third-party measurements (aiconfigurator-core 0.12.0, Apache-2.0;
LLMServingSim, MIT; server logs). Nothing on this page was measured by the project on a GPU. Errors are MAPE / 90th
percentile of the absolute relative error, in per cent, unless a column says otherwise."""
STEPS = """
## Whole steps

The time of a layer (four GEMMs, attention, two all-reduces from TP 2), each part a row of the operator tables, against the
formula. The models are all that the tables' shapes allow; Llama's own shapes are not in the tables. "Mostly held out": at
least two of the four GEMM shapes were never seen by the fit. Prefill without past KV; bf16."""
KERNELS = """
## Single kernels

On shapes (attention: head counts) held out of the fit. A word instead of numbers: that part is not fitted on this GPU."""
CAPACITY = """
## KV cache size

Against what servers logged. The RTX 4090's memory outside PyTorch was solved from its own row: that error is in-sample, as
are vLLM 0.11's two constants. SGLang's row has no components; what SGLang keeps beside the weights is
not modelled. The activation estimate of vLLM >= 0.17 was fitted to these same servers."""
E2E = """
## End to end

Closed loops through the whole engine simulation (`bench/validate_e2e.py`). Overheads were fitted on a third of the points
(chosen by a hash) of vLLM 70B, TensorRT-LLM on H200 and TensorRT-LLM on H100; SGLang runs with vLLM's overheads. Load: ten
requests a user, all users at once, lengths uniform in 80 to 100 % of the stated ones (as InferenceMAX's client does); on
H100 one request more than the engine may run, read off the points."""
TAIL = """
## Where the model is known to be wrong

- **Past-KV prefill on data-centre GPUs**: no public table. The formula's past-KV term is validated on RTX 4090 and RTX PRO
  6000 only. It is the first thing `prefixsim calibrate` should measure on a card of yours.
- **MoE and MLA**: modelled from shapes with the dense GEMMs' efficiencies; no grouped-GEMM or MLA table is fitted.
- **h200_sxm/vllm, llama-3.1-8b** (21 points, vLLM 0.12): at the stated rates of six of them the GPUs would run at 50 to
  90 % of the dense FP8 peak, with decoding on top, and decode gaps of all look as if no prefill ran beside them. A warm prefix cache or
  separate prefill workers would explain them; without either the simulation is far slower than these rows.
- **h200_sxm/sglang**: TTFT of 1 to 8 s grows with the output length, as if part of the users always waited; no setting
  that the points name explains it, and it is not imitated. TTFT is far too low there.
- **TensorRT-LLM**: vLLM's scheduling; its 1024/1024 points on H200 have two to three times the TTFT of its 1024/8192 points.
- **FP8 GEMMs** are fitted where m is a multiple of 16; other m take up to twice as long in the tables (CUTLASS).
- **L40S**: its tables read matrices and KV that fit the 96 MB cache; kernels below that size are faster there than in
  serving, and the fit lies between.
- **B200 prefill and small decode batches**: kernels change with shape; single-kernel errors are 10 to 15 %.
- **CUDA graphs' memory** is counted as zero unless given: vLLM subtracts its own estimate since 0.21, and no log with it is
  public.
- **H20, MI300X, GB200**: datasheet peaks with another GPU's efficiencies. Nothing of them was measured."""

if __name__ == "__main__":
    main()
