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
from typing import Any

from harness import SHARED, Timed, dynosim, finish, interleaved, row, w10k

from prefixsim import pipeline
from prefixsim.prepare import prepare
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
    hardware = pipeline._hardware(s)

    def run() -> None:
        pipeline.simulate(s, s.engines[0], prepare(s), hardware)

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
    return [beside("w10k", "4 replicas, cache-aware router", simulation(s), peer, max(rounds // 2, 2), 10_000, 15.0)]


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


def million_rows() -> list[dict[str, Any]]:
    """10^4, 10^5 and 10^6 requests, generated, interned and simulated, each in a process of its own for its memory."""
    out = []
    code = (
        "import sys,time,resource\nsys.path.insert(0, sys.argv[3])\nimport bench_full as b\n"
        "from pathlib import Path\nfrom prefixsim import pipeline\nfrom prefixsim.prepare import prepare\n"
        "from prefixsim.scenario.load import scenario_from\nfrom prefixsim.scenario.strict_yaml import parse\n"
        "def go(n):\n s=scenario_from(parse(b.MILLION % (float(sys.argv[2]), n),'m'),Path())\n h=pipeline._hardware(s)\n"
        " t=time.perf_counter()\n p=prepare(s)\n r=pipeline.simulate(s,s.engines[0],p,h)\n return time.perf_counter()-t, r.saturated\n"
        "go(1000)\nd,sat=go(int(sys.argv[1]))\nprint(d, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024, sat)"
    )
    per: dict[int, float] = {}
    for n in (10_000, 100_000, 1_000_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(n), "20", str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, mib, saturated = done.stdout.split()
        per[n] = float(seconds) / n
        line = row("generated", f"{n:,} requests, full simulation", [float(seconds)], requests=n)
        line["peak_mib"] = round(float(mib))
        line["saturated"] = saturated == "True"
        if n == 1_000_000:
            line |= {"target": "<= 20 s, <= 2 GB", "met": float(seconds) <= 20 and float(mib) <= 2000}
            line["work"] += f" ({float(mib):,.0f} MiB, {per[n] / per[10_000]:.2f}x the time a request of 10,000)"
        out.append(line)
    return out


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
