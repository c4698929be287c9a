"""Replays measured end-to-end points through the engine simulation and prints TTFT and TPOT errors by system.

    python bench/validate_e2e.py [--points FILE.csv] [--json] [--fit]

A point is a closed loop: `concurrency` users, each sending its next request when its last one ends. How each set of points
was made (client and server options) is in `e2e_setups.py`. FP8 rows run FP8 weights (TensorRT-LLM: and KV cache, its
default for such checkpoints; with FP8 KV vLLM would be faster than its rows say). TensorRT-LLM rows run with vLLM's
scheduling and their own overheads. Engine overheads come from the GPU's profile; `--fit` fits them anew on the points named
by `in_fit` and prints them, errors are always those of the others (`rest`), and of all.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from e2e_setups import Point, Setup, closed_loop, setup_of

from prefixsim.engines.contract import EngineInputs
from prefixsim.fleet.fleet import Fleet
from prefixsim.fleet.routers.base import RouterContext, make_router
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.costs import per_token_us
from prefixsim.hardware.fitting import fit_log
from prefixsim.hardware.load import Hardware, load_hardware
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    new_request_rows,
)
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec
from prefixsim.scenario.router import RoundRobin
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Workload

ROOT = Path(__file__).resolve().parents[1]
POINTS = ROOT.parent / "shared" / "gpu" / "end_to_end.csv"
GPUS = {"h100_sxm": "h100-sxm-80g", "h200_sxm": "h200", "a100_sxm": "a100-sxm-80g", "b200_sxm": "b200", "l40s": "l40s"}
MODELS = {"llama-3.1-8b": "llama-3.1-8b", "llama-3.1-70b": "llama-3.1-70b", "llama-3.3-70b": "llama-3.3-70b"}


@dataclass(frozen=True, slots=True)
class Overhead:
    """What is fitted per system and backend: the profile's three numbers in µs, and µs a request until its first token."""

    step_us: float
    per_layer_us: float
    per_seq_us: float
    elementwise_passes: float
    request_us: float = 0.0
    kernel_time_ratio: float = 1.0


def read_points(path: Path) -> list[Point]:
    with path.open(newline="") as f:
        rows = list(csv.DictReader(f))
    out = []
    for r in rows:
        name = r["model_path"].split("/")[-1].lower()
        model = next((m for key, m in MODELS.items() if name.startswith(key)), None)
        if model is None or r["system"] not in GPUS:
            sys.exit(f"{path}: no profile for {r['system']} / {r['model_path']}")
        fp8 = "fp8" in (r["precision"] + name).lower()
        sizes = (int(float(r[c])) for c in ("isl", "osl", "concurrency", "tp_size"))
        out.append(Point(r["system"], r["backend"], model, fp8, *sizes, float(r["ttft_ms"]), float(r["tpot_ms"])))
    return out


START = [300.0, 3.0, 3.0, 8.0, 0.9]
BOUNDS = [(0.0, 20_000.0), (0.0, 40.0), (0.0, 200.0), (0.0, 80.0), (0.4, 1.3)]


