"""Small hostile cases made from a seed: tiny blocks and alphabets, a pool that just fits. Rows are native rows.

`golden_small.json` beside this file holds what the real vLLM 0.33.0 (its own scheduler and cache manager on a CPU, the
model replaced by the rows' outputs) did on `small_case(seed)`; only those numbers are kept.
"""

from __future__ import annotations

import random
from typing import Any


def small_case(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(native rows, config) of a seed."""
    rng = random.Random(seed)
    block = rng.choice([2, 3, 4, 8])
    stems: list[list[int]] = [[]]
    rows = []
    step = 0
    for i in range(rng.randint(6, 16)):
        stem = rng.choice(stems[-6:])
        stem = stem[: rng.randint(0, len(stem))] if rng.random() < 0.3 else stem
        tokens = (stem + [rng.randrange(rng.choice([2, 500])) for _ in range(rng.randint(1, 4 * block))])[: 14 * block]
        outputs = [rng.randrange(3) for _ in range(rng.randint(1, 3 * block))]
        row: dict[str, Any] = {"id": f"r{i}", "step": step, "tokens": tokens, "output_tokens": outputs}
        if rng.random() < 0.15:
            row["cache_salt"] = rng.choice("ab")
        if rng.random() < 0.1:
            row["skip_reading_prefix_cache"] = True
        row["priority"] = rng.randrange(3)
        rows.append(row)
        stems.append(tokens + outputs[: rng.randint(0, len(outputs))])
        step += rng.choice([0, 0, 1, 4])
    longest = max(len(r["tokens"]) + len(r["output_tokens"]) for r in rows)
    config: dict[str, Any] = {
        "mode": "scheduler" if seed % 4 else "sequential",
        "block_size": block,
        "num_gpu_blocks": 2 + -(-longest // block) + rng.randint(0, 4),
    }
    if seed % 4:
        seqs = rng.randint(2, 8)
        config |= {
            "max_num_seqs": seqs,
            "max_num_batched_tokens": rng.randint(seqs, 6 * block + seqs),
            "async_scheduling": seed % 4 != 1,
            "watermark": rng.choice([0.0, 0.0, 0.1]),
            "scheduler_reserve_full_isl": rng.random() < 0.7,
            "long_prefill_token_threshold": rng.choice([0, 0, 2 * block]),
            "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        }
        if rng.random() < 0.2:
            config |= {"enable_chunked_prefill": False, "max_num_batched_tokens": longest + seqs}
    return rows, config
