"""Sweeps on one worker process and on two, whole commands, start of processes included: 64 points over one generated workload,
and 16 over the Mooncake trace.

python bench/bench_sweep.py [--rounds 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import SHARED, Timed, finish, interleaved, row

BASE = """
name: base
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 20}
  requests: 8000
  output_tokens: 100
  templates:
    - {name: shared, weight: 6, segments: [{shared: system, tokens: 1600, variants: 50}, {unique: user, tokens: 400}]}
    - {name: alone, weight: 4, segments: [{unique: prompt, tokens: 2000}]}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm}]
"""
STUDY = """
name: bench
base: base.yaml
axes:
  - {key: engines.vllm.block_size, values: [16, 32, 64, 128]}
  - {key: engines.vllm.num_gpu_blocks_override, values: [BLOCKS]}
""".replace("BLOCKS", ", ".join(str(4_000 + 500 * k) for k in range(16)))
MOONCAKE_BASE = """
name: base
workload: {trace: {path: "PATH", format: mooncake}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm}]
oversized: reject
"""
MOONCAKE_STUDY = """
name: bench
base: base.yaml
axes:
  - {key: engines.vllm.block_size, values: [16, 32, 64, 128]}
  - {key: hardware.gpu, values: [a100-sxm-80g, h100-sxm-80g, h200, b200]}
"""
RUN = [sys.executable, "-c", "from prefixsim.cli import main; main()"]


def sweep(folder: Path, workers: int, base: str, study: str, points: int) -> Timed:
    """The command into an empty folder; checks that all points are there."""
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(study)
    (folder / "base.yaml").write_text(base)

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            options = ["--workers", str(workers), "--out", out, "--json", "--quiet"]
            done = subprocess.run(
                [*RUN, "sweep", "study.yaml", *options], cwd=folder, capture_output=True, text=True, check=True
            )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(found) != points or any("error" in p for p in found):
            raise RuntimeError(f"{len(found)} points: {done.stderr[-300:]}")

    return run


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    studies = [("generated", BASE, STUDY, 64, 8_000, 1.7)]
    trace = SHARED / "traces/mooncake/conversation_trace.jsonl"
    if trace.exists():
        studies.append(("mooncake", MOONCAKE_BASE.replace("PATH", str(trace)), MOONCAKE_STUDY, 16, 12_031, None))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, base, study, points, requests, target in studies:
            place = Path(folder) / name
            times = interleaved({n: sweep(place, int(n), base, study, points) for n in "12"}, args.rounds, warm=0)
            work = f"sweep of {points} points"
            rows.append(row(name, f"{work}, 1 worker", times["1"], requests=points * requests))
            rows.append(
                row(
                    name, f"{work}, 2 workers", times["2"], requests=points * requests, against=times["1"],
                    peer="1 worker", at_least=target, unit="x",
                )
            )  # fmt: skip
    finish(rows, args.json)


if __name__ == "__main__":
    main()