class Simulator:
    """Simulates points; keeps what does not depend on overheads."""

    def __init__(self, rounds: int | None = None) -> None:
        self.rounds = rounds
        self.hardware: dict[tuple[str, str, int, str, str], Hardware] = {}
        self.costs: dict[tuple[str, str, int, str, str, str], StepCosts] = {}
        self.loops: dict[tuple[int, int, int, Setup], tuple[Workload, object]] = {}

    def of(self, p: Point, setup: Setup) -> Hardware:
        weights = "fp8" if p.fp8 and not setup.bf16_weights else "auto"
        kv = "fp8" if setup.fp8_kv or (p.fp8 and p.backend == "trtllm") else "auto"
        key = (p.system, p.model, p.tp, weights, kv)
        if key not in self.hardware:
            spec = HardwareSpec(
                gpu=GPUS[p.system],
                model=p.model,
                tensor_parallel_size=p.tp,
                dtype=weights,
                kv_cache_dtype=kv,
            )
            self.hardware[key] = load_hardware(spec, base_dir=ROOT)
        return self.hardware[key]

    def run(self, p: Point, overhead: Overhead | None = None, setup: Setup | None = None) -> tuple[float, float]:
        """(mean TTFT, mean TPOT) in ms. overhead: instead of the profile's; setup: instead of the point's own."""
        setup = setup or setup_of(p)
        hw = self.of(p, setup)
        key = (p.system, p.model, p.tp, hw.weights_dtype, str(hw.kv_bytes), p.backend)
        if key not in self.costs:
            self.costs[key] = hw.step_costs(p.backend)
        costs, request_us = self.costs[key], setup.request_us
        if overhead is not None:
            coef = costs.coef.copy()
            coef[sk.C_ENGINE_STEP_US], coef[sk.C_ENGINE_PER_LAYER_US] = overhead.step_us, overhead.per_layer_us
            coef[sk.C_ENGINE_PER_SEQ_US] = overhead.per_seq_us
            coef[sk.C_ENGINE_PER_TOKEN_US] = per_token_us(hw.gpu, hw.model, overhead.elementwise_passes)
            costs = replace(costs, coef=coef, gemm_us=costs.gemm_us * overhead.kernel_time_ratio)
            request_us = overhead.request_us
        setup = setup if self.rounds is None else replace(setup, rounds=self.rounds)
        shape = (p.isl, p.osl, p.concurrency, setup)
        if shape not in self.loops:
            w = closed_loop(p, setup)
            self.loops[shape] = (w, build_trie(w, "vllm"))
        w, trie = self.loops[shape]
        sglang = p.backend == "sglang" and setup.scheduling == "own"
        if sglang:
            from prefixsim.engines.sglang.engine import build

            options: VllmOptions | SglangOptions = SglangOptions(
                name="sglang", disable_radix_cache=not setup.prefix_caching
            )
            found = hw.kv_capacity(options)
        else:
            from prefixsim.engines.vllm.engine import build  # type: ignore[assignment]

            options = VllmOptions(name="vllm", enable_prefix_caching=setup.prefix_caching)
            found = hw.kv_capacity(options)
            seats = p.concurrency if setup.waiting else None
            if setup.reserve_outputs:
                whole = float((w.prompt_tokens + w.output_tokens).mean())
                seats = min(p.concurrency, max(1, int(found.tokens / whole)))
            options = replace_options(options, max_num_seqs=seats, max_num_batched_tokens=setup.budget(p))
        rows = new_request_rows(w.n)
        awaited = np.zeros(w.n, dtype=np.bool_)
        awaited[w.after[w.after >= 0]] = True
        inputs = EngineInputs(
            workload=w,
            chains=build_chains(trie, 1 if sglang else 16),  # type: ignore[arg-type]
            costs=costs,
            capacity=found.tokens if sglang else found.blocks,
            rows=rows,
            awaited=awaited,
            gpu_memory_gib=hw.gpu_memory_gib,
            gpu_architecture=hw.gpu.device.architecture,
        )
        engine = build(options, inputs)  # type: ignore[arg-type]
        router = make_router(RoundRobin(), RouterContext(w, 1, 0, lambda: trie))
        Fleet([engine], router, rows, w.arrival_ns, w.after, w.delay_ns).serve()
        counted = np.zeros(w.n, dtype=np.bool_)
        counted[setup.warmup_rounds * (p.concurrency + setup.waiting) :] = True
        counted &= (rows[:, REQ_STATUS] == STATUS_FINISHED) & (w.output_tokens > 1)
        done, gaps = rows[counted], w.output_tokens[counted] - 1
        tpot = ((done[:, REQ_FINISH_NS] - done[:, REQ_FIRST_TOKEN_NS]) / gaps).mean() / 1e6
        ttft = (done[:, REQ_FIRST_TOKEN_NS] - done[:, REQ_RELEASED_NS]).mean() / 1e6
        return float(ttft + request_us / 1e3 + setup.wait_iterations * tpot), float(tpot)


def replace_options(options: VllmOptions, **values: int | None) -> VllmOptions:
    """The same options with others of their values; None: as they are."""
    given = {k: v for k, v in values.items() if v is not None}
    return VllmOptions(**{**options.model_dump(exclude_unset=True), **given})


