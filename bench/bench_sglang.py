"""SGLang's radix tree alone, one request after another; evict calls by number of leaves; the timed loop; and, where there
is one, the real tree.

    python bench/bench_sglang.py [--rounds 9] [--workload DIR] [--json]

PREFIXSIM_BENCH_SGLANG names the Python of an environment with sglang 0.5.23 (../shared/oracle/setup.sh makes one): its own
tree (Rust core) then runs the first 1,000 requests of tokens.jsonl, imports and request parsing left out.
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

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang.arenas import Arenas
from prefixsim.engines.sglang.engine import SglangEngine, build
from prefixsim.engines.sglang.facts import settle_options
from prefixsim.engines.sglang.replay import checked, options_of, run_windows
from prefixsim.engines.sglang.state import ROOT, S_AVAILABLE, S_PAGE, S_PAGES
from prefixsim.engines.sglang.tree_kernels import insert, make_room, settle
from prefixsim.hardware.costs import step_costs
from prefixsim.hardware.load import load_gpu, load_model
from prefixsim.hardware.steptime import HostCosts, StepCosts
from prefixsim.jit import lean_kernel
from prefixsim.records import NEVER, new_request_rows
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.workload import Trace
from prefixsim.workload.intern import ChainIndex, build_chains, build_trie
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Source, Workload, make_workload

POOL = 320_000
PEER_REQUESTS = 1000
EVICTIONS = 20_000
PEER = """
import itertools, json, sys, time
sys.path.insert(0, {folder!r})
import oracle_sglang as oracle
with open({trace!r}) as file:
    rows = [json.loads(line) for line in itertools.islice(file, {count})]
