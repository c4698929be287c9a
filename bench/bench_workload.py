"""Reading, interning, generating: what happens before a simulation. Reads are not served from the cache of kept parses.

python bench/bench_workload.py [--rounds 5] [--w10k FOLDER] [--json] [--requests 1000000]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

from harness import SHARED, finish, interleaved, row, w10k

from prefixsim.scenario.workload import WORKLOAD, Trace
from prefixsim.workload.cache import load as load_kept
from prefixsim.workload.cache import save
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.load import load_trace, load_workload


def read_rows(
    path: Path, workload: str, granularity: int, rounds: int, targets: dict[str, float]
) -> list[dict[str, Any]]:
    """Reading with validation, then interning, then chain ids; and the kept parse."""
    options = Trace(path=str(path), cache=False)
    w = load_trace(options)
    trie = build_trie(w, "vllm")

    def all_of_it() -> None:
        build_chains(build_trie(load_trace(options), "vllm"), granularity)

    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.workload"
        save(kept, w)
        times = interleaved(
            {
                "read": lambda: load_trace(options),
                "intern": lambda: build_trie(w, "vllm"),
                "chains": lambda: build_chains(trie, granularity),
                "all": all_of_it,
                "kept": lambda: load_kept(kept),
            },
            rounds,
        )
    return [
        row(workload, f"read {path.name}, validated", times["read"], requests=w.n),
        row(workload, "intern", times["intern"], requests=w.n),
        row(workload, f"chain ids of {granularity} tokens", times["chains"], requests=w.n),
        row(workload, "read + intern + chain ids", times["all"], requests=w.n, at_most=targets[path.name], unit="s"),
        row(
            workload,
            "a kept parse instead of reading (checksums, without hashing the trace)",
            times["kept"],
            requests=w.n,
        ),
    ]


def generated(n: int) -> list[dict[str, Any]]:
    """Requests of about 4,000 tokens: 60 % in templates with shared parts, turns with history."""
    section = {
        "generator": "sessions",
        "arrivals": {"process": "poisson", "rate_per_s": 100.0},
        "requests": n,
        "turns": {"geometric": {"mean": 4}},
        "output_tokens": {"lognormal": {"median": 180, "p95": 700}},
        "templates": [
            {"name": "support", "weight": 3, "segments": [{"shared": "system", "tokens": 1234}, {"shared": "few-shot", "tokens": 37, "variants": 12}, {"unique": "user", "tokens": {"lognormal": {"median": 80, "p95": 400}}}]},
            {"name": "own", "weight": 2, "segments": [{"unique": "document", "tokens": 4000}], "turn_tokens": 60},
        ],
    }  # fmt: skip
    spec = WORKLOAD.validate_python(section)
    load_workload(WORKLOAD.validate_python({**section, "requests": 100}), base_dir=Path(), seed=1)
    times = interleaved({"make": lambda: load_workload(spec, base_dir=Path(), seed=1)}, 1, warm=0)
    w = load_workload(spec, base_dir=Path(), seed=1)
    build_trie(load_workload(WORKLOAD.validate_python({**section, "requests": 100}), base_dir=Path(), seed=1), "vllm")
    interned = interleaved({"intern": lambda: build_trie(w, "vllm")}, 1, warm=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    mean = float(w.prompt_tokens.mean())
    return [
        row("generated", f"{n:,} requests, {mean:,.0f} tokens mean", times["make"], requests=n, at_most=20.0, unit="s"),
        row("generated", f"intern them (peak of the process {peak:,.0f} MiB)", interned["intern"], requests=n),
    ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--w10k", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = generated(args.requests)
    targets = {"mooncake16.jsonl": 0.06, "tokens.jsonl": 0.8, "conversation_trace.jsonl": 2.0}
    with w10k(args.w10k) as folder:
        if folder is not None:
            for name in ("mooncake16.jsonl", "tokens.jsonl"):
                rows += read_rows(folder / name, "W10k", 16, args.rounds, targets)
    trace = SHARED / "traces/mooncake/conversation_trace.jsonl"
    if trace.exists():
        rows += read_rows(trace, "Mooncake", 512, args.rounds, targets)
    weka = SHARED / "traces/weka-claude-code"
    if weka.exists():
        options = Trace(path=str(weka), cache=False)
        times = interleaved({"read": lambda: load_trace(options)}, args.rounds)
        size = sum(p.stat().st_size for p in weka.glob("*.json")) / 1e6
        rows.append(row("WEKA", f"read a folder of {size:.1f} MB", times["read"], requests=load_trace(options).n))
    finish(rows, args.json)


if __name__ == "__main__":
    main()