def errors(points: list[Point], found: list[tuple[float, float]]) -> dict[str, float]:
    ttft = np.array([abs(f[0] / p.ttft_ms - 1) for p, f in zip(points, found, strict=True)])
    tpot = np.array([abs(f[1] / p.tpot_ms - 1) for p, f in zip(points, found, strict=True)])
    return {
        "n": len(points),
        "tpot_mape_pct": round(100 * float(tpot.mean()), 2),
        "tpot_p90_pct": round(100 * float(np.quantile(tpot, 0.9)), 2),
        "ttft_mape_pct": round(100 * float(ttft.mean()), 2),
        "ttft_p90_pct": round(100 * float(np.quantile(ttft, 0.9)), 2),
    }


def fit_overhead(points: list[Point], simulator: Simulator) -> Overhead:
    """Fits step, layer, sequence and elementwise overheads to the TPOT of `points` (TensorRT-LLM, whose kernels are not
    those of the operator tables: and a ratio of kernel times), then the request's to their TTFT."""
    observed = np.array([p.tpot_ms for p in points])

    own_kernels = points[0].backend == "trtllm"

    def overhead(v: np.ndarray) -> Overhead:
        ratio = float(v[4]) if own_kernels else 1.0
        return Overhead(*(float(x) for x in v[:4]), kernel_time_ratio=ratio)

    def model(v: np.ndarray) -> np.ndarray:
        return np.array([simulator.run(p, overhead(v))[1] for p in points])

    n = 5 if own_kernels else 4
    found = fit_log(model, observed, START[:n], BOUNDS[:n], scale=0.1, max_iterations=8)
    best = overhead(found.params)
    late = [(p.ttft_ms - simulator.run(p, best)[0]) * 1e3 for p in points]
    return replace(best, request_us=max(0.0, float(np.median(late))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, default=POINTS, help="CSV of the same columns")
    parser.add_argument("--json", action="store_true", help="print errors by system and backend as JSON")
    parser.add_argument(
        "--fit", action="store_true", help="fit the overheads anew on a third of the points, print them"
    )
    parser.add_argument("--rounds", type=int, default=None, help="requests a user, instead of each set's own")
    args = parser.parse_args()
    if not args.points.is_file():
        sys.exit(f"{args.points}: no such file")
    points = read_points(args.points)
    simulator = Simulator(rounds=args.rounds)
    groups = sorted({p.group for p in points})
    fitted: dict[str, Overhead | None] = dict.fromkeys(groups)
    if args.fit:
        for g in groups:
            fitted[g] = fit_overhead([p for p in points if p.group == g and p.in_fit], simulator)
            print(f"{g}: {fitted[g]}", file=sys.stderr)
    found = {p: simulator.run(p, fitted[p.group]) for p in points}

    def of(keep: list[Point]) -> dict[str, float]:
        return errors(keep, [found[p] for p in keep])

    result = {g: of([p for p in points if p.group == g]) for g in groups}
    if args.json:
        print(json.dumps(result, indent=1))
        return
    parts = {g: (lambda p, g=g: p.group == g) for g in groups}
    for group, model in sorted({(p.group, p.model) for p in points}):
        parts[f"{group}, {model}"] = lambda p, group=group, model=model: (p.group, p.model) == (group, model)
    print(f"{'':44} {'n':>4} {'TPOT MAPE':>10} {'p90':>7} {'TTFT MAPE':>10} {'p90':>7}   not in the fit: n, TPOT, TTFT")
    for name, rule in parts.items():
        e = of([p for p in points if rule(p)])
        rest = [p for p in points if rule(p) and not p.in_fit]
        r = of(rest) if rest else e
        print(
            f"{name:44} {e['n']:4d} {e['tpot_mape_pct']:10.1f} {e['tpot_p90_pct']:7.1f} {e['ttft_mape_pct']:10.1f} "
            f"{e['ttft_p90_pct']:7.1f}   {len(rest)}, {r['tpot_mape_pct']}, {r['ttft_mape_pct']}"
        )


if __name__ == "__main__":
    main()
