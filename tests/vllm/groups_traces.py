"""Small hostile traces for the sliding-window tests, and the options that go with them. Standard library only.

The stored answers (groups_golden.json) are what vLLM 0.33.0's own cache and scheduler did on `case(seed, mode)`.
"""

from __future__ import annotations

import random
from typing import Any

MODES = ("sequential", "sync", "async")


def rows_of(r: random.Random, block: int) -> list[dict[str, Any]]:
    """A growing tree of prompts over a tiny alphabet, some salted, some not reading the cache."""
    grown: list[list[int]] = [[]]
    rows: list[dict[str, Any]] = []
    step = 0
    for number in range(r.randint(6, 22)):
        stem = r.choice(grown[-6:])
        if r.random() < 0.5:
            stem = stem[: r.randint(0, len(stem))]
        tokens = (stem + [r.randrange(r.choice((2, 500))) for _ in range(r.randint(1, 5 * block))])[: 20 * block]
        outputs = [r.randrange(3) for _ in range(r.randint(1, 3 * block))]
        row: dict[str, Any] = {"id": f"g{number}", "step": step, "tokens": tokens, "output_tokens": outputs}
        if r.random() < 0.1:
            row["cache_salt"] = r.choice("ab")
        if r.random() < 0.1:
            row["skip_reading_prefix_cache"] = True
        row["priority"] = r.randrange(3)
        rows.append(row)
        grown.append(tokens + outputs)
        step += r.choice((0, 0, 1, 4))
    return rows


def case(seed: int, mode: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and replay options of one case."""
    r = random.Random(seed)
    block = r.choice((1, 2, 4, 8))
    rows = rows_of(r, block)
    need = max(-(-(len(row["tokens"]) + len(row["output_tokens"])) // block) for row in rows)
    layout = r.choice(("swa", "hybrid"))
    config: dict[str, Any] = {
        "mode": "sequential" if mode == "sequential" else "scheduler",
        "block_size": block,
        "num_gpu_blocks": 1 + need * (2 if layout == "hybrid" else 1) + r.choice((-2, 0, 3, 15, 60)),
        "layout": layout,
        "sliding_window": r.choice((1, block, 2 * block, 2 * block + 1, 3 * block + 1, 5 * block, 9 * block)),
        "prefix_cache_retention_interval": r.choice((0, 0, -1, 2 * block, 5 * block)),
    }
    config["num_gpu_blocks"] = max(3, config["num_gpu_blocks"])
    options = {
        "max_num_seqs": r.randint(1, 8),
        "max_num_batched_tokens": r.randint(2, 8 * block + 2),
        "watermark": r.choice((0.0, 0.0, 0.05)),
        "async_scheduling": mode == "async",
        "scheduler_reserve_full_isl": r.random() < 0.7,
        "long_prefill_token_threshold": r.choice((0, 0, 2 * block)),
        "policy": r.choice(("fcfs", "fcfs", "priority")),
        "max_steps": 2000,
    }
    if mode != "sequential":
        config.update(options)
    return rows, config


def branch_rows() -> list[dict[str, Any]]:
    """One long prompt, then two that branch off inside it, after 160 of 320 tokens."""
    prompt = [1000 + i for i in range(320)]
    tails = [[5000 + 100 * i + j for j in range(40)] for i in range(2)]
    return [
        {"id": "long", "step": 0, "tokens": prompt, "output_tokens": [7]},
        {"id": "branch 1", "step": 1, "tokens": prompt[:160] + tails[0], "output_tokens": [7]},
        {"id": "branch 2", "step": 2, "tokens": prompt[:160] + tails[1], "output_tokens": [7]},
        {"id": "long again", "step": 3, "tokens": prompt, "output_tokens": [7]},
    ]
