"""What size costs: requests of one replica, replicas of a fleet. CPU seconds and memory, each in a process of its own.

    python bench/scale.py [--requests 1000000] [--replicas 64] [--json]

docs/scale.md is written from what this prints.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_full import MILLION

from prefixsim.pipeline.prepare import prepare, replica_hardware
from prefixsim.pipeline.simulate import simulate
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.strict_yaml import parse

RATE_PER_REPLICA = 20.0
FLEET_REQUESTS = 50_000


def one(n: int, replicas: int, router: str) -> dict[str, Any]:
    """One run in this process, after a small one that loads the kernels."""
    for size in (1000, n):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        text = MILLION % (RATE_PER_REPLICA * replicas, size)
        s = scenario_from(parse(f"{text}replicas: {replicas}\nrouter: {router}\n", "scale"), Path())
        hardware = replica_hardware(s)
        start = time.process_time()
        prepared = prepare(s)
        chains = prepared.chains("vllm", 16).n_chains
        read = time.process_time() - start
        record = simulate(s, s.engines[0], prepared, hardware)
        spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    steps = sum(r.totals["steps"] for r in record.replicas)
    return {
        "requests": n, "replicas": replicas, "router": router, "cpu_s": spent, "prepare_s": read,
        "us_per_request": 1e6 * spent / n, "steps_per_request": steps / n, "chains_per_request": chains / n,
        "peak_mib": peak, "bytes_per_request": (peak - before) * 2**20 / n, "events": record.events,
        "saturated": record.saturated,
    }  # fmt: skip


def main() -> None:
    """Runs and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--replicas", type=int, default=64)
    options.add_argument("--json", action="store_true")
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        print(json.dumps(one(int(args.one[0]), int(args.one[1]), args.one[2])))
        return
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= args.requests]
    fleets = [r for r in (2, 4, 16, 64, 256) if r <= args.replicas]
    wanted = [(n, 1, "round_robin") for n in sizes]
    wanted += [(FLEET_REQUESTS, r, router) for router in ("round_robin", "least_loaded", "cache_aware") for r in fleets]
    for n, replicas, router in wanted:
        command = [sys.executable, __file__, "--one", str(n), str(replicas), router]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if args.json:
            print(json.dumps(found), flush=True)
            continue
        print(
            f"{n:>10,} requests {replicas:>4} replicas {router:<12} {found['cpu_s']:8.2f} CPU s "
            f"{found['us_per_request']:7.2f} µs a request {found['steps_per_request']:6.2f} steps a request "
            f"{found['peak_mib']:7,.0f} MiB{'  saturated' if found['saturated'] else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
