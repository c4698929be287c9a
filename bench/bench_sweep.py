"""A sweep of 64 points over one workload, on one worker process and on two: whole commands, start of processes included.

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

from harness import Timed, finish, interleaved, row

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
RUN = [sys.executable, "-c", "from prefixsim.cli import main; main()"]


def sweep(folder: Path, workers: int) -> Timed:
    """The command into an empty folder; checks that all points are there."""
    (folder / "study.yaml").write_text(STUDY)
    (folder / "base.yaml").write_text(BASE)

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            options = ["--workers", str(workers), "--out", out, "--json", "--quiet"]
            done = subprocess.run(
                [*RUN, "sweep", "study.yaml", *options], cwd=folder, capture_output=True, text=True, check=True
            )
        points = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(points) != 64 or any("error" in p for p in points):
            raise RuntimeError(f"{len(points)} points: {done.stderr[-300:]}")

    return run


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = interleaved({str(n): sweep(Path(folder), n) for n in (1, 2)}, args.rounds, warm=0)
    rows: list[dict[str, Any]] = [
        row("generated", "sweep of 64 points, 1 worker", times["1"], requests=64 * 8_000),
        row(
            "generated", "sweep of 64 points, 2 workers", times["2"], requests=64 * 8_000, against=times["1"],
            peer="1 worker", at_least=1.7, unit="x",
        ),
    ]  # fmt: skip
    finish(rows, args.json)


if __name__ == "__main__":
    main()
