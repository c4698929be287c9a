"""Writes small run folders with numbers that fit together, for the tests of the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.records import LEDGER_PARTS, REQUEST_COLUMNS, STATUS_FINISHED, TIMELINE_COLUMNS

HOSTILE = "<script>alert(1)</script>"


def seconds_name(column: str) -> str:
    return column[:-3] + "_s" if column.endswith("_ns") else column


def engine_run(name: str, n: int, seed: int, block: int, *, replicas: int = 1) -> dict[str, Any]:
    """Requests, timeline, gaps and summary of one engine; ledger parts sum to the prompt, totals to the rows."""
    rng = np.random.default_rng(seed)
    load = np.random.default_rng(0)  # the same requests for every engine
    arrival = np.sort(load.uniform(0, n / 8, n))
    prompt = load.integers(200, 6000, n)
    ledger = np.zeros((n, len(LEDGER_PARTS)), dtype=np.int64)
    ledger[:, 0] = (prompt * rng.uniform(0.2, 0.5, n)).astype(int)
    ledger[:, 2] = rng.integers(0, 2, n)
    ledger[:, 3] = rng.integers(0, block, n)
    ledger[:, 7] = (prompt * rng.uniform(0.0, 0.15, n) * (arrival > arrival.mean())).astype(int)
    ledger[:, 9] = prompt - ledger.sum(axis=1)
    assert (ledger >= 0).all()
    cached = ledger[:, 9]
    ttft = 0.02 + (prompt - cached) * 2e-5 * rng.uniform(0.8, 1.6, n)
    output = load.integers(20, 300, n)
    itl = 0.012
    finish = arrival + ttft + itl * output
    replica = np.arange(n) % replicas
    requests = []
    for i in range(n):
        row = {seconds_name(c): 0 for c in REQUEST_COLUMNS}
        row |= {
            "engine": name,
            "id": f"r{i}",
            "group": ("support", "search", HOSTILE)[i % 3],
            "session": f"s{i // 4}",
            "turn": i % 4,
            "tenant": "",
            "replica": int(replica[i]),
            "status": STATUS_FINISHED,
            "released_s": round(arrival[i], 9),
            "ready_s": round(arrival[i], 9),
            "admitted_s": round(arrival[i] + 0.004, 9),
            "first_token_s": round(arrival[i] + ttft[i], 9),
            "finish_s": round(finish[i], 9),
            "cached_tokens": int(cached[i]),
            "lookup_tokens": int(prompt[i]),
            "device_tokens": int(cached[i]),
            "chunks": 1,
            "output_tokens": int(output[i]),
        }
        row |= {part: int(ledger[i, j]) for j, part in enumerate(LEDGER_PARTS)}
        requests.append(row)
    timeline = []
    for r in range(replicas):
        mine = replica == r
        done = np.searchsorted(np.sort(arrival[mine]), np.linspace(0, finish.max(), 5 * n // replicas))
        prompts, hits, evicted = (np.concatenate([[0], np.cumsum(v[mine])]) for v in (prompt, cached, ledger[:, 7]))
        for k, d in enumerate(done):
            start = k * finish.max() / len(done)
            running = int(5 + 4 * np.sin(k / 40))
            timeline.append(
                {"engine": name, "replica": r}
                | {seconds_name(c): 0 for c in TIMELINE_COLUMNS}
                | {
                    "start_s": round(start, 9),
                    "end_s": round(start + 0.012, 9),
                    "scheduled_tokens": 512,
                    "running": running,
                    "waiting": max(0, running - 7),
                    "kv_used_tokens": running * 3000,
                    "evicted_tokens": int(evicted[d]),
                    "lookup_tokens": int(prompts[d]),
                    "cached_tokens": int(hits[d]),
                    "finished": int(d),
                }
            )
    total, hit = int(prompt.sum()), int(cached.sum())
    quantiles = lambda v: {f"p{q}": float(np.percentile(v, q)) for q in (50, 90, 99)} | {"mean": float(v.mean())}  # noqa: E731
    gaps = rng.lognormal(np.log(itl), 0.3, 400).round(5)
    prefix = "vllm" if block > 1 else "sglang"
    summary = {
        "kind": "vllm@0.33" if block > 1 else "sglang@0.5.23",
        "prompt_tokens": total,
        "cached_tokens": hit,
        "hit_rate": hit / total,
        "requests": n,
        "rejected": 0,
        "saturated": False,
        "saturation_note": "",
        "ttft_s": quantiles(ttft),
        "itl_s": quantiles(gaps),
        "e2e_s": quantiles(finish - arrival),
        "output_tokens_per_s": float(output.sum() / (finish.max() - arrival.min())),
        "kv_usage_peak": 0.41,
        "evicted_tokens": int(ledger[:, 7].sum()),
        "preemptions": 0,
        "ledger": {part: int(v) for part, v in zip(LEDGER_PARTS, ledger.sum(axis=0), strict=True)},
        "counters": {f"{prefix}:prompt_tokens_total": total}
        | (
            {"vllm:prefix_cache_queries": total, "vllm:prefix_cache_hits": hit}
            if block > 1
            else {"sglang:cached_tokens_total": hit}
        ),
        "replicas": [
            {
                "replica": r,
                "granularity": block,
                "capacity_tokens": 66000,
                "prompt_tokens": int(prompt[replica == r].sum()),
                "cached_tokens": int(cached[replica == r].sum()),
            }
            for r in range(replicas)
        ],
        "notes": ["max_tokens: true output lengths assumed"],
    }
    return {
        "summary": summary,
        "requests": requests,
        "timeline": timeline,
        "gaps": [{"engine": name, "gap_s": float(g), "count": 3} for g in gaps],
    }


def summary_of(runs: dict[str, dict[str, Any]], name: str = "support-bot") -> dict[str, Any]:
    total = next(iter(runs.values()))["summary"]["prompt_tokens"]
    best = max(r["summary"]["hit_rate"] for r in runs.values())
    return {
        "schema_version": 1,
        "run_id": "3f" * 32,
        "name": name,
        "ceiling": {"token": best + 0.05, "16": best + 0.03},
        "ceiling_tokens": {"token": int((best + 0.05) * total), "16": int((best + 0.03) * total)},
        "prompt_tokens": total,
        "workload": {
            "requests": next(iter(runs.values()))["summary"]["requests"],
            "kind": "sessions",
            "path": None,
            "decisions": [
                {"name": "unit", "value": "seconds", "evidence": ["no stamp above 1e6"], "overridden": False}
            ],
            "notes": [],
            "synthetic": True,
            "content_known": True,
        },
        "hardware": {
            "gpu": "h100-sxm-80g",
            "model": "llama-3.1-8b",
            "provenance": {
                "mem_bw": {"value": 3350, "unit": "GB/s", "kind": "datasheet", "source": "vendor datasheet"}
            },
            "validity": ["fitted on batches up to 256 sequences"],
        },
        "engines": {name: r["summary"] for name, r in runs.items()},
        "timing_s": {"read": 0.1, "intern": 0.2, "compile": 0.0, "run": 1.5},
        "provenance": {"prefixsim": "0.1.0", "python": "3.11"},
    }


def write_run(folder: Path, *, n: int = 300, replicas: int = 1, extras: bool = True) -> Path:
    """A whole run folder with the engines vllm and sglang."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {
        "vllm": engine_run("vllm", n, 1, 16, replicas=replicas),
        "sglang": engine_run("sglang", n, 2, 1, replicas=replicas),
    }
    summary = summary_of(runs)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1, sort_keys=True))
    (folder / "scenario.resolved.yaml").write_text(f"name: support-bot\n# {HOSTILE}\nseed: 1\n")
    for table in ("requests", "timeline", "gaps"):
        rows = [row for r in runs.values() for row in r[table]]
        with (folder / f"{table}.csv").open("w", newline="") as f:
            writer = csv.DictWriter(f, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if extras:
        total = summary["prompt_tokens"]
        curves = [
            {
                "granularity": g,
                "policy": policy,
                "ceiling_tokens": int(total * top),
                "points": [
                    [int(b), int(total * top * (1 - 2.0 ** (-b * g / 30000 * k)))]
                    for b in np.geomspace(10, 2e5 / g * 16, 60)
                ],
            }
            for g, top in ((16, 0.66), (1, 0.70))
            for policy, k in (("lru", 1), ("optimal", 2))
        ]
        (folder / "curves.json").write_text(json.dumps({"curves": curves, "prompt_tokens": total}))
        points = [
            {
                "group": HOSTILE,
                "position": 37,
                "lost_tokens": 1_900_000,
                "branches": 4998,
                "requests": 5000,
                "kind": "unique",
                "note": "looks like a timestamp",
            }
        ]
        (folder / "divergence.json").write_text(json.dumps(points))
    return folder
