"""The analysis beside what it is measured against: curves beside one replay, ledger and summary beside the simulation.

    python bench/bench_curves.py [--rounds 9] [--workload DIR] [--json]

Interning is not part of any row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import SHARED, finish, interleaved, row, w10k

from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.curve_kernels import by_first_use, optimal_hits, reuses
from prefixsim.analysis.curves import curves
from prefixsim.analysis.ledger import ledger
from prefixsim.analysis.segments import build_segments, inserted_tokens, lookup_order
from prefixsim.analysis.summary import engine_summary
from prefixsim.engines.vllm.pool_kernels import sequential
from prefixsim.engines.vllm.replay import make_engine, replay_settings
from prefixsim.pipeline.prepare import Prepared, replica_hardware
from prefixsim.pipeline.simulate import simulate
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.strict_yaml import parse
from prefixsim.scenario.workload import Trace
from prefixsim.workload.intern import build_trie
from prefixsim.workload.load import load_trace

SCENARIO = """
name: bench
workload: {trace: {path: x}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm, num_gpu_blocks_override: 20000}]
"""


def w10k_rows(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Curve against one replay; ledger, request rows and summary against the simulation."""
    w = load_trace(Trace(path=str(folder / "mooncake16.jsonl"), format="mooncake"))
    trie = build_trie(w, "vllm")
    engines = []

    def fresh() -> None:
        engines[:] = [
            make_engine(w, replay_settings({"num_gpu_blocks": 20_000, "block_size": 16, "mode": "sequential"}))
        ]

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
    hardware = replica_hardware(scenario)
    options = scenario.engines[0]
    record = simulate(scenario, options, prepared, hardware)
    times = interleaved(
        {
            "(new engine)": fresh,
            "replay": one_replay,
            "curve": lambda: curves(w, [16], ["lru"], segments=build_segments(trie)),
            "optimum": lambda: optimal_hits(reuse, offset, index, w.n, 2_900),
            "ceilings": lambda: ceilings(w, trie=trie),
            "simulation": lambda: simulate(scenario, options, prepared, hardware),
            "ledger": lambda: ledger(
                w, record.requests, granularity=16, rule="vllm", trie=trie, segments=prepared.segments("vllm")
            ),
            "summary": lambda: engine_summary(record, w),
        },
        rounds,
    )
    replay, simulation = times["replay"], times["simulation"]
    after = [a + b for a, b in zip(times["ledger"], times["summary"], strict=True)]
    one = {"against": replay, "peer": "one replay", "as_long": True, "requests": w.n}
    return [
        row("W10k", "one sequential vLLM replay, 20,000 blocks", replay, requests=w.n),
        row("W10k", "LRU curve, all capacities", times["curve"], at_most=1.0, unit="x", **one),
        row("W10k", "optimum, one capacity", times["optimum"], at_most=1.0, unit="x", **one),
        row("W10k", "ceilings, all block sizes", times["ceilings"], **one),
        row("W10k", "vLLM simulated, 20,000 blocks, interned", simulation, requests=w.n),
        row(
            "W10k", "ledger and summary on top of it", after, requests=w.n, against=simulation,
            peer="the simulation", as_long=True, at_most=0.3, unit="x",
        ),
    ]  # fmt: skip


def mooncake_rows(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The Mooncake trace at 16-token blocks: 9 million references."""
    w = load_trace(Trace(path=str(path), format="mooncake"))
    trie = build_trie(w, "vllm")
    times = interleaved(
        {
            "lru": lambda: curves(w, [16], ["lru"], segments=build_segments(trie)),
            "both": lambda: curves(w, [16], segments=build_segments(trie)),
        },
        rounds,
    )
    return [
        row("Mooncake", "LRU curve, all capacities, blocks of 16", times["lru"], requests=w.n, at_most=10.0, unit="s"),
        row("Mooncake", "LRU and optimum at 33 capacities", times["both"], requests=w.n),
    ]


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--workload", type=Path)
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    with w10k(args.workload) as folder:
        if folder is None:
            print("bench_curves: no ../shared and no --workload: nothing to measure on", file=sys.stderr)
        else:
            rows += w10k_rows(folder, args.rounds)
    trace = SHARED / "traces/mooncake/conversation_trace.jsonl"
    if trace.exists():
        rows += mooncake_rows(trace, max(3, args.rounds // 3))
    finish(rows, args.json)


if __name__ == "__main__":
    main()
