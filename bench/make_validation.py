"""Writes docs/validation.md from the reference data kept beside the checkout: python bench/make_validation.py.

Every table is computed here and now from the shipped profiles; nothing is typed in by hand.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e_setups import ALTERNATIVES, Point, setup_of
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
        "",
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
    points, simulator = read_points(POINTS), Simulator()
    found = {p: simulator.run(p) for p in points}
    head = row("points", "n", "TPOT MAPE / p90 %", "TTFT MAPE / p90 %", "not fitted: n", "TPOT MAPE %", "TTFT MAPE %")
    out = [E2E, "", head, row(*["---"] * 7)]
    for name, mine in sets(points).items():
        rest = [p for p in mine if not p.in_fit]
        e, r = errors(mine, [found[p] for p in mine]), errors(rest, [found[p] for p in rest])
        both = (f"{e['tpot_mape_pct']} / {e['tpot_p90_pct']}", f"{e['ttft_mape_pct']} / {e['ttft_p90_pct']}")
        out.append(row(name, e["n"], *both, r["n"], r["tpot_mape_pct"], r["ttft_mape_pct"]))
    return [*out, *setups(points, found, simulator), *streaming(points, found)]


def sets(points: list[Point]) -> dict[str, list[Point]]:
    """Points by who made them with what: system/backend, model."""
    names = sorted({f"{p.group}, {p.model}" for p in points})
    return {name: [p for p in points if f"{p.group}, {p.model}" == name] for name in names}


def setups(points: list[Point], found: dict[Point, tuple[float, float]], simulator: Simulator) -> list[str]:
    """Each set as described, then each other explanation of it: error and bias of all its points."""
    out = [SETUPS, "", row("points", "tried", "TPOT MAPE %", "TPOT sim/measured", "TTFT MAPE %", "TTFT sim/measured")]
    out.append(row(*["---"] * 6))

    def line(name: str, what: str, mine: list[Point], values: list[tuple[float, float]]) -> str:
        e = errors(mine, values)
        bias = [
            np.median([v[i] / (p.ttft_ms, p.tpot_ms)[i] for p, v in zip(mine, values, strict=True)]) for i in (0, 1)
        ]
        return row(name, what, e["tpot_mape_pct"], f"{bias[1]:.2f}", e["ttft_mape_pct"], f"{bias[0]:.2f}")

    for name, mine in sets(points).items():
        out.append(line(name, "**as described**", mine, [found[p] for p in mine]))
        for other in (a for a in ALTERNATIVES if a.points == name):
            changed = [simulator.run(p, setup=replace(setup_of(p), **other.changes)) for p in mine]
            out.append(line("", other.what, mine, changed))
    return out


def streaming(points: list[Point], found: dict[Point, tuple[float, float]]) -> list[str]:
    """The most tokens a second that a server sent, measured and simulated, by TP."""

    def rate(p: Point, value: tuple[float, float]) -> float:
        return p.concurrency * p.osl / (value[0] + value[1] * p.osl)

    out = [STREAMING, "", row("points", *(f"TP {tp}" for tp in (1, 2, 4, 8))), row(*["---"] * 5)]
    for name, mine in sets(points).items():
        cells = []
        for tp in (1, 2, 4, 8):
            part = [p for p in mine if p.tp == tp]
            measured = max((rate(p, (p.ttft_ms, p.tpot_ms)) for p in part), default=0.0)
            cells.append(f"{measured:.1f} / {max(rate(p, found[p]) for p in part):.1f}" if part else "none")
        out.append(row(name, *cells))
    mine = [p for p in points if p.group == "h100_sxm/trtllm"]
    users = sorted({p.concurrency for p in mine})
    out += [BY_USERS, "", row("users", *users), row(*["---"] * (len(users) + 1))]
    for what, key in (("TTFT MAPE %", "ttft_mape_pct"), ("TPOT MAPE %", "tpot_mape_pct")):
        parts = [[p for p in mine if p.concurrency == c] for c in users]
        out.append(row(what, *(errors(part, [found[p] for p in part])[key] for part in parts)))
    return out


HEAD = """# Validation of the hardware model

Generated by `python bench/make_validation.py` from third-party measurements (aiconfigurator-core 0.12.0, Apache-2.0;
LLMServingSim, MIT; server logs). Nothing on this page was measured by the project on a GPU. Errors are MAPE / 90th
percentile of the absolute relative error, in per cent, unless a column says otherwise."""
STEPS = """
## Whole steps

