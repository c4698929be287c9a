"""The analysis side by side with what it is measured against, interleaved; prints medians, spread and ratios (--json: as JSON).

    python bench/bench_curves.py [--rounds 9] [--workload DIR] [--json]

DIR holds mooncake16.jsonl and tokens.jsonl of ../shared/bench/w10k.py (made in a temporary folder when absent; seconds).
Everything is warm: each function has run once before it is timed. Interning is not part of any row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from prefixsim import pipeline as run
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.curve_kernels import by_first_use, optimal_hits, reuses
from prefixsim.analysis.curves import curves
from prefixsim.analysis.ledger import ledger
from prefixsim.analysis.segments import build_segments, inserted_tokens, lookup_order
from prefixsim.analysis.summary import engine_summary
from prefixsim.engines.vllm.pool_kernels import sequential
from prefixsim.engines.vllm.replay import make_engine, replay_settings
from prefixsim.prepare import Prepared
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.strict_yaml import parse
from prefixsim.scenario.workload import Trace
from prefixsim.workload.intern import build_trie
from prefixsim.workload.load import load_trace

SHARED = Path(__file__).resolve().parents[2] / "shared"
SCENARIO = """
name: bench
workload: {trace: {path: x}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm, num_gpu_blocks_override: 20000}]
"""


def interleaved(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Wall seconds of each function, one after another in every round; the first, untimed round warms up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for k in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if k:
                times[name].append(time.perf_counter() - started)
    return times


def w10k_rows(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Curve against one replay; ledger and summary against the simulation."""
    w = load_trace(Trace(path=str(folder / "mooncake16.jsonl"), format="mooncake"))
    trie = build_trie(w, "vllm")
    engines = []

    def fresh() -> None:
        engines.append(
            make_engine(w, replay_settings({"num_gpu_blocks": 20_000, "block_size": 16, "mode": "sequential"}))
        )

    def one_replay() -> None:
        e, c = engines[-1], engines[-1].inputs.chains
        out = np.zeros((w.n, 2), dtype=np.int64)
        sequential(
            e.state, e.blocks, e.where, e.commits, c.run_offset, c.run_start, c.run_end,
            w.prompt_tokens, w.output_tokens, w.skip_reading_prefix_cache, 16, out,
        )  # fmt: skip

    segments = build_segments(trie)
    order, inserted = lookup_order(w), inserted_tokens(w)
    reuse = reuses(
        segments.visit_offset, segments.visit_segment, segments.visit_end, w.prompt_tokens, inserted, order, 16
    )
    offset, index = by_first_use(reuse, w.n)
    scenario = scenario_from(parse(SCENARIO, "bench"), Path())
    prepared = Prepared(w)
    hardware = run._hardware(scenario)
    options = scenario.engines[0]
    record = run.simulate(scenario, options, prepared, hardware)
    times = interleaved(
        {
            "(new engine)": fresh,
            "one sequential vLLM replay, 20,000 blocks": one_replay,
            "LRU curve, all capacities": lambda: curves(w, [16], ["lru"], trie=trie),
            "optimum, one capacity": lambda: optimal_hits(reuse, offset, index, w.n, 2_900),
            "ceilings, all block sizes": lambda: ceilings(w, trie=trie),
            "full simulation, 20,000 blocks": lambda: run.simulate(scenario, options, prepared, hardware),
            "ledger": lambda: ledger(
                w, record.requests, granularity=16, rule="vllm", trie=trie, segments=prepared.segments("vllm")
            ),
            "summary": lambda: engine_summary(record, w),
        },
        rounds,
    )
    replay, simulation = "one sequential vLLM replay, 20,000 blocks", "full simulation, 20,000 blocks"
    both = [a + b for a, b in zip(times["ledger"], times["summary"], strict=True)]
    return [
        row("w10k", replay, times[replay]),
        row("w10k", "LRU curve, all capacities", times["LRU curve, all capacities"], times[replay], 1.0),
        row("w10k", "optimum, one capacity", times["optimum, one capacity"], times[replay], 1.0),
        row("w10k", "ceilings, all block sizes", times["ceilings, all block sizes"], times[replay]),
        row("w10k", simulation, times[simulation]),
        row("w10k", "ledger + summary", both, times[simulation], 0.3),
    ]


def mooncake_rows(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The Mooncake trace at 16-token blocks: 9 million references."""
    w = load_trace(Trace(path=str(path), format="mooncake"))
    trie = build_trie(w, "vllm")
    times = interleaved(
        {
            "LRU curve, all capacities, blocks of 16": lambda: curves(w, [16], ["lru"], trie=trie),
            "LRU and optimum at 33 capacities": lambda: curves(w, [16], trie=trie),
        },
        rounds,
    )
    rows = [row("mooncake", name, t) for name, t in times.items()]
    rows[0]["target_s"] = 10.0
    return rows


def row(
    workload: str, work: str, times: list[float], against: list[float] | None = None, target: float | None = None
) -> dict[str, Any]:
    """One line: median and spread in ms; the ratio of medians to `against`, and its target."""
    out: dict[str, Any] = {
        "workload": workload,
        "work": work,
        "median_ms": round(1e3 * median(times), 3),
        "min_ms": round(1e3 * min(times), 3),
        "max_ms": round(1e3 * max(times), 3),
    }
    if against is not None:
        out["ratio"] = round(median(times) / median(against), 3)
        if target is not None:
            out["target_ratio"] = target
    return out


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--workload", type=Path)
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    if not SHARED.exists() and args.workload is None:
        sys.exit("../shared is not here, and no --workload was given")
    with tempfile.TemporaryDirectory() as made:
        folder = args.workload or Path(made)
        if not (folder / "mooncake16.jsonl").exists():
            subprocess.run(
                [sys.executable, str(SHARED / "bench/w10k.py"), "10000", str(folder)],
                check=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                stdout=subprocess.DEVNULL,
            )
        rows = w10k_rows(folder, args.rounds)
        trace = SHARED / "traces/mooncake/conversation_trace.jsonl"
        if trace.exists():
            rows += mooncake_rows(trace, args.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if args.json:
        print(json.dumps({"rows": rows, "peak_mib": round(peak)}))
        return
    for r in rows:
        ratio = f"{r['ratio']:6.2f}x" if "ratio" in r else ""
        target = (
            f"<= {r['target_ratio']:g}x"
            if "target_ratio" in r
            else f"<= {r['target_s']:g} s"
            if "target_s" in r
            else ""
        )
        spread = f"({r['min_ms']:.2f}-{r['max_ms']:.2f})"
        print(f"{r['workload']:<9} {r['work']:<44}{r['median_ms']:>10.2f} ms {spread:<20}{ratio:>8} {target}")
    print(f"peak memory of the whole process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