started = time.perf_counter()
oracle.run(rows, page_size={page}, capacity={pool})
print("seconds", time.perf_counter() - started)
"""


def tree_alone(w: Workload, chains: ChainIndex, policy: str = "lru") -> Timed:
    """An empty pool, then every request to its end."""
    page = chains.granularity
    config = checked({"page_size": page, "max_total_tokens": POOL, "radix_eviction_policy": policy})
    settings = settle_options(options_of(config), POOL, 0.0, golden=True)
    order = np.arange(w.n)

    def run() -> None:
        inputs = EngineInputs(
            workload=w,
            chains=chains,
            costs=StepCosts.steps(),
            capacity=POOL,
            rows=new_request_rows(w.n),
            awaited=np.zeros(w.n, dtype=np.bool_),
        )
        run_windows(SglangEngine("s", "sglang", settings, inputs, extra=True), order, 1, alone=True)

    return run


def timed_loop(w: Workload, chains: ChainIndex, capacity: int, costs: StepCosts) -> Timed:
    """Full engine with step times, arrivals included, one replica."""
    options = SglangOptions(name="s", page_size=chains.granularity)
    order = np.argsort(w.arrival_ns, kind="stable")

    def run() -> None:
        inputs = EngineInputs(
            workload=w,
            chains=chains,
            costs=costs,
            capacity=capacity,
            rows=new_request_rows(w.n),
            awaited=np.zeros(w.n, dtype=np.bool_),
            gpu_memory_gib=80.0,
        )
        engine = build(options, inputs)
        engine.submit(order, w.arrival_ns[order])
        engine.advance(NEVER)
        engine.record()

    return run


@lean_kernel
def evict_and_insert(scalars, nodes, table, heap, run_offset, run_start, run_end, first, count, rows):  # type: ignore[no-untyped-def]
    """`count` times: make room for one page in a full tree of one-page leaves, put another leaf in."""
    for i in range(count):
        make_room(scalars, nodes, table, heap, 1)
        row = (first + i) % rows
        matched, node = insert(scalars, nodes, table, heap, run_offset, run_start, run_end, ROOT, row, 1, 0, 0)
        settle(scalars, nodes, heap, node)
        scalars[S_AVAILABLE] -= 1 - matched


def evict_calls(leaves: int) -> Timed:
    """A tree of so many leaves below the root, then `EVICTIONS` evict calls, each followed by an insert."""
    rows = 2 * leaves + 2
    w = make_workload(
        source=Source(kind="bench"),
        prompt_tokens=np.ones(rows, dtype=np.int64),
        output_tokens=np.ones(rows, dtype=np.int64),
        atom_offset=np.arange(rows + 1) * 2,
        prompt_atoms=np.ones(rows, dtype=np.int64),
        atom_id=np.arange(2 * rows),
        atom_tokens=np.ones(2 * rows, dtype=np.int32),
    )
    arenas = Arenas(leaves, build_chains(build_trie(w, "sglang"), 1), dfs=False, keep_commits=False)
    arenas.grow_nodes(leaves + 2)
    arenas.scalars[S_PAGE] = 1
    arenas.scalars[[S_PAGES, S_AVAILABLE]] = leaves
    evict_and_insert(*arenas.tree_args(), 0, leaves, rows)
    at = [leaves]

    def run() -> None:
        evict_and_insert(*arenas.tree_args(), at[0], EVICTIONS, rows)
        at[0] += EVICTIONS

    return run


def real_tree(trace: Path, page: int) -> Timed | None:
    """The real tree on the first requests, in its own process."""
    python = os.environ.get("PREFIXSIM_BENCH_SGLANG")
    folder = SHARED / "oracle"
    if not python or not folder.is_dir():
        return None
    code = PEER.format(folder=str(folder), trace=str(trace), count=PEER_REQUESTS, page=page, pool=POOL)

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
    sizes = (100, 10_000, 100_000)
    times = interleaved({str(n): evict_calls(n) for n in sizes}, args.rounds)
    for n in sizes:
        name = f"evict + insert, {n:,} leaves, x{EVICTIONS:,}"
        flat = {
            "against": times[str(sizes[0])],
            "peer": f"{sizes[0]} leaves",
            "at_most": 2.0,
            "unit": "x",
            "as_long": True,
        }
        rows.append(row("leaves", name, times[str(n)], requests=EVICTIONS, **(flat if n > sizes[0] else {})))
    with w10k(args.workload) as folder:
        if folder is None:
            print("bench_sglang: no ../shared, only the leaves were measured", file=sys.stderr)
            finish(rows, args.json)
            return
        hashed, tokens = folder / "mooncake16.jsonl", folder / "tokens.jsonl"
        h = load_trace(Trace(path=str(hashed), format="mooncake", block_size=16))
        t = load_trace(Trace(path=str(tokens)))
        h16 = build_chains(build_trie(h, "sglang"), 16)
        trie = build_trie(t, "sglang")
        t1, t16 = build_chains(trie, 1), build_chains(trie, 16)
        costs = step_costs(
            load_gpu("h100-sxm-80g"),
            load_model("llama-3.1-8b"),
            dtype="bfloat16",
            kv_bytes=2.0,
            tp=1,
            family="sglang",
            host=HostCosts(),
        )
        functions: dict[str, Timed] = {
            "h16": tree_alone(h, h16),
            "t16": tree_alone(t, t16),
            "t1": tree_alone(t, t1),
            "t1 mru": tree_alone(t, t1, "mru"),
            "full": timed_loop(h, h16, POOL, costs),
            "tight": timed_loop(h, h16, 46_400, costs),
        }
        peers = {f"peer {page}": real_tree(tokens, page) for page in (16, 1)}
        functions |= {name: f for name, f in peers.items() if f is not None}
        times = interleaved(functions, args.rounds)
        n = h.n
        rate = {"requests": n, "unit": "requests/s"}
        rows.append(row("W10k", "radix alone, page 16, mooncake16", times["h16"], at_least=700_000, **rate))
        rows.append(row("W10k", "radix alone, page 16, tokens", times["t16"], at_least=700_000, **rate))
        rows.append(row("W10k", "radix alone, page 1, tokens", times["t1"], at_least=350_000, **rate))
        rows.append(row("W10k", "radix alone, page 1, tokens, mru", times["t1 mru"], at_least=350_000, **rate))
        rows.append(row("W10k", "timed loop, page 16, 320,000 tokens", times["full"], at_least=150_000, **rate))
        rows.append(row("W10k", "timed loop, page 16, 46,400 tokens", times["tight"], at_least=150_000, **rate))
        for page in (16, 1):
            if f"peer {page}" in times:
                name = f"SGLang 0.5.23's tree, page {page}, {PEER_REQUESTS:,} requests"
                rows.append(row("W10k", name, times[f"peer {page}"], requests=PEER_REQUESTS))
    finish(rows, args.json)


if __name__ == "__main__":
    main()
