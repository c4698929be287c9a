"""The full simulation, reading and interning included, beside the fastest peer; a million requests; compile and start.

    python bench/bench_full.py [--rounds 5] [--workload DIR] [--only NAME] [--json]

Names: vllm, sglang, mooncake, fleet, million, start. The peer runs where PREFIXSIM_BENCH_DYNOSIM names its Python.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import SHARED, Timed, dynosim, finish, interleaved, row, w10k

from prefixsim.pipeline.prepare import prepare, replica_hardware
from prefixsim.pipeline.simulate import simulate
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.strict_yaml import parse

BASE = """
name: bench
workload: {{trace: {{path: "{path}", format: mooncake, block_size: {block}, time_scale: {scale}, cache: false}}}}
hardware: {{gpu: h100-sxm-80g, model: llama-3.1-8b}}
engines: [{engine}]
replicas: {replicas}
router: {router}
oversized: reject
"""
VLLM = "{{name: e, kind: vllm, block_size: {block}, num_gpu_blocks_override: {blocks}}}"
SGLANG = "{{name: e, kind: sglang, page_size: {block}, max_total_tokens: {tokens}}}"


def scenario(
    path: Path,
    engine: str,
    block: int,
    blocks: int,
    *,
    scale: float = 1.0,
    replicas: int = 1,
    router: str = "round_robin",
) -> Scenario:
    """The bench's scenario on one trace."""
    one = engine.format(block=block, blocks=blocks, tokens=blocks * block)
    text = BASE.format(path=path, block=block, scale=scale, engine=one, replicas=replicas, router=router)
    return scenario_from(parse(text, "bench"), Path())


def simulation(s: Scenario) -> Timed:
    """Reads, interns and simulates: everything that a run does but analysis and writing."""
    hardware = replica_hardware(s)

    def run() -> None:
        simulate(s, s.engines[0], prepare(s), hardware)

    return run


def beside(
    name: str, work: str, ours: Timed, peer: Timed | None, rounds: int, requests: int, target: float
) -> dict[str, Any]:
    """One row, with the peer in turn where there is one."""
    functions = {"ours": ours} | ({"peer": peer} if peer else {})
    times = interleaved(functions, rounds)
    against = times.get("peer")
    return row(name, work, times["ours"], requests=requests, against=against, peer="DynoSim", at_least=target, unit="x")


def engine_rows(folder: Path, kind: str, rounds: int) -> list[dict[str, Any]]:
    """W10k in 16-token blocks on one replica."""
    trace = folder / "mooncake16.jsonl"
    out = []
    if kind == "vllm":
        for blocks, speed, target in ((20_000, 1.0, 5.0), (2_900, 1.0, 6.0), (20_000, 4.0, 7.0)):
            s = scenario(trace, VLLM, 16, blocks, scale=1 / speed)
            work = f"vLLM, {blocks:,} blocks" + (f", {speed:g}x arrivals" if speed != 1 else "")
            peer = dynosim(trace, 16, blocks, "vllm", speedup=speed)
            out.append(beside("w10k", work, simulation(s), peer, rounds, 10_000, target))
    else:
        s = scenario(trace, SGLANG, 16, 20_000)
        peer = dynosim(trace, 16, 20_000, "sglang")
        out.append(beside("w10k", "SGLang, page 16, 320,000 tokens", simulation(s), peer, rounds, 10_000, 5.0))
    return out


def mooncake_rows(rounds: int) -> list[dict[str, Any]]:
    """The Mooncake conversation trace at 4,096 blocks of 512."""
    trace = SHARED / "traces/mooncake/conversation_trace.jsonl"
    if not trace.exists():
        return []
    s = scenario(trace, VLLM, 512, 4_096)
    peer = dynosim(trace, 512, 4_096, "vllm")
    return [beside("mooncake", "vLLM, 4,096 blocks of 512", simulation(s), peer, rounds, 12_031, 5.0)]


