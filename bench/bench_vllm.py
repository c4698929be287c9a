"""vLLM's prefix cache alone, one request after another: beside the bare walk over the chain ids and, where there is one,
beside the real cache manager.

    python bench/bench_vllm.py [--rounds 9] [--workload DIR] [--json]

PREFIXSIM_BENCH_VLLM names the Python of an environment with vllm 0.33.0 (../shared/oracle/setup.sh makes one): its own
`KVCacheManager` then runs the first 1,000 requests, imports and request parsing left out.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import SHARED, Timed, finish, interleaved, row, w10k

from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.pool_kernels import sequential
from prefixsim.engines.vllm.replay import make_engine, replay_settings
from prefixsim.jit import lean_kernel
from prefixsim.scenario.workload import Trace
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Workload

BLOCK = 16
PEER_REQUESTS = 1000
PEER = """
import itertools, json, logging, sys, time
sys.path.insert(0, {folder!r})
import oracle_vllm as oracle
oracle._imports()
logging.disable(logging.CRITICAL)
options = oracle.parser().parse_args(["x", "--num-gpu-blocks", {blocks!r}])
with open({trace!r}) as file:
    rows = [json.loads(line) for line in itertools.islice(file, {count})]
started = time.perf_counter()
oracle.run(rows, options)
print("seconds", time.perf_counter() - started)
"""


@lean_kernel
def floor(run_offset, run_start, run_end, touched):  # type: ignore[no-untyped-def]
    """Walks every chain id and touches one element each: what no cache can beat."""
    total = 0
    for r in range(run_offset.shape[0] - 1):
        k = 0
        for j in range(run_offset[r], run_offset[r + 1]):
            chain = run_start[j]
            while k < run_end[j]:
                touched[chain] += 1
                chain += 1
                k += 1
        total += k
    return total


def fresh(engine: VllmEngine, blocks: int) -> VllmEngine:
    """An empty engine on the chains of another."""
    settings = replay_settings({"block_size": BLOCK, "num_gpu_blocks": blocks})
    return VllmEngine("vllm", "vllm@0.33", settings, engine.inputs, log=True)


def run_cache(w: Workload, engine: VllmEngine) -> int:
    """The whole workload through the cache; returns the blocks evicted."""
    c = engine.inputs.chains
    out = np.zeros((w.n, 2), dtype=np.int64)
    sequential(
        engine.state, engine.blocks, engine.where, engine.commits, c.run_offset, c.run_start, c.run_end,
        w.prompt_tokens, w.output_tokens, w.skip_reading_prefix_cache, BLOCK, out,
    )  # fmt: skip
    return int(engine.state[st.I_EVICTED])


def cache_alone(w: Workload, first: VllmEngine, blocks: int) -> Timed:
    """Interned: an empty pool, then the kernel."""
    return lambda: run_cache(w, fresh(first, blocks))


def from_file(path: Path, kind: str, blocks: int) -> Timed:
    """Read, intern, cache. No cache of parsed workloads."""
    block = {"block_size": BLOCK} if kind == "mooncake" else {}

    def run() -> None:
        w = load_trace(Trace(path=str(path), format=kind, cache=False, **block))
        settings = replay_settings({"block_size": BLOCK, "num_gpu_blocks": blocks})
        run_cache(w, make_engine(w, settings))

    return run


def real_manager(trace: Path, blocks: int) -> Timed | None:
    """The real manager on the first requests, in its own process; scaled to seconds a request."""
    python = os.environ.get("PREFIXSIM_BENCH_VLLM")
    folder = SHARED / "oracle"
    if not python or not folder.is_dir():
        return None
    code = PEER.format(folder=str(folder), blocks=str(blocks), trace=str(trace), count=PEER_REQUESTS)

    def run() -> float:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        found = re.search(r"seconds ([0-9.]+)", done.stdout)
        if found is None:
            raise RuntimeError(f"the peer printed no time: {done.stdout[-200:]} {done.stderr[-200:]}")
        return float(found.group(1))

    return run


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
            print("bench_vllm: no ../shared, nothing to measure on", file=sys.stderr)
            finish(rows, args.json)
            return
        tokens, hashed = folder / "tokens.jsonl", folder / "mooncake16.jsonl"
        w = load_trace(Trace(path=str(tokens)))
        first = make_engine(w, replay_settings({"block_size": BLOCK, "num_gpu_blocks": 20_000}))
        c = first.inputs.chains
        touched = np.zeros(c.n_chains, dtype=np.int32)
        functions: dict[str, Timed] = {
            "floor": lambda: floor(c.run_offset, c.run_start, c.run_end, touched) and None,
            "20000": cache_alone(w, first, 20_000),
            "2900": cache_alone(w, first, 2_900),
            "intern": lambda: build_chains(build_trie(w, "vllm"), BLOCK),
        }
        times = interleaved(functions, args.rounds)
        rows.append(row("W10k", "floor: walk the chain ids", times["floor"], requests=w.n))
        floors = times["floor"]
        rows.append(row("W10k", "intern tokens, block 16", times["intern"], requests=w.n))
        for blocks in ("20000", "2900"):
            name = f"vLLM cache alone, {int(blocks):,} blocks"
            rows.append(row("W10k", name, times[blocks], requests=w.n, at_least=600_000, unit="requests/s"))
            beside = {"against": floors, "peer": "the floor", "as_long": True, "at_most": 10.0, "unit": "x"}
            rows.append(row("W10k", f"the same beside the floor, {int(blocks):,} blocks", times[blocks], **beside))
        slow = {
            "mooncake": from_file(hashed, "mooncake", 20_000),
            "native": from_file(tokens, "native", 20_000),
        }
        times |= interleaved(slow, max(3, args.rounds // 3))
        for kind, least in (("mooncake", 90_000), ("native", 12_000)):
            name = f"read + intern + vLLM cache, {(hashed if kind == 'mooncake' else tokens).name}"
            rows.append(row("W10k", name, times[kind], requests=w.n, at_least=least, unit="requests/s"))
        for blocks in (20_000, 2_900):
            peer = real_manager(tokens, blocks)
            if peer is None:
                continue
            part = load_trace(Trace(path=str(tokens), max_requests=PEER_REQUESTS))
            base = make_engine(part, replay_settings({"block_size": BLOCK, "num_gpu_blocks": blocks}))
            got = interleaved({"ours": cache_alone(part, base, blocks), "real": peer}, 2, warm=0)
            name = f"vLLM cache alone, {blocks:,} blocks, first {PEER_REQUESTS:,}"
            rows.append(row("W10k", name, got["ours"], requests=part.n, against=got["real"], peer="vLLM's manager"))
    finish(rows, args.json)


if __name__ == "__main__":
    main()
