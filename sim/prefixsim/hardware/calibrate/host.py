"""`calibrate --host`: what block hashing and radix-tree work cost on this CPU, single-threaded CPU time.

Hashing is what an engine does at a request's creation: SHA-256 over each block's tokens, chained to the block before. The
tree is our own plain-Python twin of SGLang's (given by the caller): a stand-in of the same algorithm, not SGLang's code;
its per-node costs are those of a Python tree. Node memory is read off the same tree.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import platform
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.hardware import profiles as pr
from prefixsim.hardware.calibrate.write import number, profile_path, to_yaml
from prefixsim.paths import make_folder, write_whole

PROMPT = 8192
LEAVES = 2000


def calibrate_host(out: Path, name: str, budget_s: float, json_: bool, make_tree: Callable[[int], Any]) -> None:
    """The command. make_tree(pages) gives an empty tree with `insert`, `match`, `make_room` and `work`."""
    import datetime

    today = datetime.date.today().isoformat()
    deadline = time.monotonic() + budget_s
    path = profile_path(out, "hosts", name)
    make_folder(path.parent)
    rows: list[tuple[str, float, float, float, str]] = []
    for block in (16, 64, 128):
        found = _quantiles(functools.partial(hash_blocks, block), PROMPT, deadline)
        rows.append(
            (f"hash_ns_per_token_block{block}", *found, f"SHA-256 over {block}-token blocks, chained, {PROMPT} tokens")
        )
    for key, nanoseconds, what in tree_costs(make_tree, deadline):
        low, mid, high = np.quantile(nanoseconds, [0.1, 0.5, 0.9])
        rows.append((key, float(mid), float(low), float(high), what))
    size = node_bytes(make_tree)
    rows.append(("tree_node_bytes", size, size, size, "plain-Python tree, memory traced"))
    numbers = {key: number(mid, "measured", f"this CPU: {what}", today) for key, mid, _, _, what in rows}
    profile = pr.HostProfile(
        name=name,
        title=f"{platform.processor() or platform.machine()}, measured by calibrate --host",
        provenance=pr.Provenance(
            gpu="none",
            kernel_stack=f"CPython {platform.python_version()}, hashlib; prefixsim's plain-Python tree (not an engine's code)",
        ),
        **numbers,
    )
    raw = path.with_suffix(".raw.csv")
    lines = ["number,median,p10,p90,what", *(f'{k},{m:.3f},{a:.3f},{b:.3f},"{w}"' for k, m, a, b, w in rows)]
    write_whole(raw, "\n".join(lines) + "\n", folders=True)
    write_whole(
        path, to_yaml(profile, "Measured by: prefixsim calibrate --host. Tree costs are those of a tree in Python.")
    )
    if json_:
        print(json.dumps({"profile": str(path), "raw": str(raw), **{k: round(m, 3) for k, m, _, _, _ in rows}}))
        return
    for key, mid, low, high, what in rows:
        print(f"{key:<28} {mid:10.1f}  (p10 {low:.1f}, p90 {high:.1f})  {what}")
    print(f"profile: {path}")


def hash_blocks(block: int) -> None:
    """Hashes a prompt's full blocks, each chained to the one before."""
    parent = b"\0" * 32
    for at in range(0, PROMPT, block):
        key = (parent, tuple(_TOKENS[at : at + block]), None)
        parent = hashlib.sha256(pickle.dumps(key, protocol=5)).digest()


_TOKENS = [random.Random(1).randrange(1000, 120_000) for _ in range(PROMPT)]


def _quantiles(call: Callable[[], None], units: int, deadline: float) -> tuple[float, float, float]:
    """(median, p10, p90) ns a unit."""
    call()
    times = []
    for _ in range(15):
        begun = time.thread_time_ns()
        call()
        times.append((time.thread_time_ns() - begun) / units)
        if time.monotonic() > deadline and len(times) >= 3:
            break
    low, mid, high = np.quantile(times, [0.1, 0.5, 0.9])
    return float(mid), float(low), float(high)


def _rows(count: int, seed: int) -> list[list[int]]:
    """Prompts of 64 pages over shared prefixes: 40 templates of 32 pages, then pages of their own (ids as chains give)."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        template, shared = rng.randrange(40), rng.randrange(8, 33)
        head = [template * 64 + p for p in range(shared)]
        out.append(head + [1_000_000 + i * 64 + p for p in range(64 - shared)])
    return out


def tree_costs(make_tree: Callable[[int], Any], deadline: float) -> list[tuple[str, list[float], str]]:
    """(profile key, ns a node in several rounds, what was timed)."""
    insert, match, split, evict = [], [], [], []
    for round_ in range(5):
        tree = make_tree(1 << 24)
        rows = _rows(LEAVES, round_)
        begun = time.thread_time_ns()
        for row in rows:
            tree.insert(row, len(row), 0, 0)
        took = time.thread_time_ns() - begun
        splits = tree.work["split"]
        insert.append(took / max(1, tree.work["insert"]))
        before = tree.work["match"]
        begun = time.thread_time_ns()
        for row in rows:
            tree.match(row, len(row))
        match.append((time.thread_time_ns() - begun) / max(1, tree.work["match"] - before))
        halves = [row[: 33 + i % 30] for i, row in enumerate(rows)]
        before = tree.work["split"]
        begun = time.thread_time_ns()
        for row in halves:
            tree.match(row, len(row))
        done = tree.work["split"] - before
        split.append((time.thread_time_ns() - begun) / max(1, done))
        assert splits + done > 0
        tree.available = 0
        begun = time.thread_time_ns()
        tree.make_room(1)
        evict.append((time.thread_time_ns() - begun) / LEAVES)
        if time.monotonic() > deadline and round_ >= 1:
            print("budget used up: fewer rounds", file=sys.stderr)
            break
    return [
        ("match_ns_per_node", match, "plain-Python tree, match of a resident prompt"),
        ("insert_ns_per_node", insert, "plain-Python tree, insertion with the splits it needs"),
        ("split_ns_per_node", split, "plain-Python tree, match that ends inside a node and splits it"),
        ("evict_ns_per_node", evict, f"plain-Python tree, one eviction among {LEAVES} leaves, a leaf"),
    ]


def node_bytes(make_tree: Callable[[int], Any]) -> float:
    """Memory of one node without its page ids' integers, bytes."""
    rows = _rows(500, 9)
    tracemalloc.start()
    tree = make_tree(1 << 24)
    for row in rows:
        tree.insert(row, len(row), 0, 0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / max(1, tree.n_nodes)