def fleet_rows(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Four replicas behind a router that looks at state."""
    trace = folder / "mooncake16.jsonl"
    s = scenario(trace, VLLM, 16, 5_000, replicas=4, router="cache_aware")
    peer = dynosim(trace, 16, 5_000, "vllm", 4, "kv_router")
    return [beside("w10k", "4 replicas, cache-aware router", simulation(s), peer, 2 * rounds, 10_000, 15.0)]


MILLION = """
name: million
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: %g}
  requests: %d
  templates:
    - {name: shared, weight: 6, segments: [{shared: system, tokens: 1600, variants: 50}, {unique: user, tokens: {lognormal: {median: 300, p95: 1000}}}]}
    - {name: alone, weight: 4, segments: [{unique: prompt, tokens: {lognormal: {median: 1500, p95: 4500}}}]}
  output_tokens: 100
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: e, kind: vllm}]
"""


CHILD = """
import sys, time, resource
sys.path.insert(0, sys.argv[1])
import bench_full
for n in (1000, int(sys.argv[2])):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for _ in range(int(sys.argv[3])):
        wall, cpu, saturated = bench_full.million(n)
        print(n, wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before, int(saturated))
"""


def million(n: int) -> tuple[float, float, bool]:
    """Generates, interns and simulates: (wall s, CPU s, whether the engine could not keep up)."""
    s = scenario_from(parse(MILLION % (20.0, n), "million"), Path())
    hardware = replica_hardware(s)
    wall, cpu = time.perf_counter(), time.process_time()
    record = simulate(s, s.engines[0], prepare(s), hardware)
    return time.perf_counter() - wall, time.process_time() - cpu, record.saturated


def million_rows() -> list[dict[str, Any]]:
    """10^4, 10^5 and 10^6 requests, generated, interned and simulated, each in a process of its own for its memory. Growth
    is told in CPU time: minutes lie between its two sides."""
    out = []
    cpu: dict[int, list[float]] = {}
    for n, times in ((10_000, 5), (100_000, 2), (1_000_000, 1)):
        command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(n), str(times)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [[float(x) for x in line.split()] for line in done.stdout.splitlines()]
        mine = [line for line in lines if line[0] == n]
        cpu[n] = [line[2] / n for line in mine]
        mib, before = mine[-1][3], mine[0][4]
        work = f"{n:,} requests, generated, interned, simulated"
        line = row(
            "generated", work, [x[1] for x in mine], requests=n, at_most=20.0 if n == 1_000_000 else None, unit="s"
        )
        line |= {"peak_mib": round(mib), "bytes_per_request": round((mib - before) * 2**20 / n)}
        line["saturated"] = bool(mine[-1][5])
        line["work"] += f" ({mib:,.0f} MiB)"
        if n == 1_000_000:
            line["target"] += ", <= 2000 MiB"
            line["met"] = line["met"] and mib <= 2000
        out.append(line)
    large, small = cpu[1_000_000], [median(cpu[10_000])]
    growth = row(
        "generated", "CPU time of 10,000 requests among 1,000,000", [10_000 * t for t in large],
        against=[10_000 * t for t in small], peer="alone", as_long=True, at_most=1.2, unit="x",
    )  # fmt: skip
    return [*out, growth]


def start_rows() -> list[dict[str, Any]]:
    """Cold compile of every kernel, and a warm quickstart, whole processes."""
    out = []
    run = [sys.executable, "-c", "from prefixsim.cli import main; main()"]
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PREFIXSIM_CACHE_DIR": cache}
        for work, command, target, rounds in (
            ("cold: every kernel compiled (warmup)", [*run, "warmup"], 45.0, 1),
            ("warm: run quickstart", [*run, "run", "quickstart", "--quiet", "--out", f"{cache}/run"], 2.5, 3),
            ("prefixsim --help", [*run, "--help"], 0.4, 5),
        ):
            times = []
            for _ in range(rounds):
                started = time.perf_counter()
                subprocess.run(command, env=env, capture_output=True, check=True, cwd=cache)
                times.append(time.perf_counter() - started)
            out.append(row("process", work, times, at_most=target, unit="s"))
    return out


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", type=Path)
    options.add_argument("--only", action="append", default=[])
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    wanted = args.only or ["vllm", "sglang", "mooncake", "fleet", "million", "start"]
    rows: list[dict[str, Any]] = []
    with w10k(args.workload) as folder:
        for name in wanted:
            if name in ("vllm", "sglang", "fleet") and folder is None:
                print(f"{name}: ../shared is not here and no --workload was given: left out", file=sys.stderr)
            elif name in ("vllm", "sglang") and folder is not None:
                rows += engine_rows(folder, name, args.rounds)
            elif name == "fleet" and folder is not None:
                rows += fleet_rows(folder, args.rounds)
            elif name == "mooncake":
                rows += mooncake_rows(args.rounds)
            elif name == "million":
                rows += million_rows()
            elif name == "start":
                rows += start_rows()
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", file=sys.stderr)
    finish(rows, args.json)


if __name__ == "__main__":
    main()