The time of a layer (four GEMMs, attention, two all-reduces from TP 2), each part a row of the operator tables, against the
formula. The models are all that the tables' shapes allow; Llama's own shapes are not in the tables. "Mostly held out": at
least two of the four GEMM shapes were never seen by the fit. Prefill without past KV; bf16. Left out: steps with a row that may
have been read from the GPU's cache (L40S: its tables read small weights and KV at up to 2.7 times the memory's peak, which no
serving engine can, since a step passes all layers through the cache)."""
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
(chosen by a hash) of vLLM 70B, TensorRT-LLM on H200 and TensorRT-LLM on H100; SGLang runs with vLLM's overheads. How each
set was loaded and served is in `bench/e2e_setups.py`, from its makers' public scripts; nothing is set for a single point."""
SETUPS = """
### How the points were made

| points | client | server | read off the third that may be fitted |
| --- | --- | --- | --- |
| h200_sxm/vllm, llama-3.1-70b | InferenceMAX's README and scripts: ten requests a user, all users at once, lengths uniform in 80 to 100 % | vLLM, no prefix caching | 10.7 ms before the engine sees a request |
| h200_sxm/trtllm | the same | TensorRT-LLM, `max_num_tokens` = longest sequence; at 1024/1024 below TP 8 `batch_wait_timeout_iters: 20`; never evicts, so admits by the whole answer | 36.5 ms before the engine sees a request |
| h100_sxm/trtllm | aiconfigurator's evaluation pipeline (genai-perf): exact lengths, ten requests a user after two that do not count | `max_num_tokens` = users + input + 1500 | one user more than slots |
| h200_sxm/sglang | exact lengths | aiconfigurator's generated server: `--enable-mixed-chunk`, `--max-prefill-tokens` input + 1500. Our SGLang engine has no mixed chunks; vLLM's scheduling stands in | 6 requests a user; prompts never repeat |
| h200_sxm/vllm, llama-3.1-8b | aiconfigurator's generated benchmark (AIPerf): exact lengths, number of prompts left at AIPerf's default of 100, so **prompts are sent again and again** | vLLM with prefix caching | 15 requests a user |

The rows themselves name no script; these are the public ones of their makers, and the points agree with them better than with
anything else tried. The rows of vLLM 8B are thus measurements of a warm prefix cache: at the stated rates six of them would need 50 to 90 % of
the dense FP8 peak for prefill alone, with decoding on top. Without reuse the simulation is twice as slow as they are.

What else was tried, on all points of each set (bias: median of simulated / measured):"""
STREAMING = """
### Where servers stop whatever the GPUs

The most tokens a second that one server sent, thousands, over all points: measured / simulated. TensorRT-LLM 1.0.0rc3 ends
at 9.2 whether TP is 2, 4 or 8, SGLang 0.5.6 near 19 at TP 4 and 8, and there TTFT grows with the answers' length: as if
something sent tokens one after the other, 110 and 50 µs each (detokenizing, HTTP or the client). The simulator has no such
part: where it predicts more tokens a second than that, it is too fast, above all in TTFT."""
BY_USERS = """
TTFT of h100_sxm/trtllm is predicted for few users, and not for 64 at TP 4 and 8, nor for 128: there not at TP 1 either, which
the ceiling alone does not explain."""
TAIL = """
## Where the model is known to be wrong

- **Past-KV prefill on data-centre GPUs**: no public table. The formula's past-KV term is validated on RTX 4090 and RTX PRO
  6000 only. It is the first thing `prefixsim calibrate` should measure on a card of yours.
- **MoE and MLA**: modelled from shapes with the dense GEMMs' efficiencies; no grouped-GEMM or MLA table is fitted.
- **Front end**: tokenizing, HTTP and detokenizing are not modelled. TTFT starts where the engine sees a request (10 to 40 ms
  later than the client in the points above), and no limit on tokens sent a second exists (the table above).
- **Prefill at TP 4 and 8 on H200**: 10 to 30 % too slow in the end-to-end points of vLLM, SGLang and at 8192 tokens
  TensorRT-LLM. Half of such a step is all-reduces; the operator tables move 220 GB/s there, which engines seem to exceed.
- **Decode at the largest KV**: over 1 GB of KV a layer, decode attention on H100 and H200 is 6 to 9 % too slow against its own
  table, and up to 20 % in the vLLM 8B points at 8000 tokens.
- **h200_sxm/vllm, llama-3.1-8b**: which of these runs began on a warm cache is not known; TTFT is off by 2 to 3 where one did
  (4000 tokens and 500 to 2000 answers).
- **SGLang mixed chunks** (`--enable-mixed-chunk`) are not modelled: the option is refused.
- **FP8 GEMMs** are fitted where m is a multiple of 16; other m take up to twice as long in the tables (CUTLASS).
- **L40S**: rows that read at most 21 MB of weights or 67 MB of KV were not fitted (cached, see above): kernels that small
  are extrapolated from larger ones. Block-scaled FP8 GEMMs are off by 25 %.
- **B200 prefill and small decode batches**: kernels change with shape; single-kernel errors are 10 to 15 %.
- **CUDA graphs' memory** is counted as zero unless given: vLLM subtracts its own estimate since 0.21, and no log with it is
  public.
- **H20, MI300X, GB200**: datasheet peaks with another GPU's efficiencies. Nothing of them was measured."""

if __name__ == "__main__":
    main()
