"""Golden cases through the plain-Python twin, with block keys made from the tokens themselves (no interning)."""

from __future__ import annotations

from typing import Any

from prefixsim.engines.vllm.twin import UNLIMITED, TwinConfig, TwinRequest, TwinScheduler, run_sequential


def block_keys(row: dict[str, Any], block_size: int) -> list[Any]:
    """Chained keys: (parent, tokens, namespace of the first block), interned so that equality is cheap."""
    tokens = [*row["tokens"], *(row.get("output_tokens") or [0])]
    keys: list[Any] = []
    parent: Any = (row.get("lora") or "", row.get("cache_salt") or "")
    for k in range(len(tokens) // block_size):
        part = (parent, tuple(tokens[k * block_size : (k + 1) * block_size]))
        parent = block_keys.table.setdefault(part, len(block_keys.table))  # type: ignore[attr-defined]
        keys.append(parent)
    return keys


block_keys.table = {}  # type: ignore[attr-defined]


def twin_config(c: dict[str, Any]) -> TwinConfig:
    chunked = c.get("enable_chunked_prefill", True)
    return TwinConfig(
        block_size=c["block_size"],
        num_gpu_blocks=c["num_gpu_blocks"],
        max_num_seqs=c.get("max_num_seqs", 256),
        max_num_batched_tokens=c.get("max_num_batched_tokens", 2048),
        max_model_len=c.get("max_model_len", UNLIMITED if chunked else c["max_num_batched_tokens"]),
        watermark=c.get("watermark", 0.0),
        scheduler_reserve_full_isl=c.get("scheduler_reserve_full_isl", True),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=c.get("long_prefill_token_threshold", 0),
        async_scheduling=c.get("async_scheduling", False),
        priority=c.get("policy", "fcfs") == "priority",
        enable_prefix_caching=c.get("enable_prefix_caching", True),
        split_free_queue=c.get("split_free_queue", True),
        turn_ns=1,
        golden_loop=True,
    )


def twin_requests(rows: list[dict[str, Any]], block_size: int) -> list[TwinRequest]:
    """In order of arrival."""
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i].get("step", 0)), i))
    out = []
    for position, i in enumerate(order):
        row = rows[i]
        n = max(1, len(row.get("output_tokens") or []))
        out.append(
            TwinRequest(
                index=i,
                arrival=int(row.get("step", 0)),
                prompt_tokens=len(row["tokens"]),
                output_tokens=n,
                max_tokens=n,
                keys=block_keys(row, block_size),
                priority=int(row.get("priority") or 0),
                skip_reading_prefix_cache=bool(row.get("skip_reading_prefix_cache")),
                order=position,
            )
        )
    return out


def twin_replay(rows: list[dict[str, Any]], c: dict[str, Any]) -> dict[str, Any]:
    """What `engines.vllm.replay.replay` returns, by the twin."""
    config = twin_config(c)
    requests = twin_requests(rows, config.block_size)
    if c["mode"] == "sequential":
        requests.sort(key=lambda r: r.index)
        pool, got = run_sequential(config, requests)
        table = [
            {"id": row["id"], "prompt_tokens": len(row["tokens"]), "cached_tokens": cached, "rejected": rejected}
            for row, (cached, rejected) in zip(rows, got, strict=True)
        ]
        total = sum(cached for cached, rejected in got if not rejected)
        result = {"requests": table, "cached_tokens": total}
    else:
        scheduler = TwinScheduler(config)
        last = max((r.arrival for r in requests), default=0)
        steps = scheduler.run(requests, until=c.get("max_steps", 1_000_000) + last)
        pool = scheduler.pool
        by_index = sorted(requests, key=lambda r: r.index)
        table = [
            {
                "id": row["id"],
                "prompt_tokens": r.prompt_tokens,
                "cached_tokens": None if r.first_token is None else r.admissions[0][1],
                "preemptions": r.preemptions,
                "admissions": [list(a) for a in r.admissions],
                "first_token_step": None if r.first_token is None else r.first_token - 1,
                "finish_step": None if r.finish is None else r.finish - 1,
            }
            for row, r in zip(rows, by_index, strict=True)
        ]
        result = {
            "requests": table,
            "cached_tokens": sum(t["cached_tokens"] or 0 for t in table),
            "preemptions": sum(r.preemptions for r in requests),
            "unfinished": sum(r.finish is None for r in requests),
            "steps": [list(s) for s in steps],
        }
    result["evicted_blocks"] = pool.evicted
    result["final_free_queue_cached"] = "".join("1" if pool.key[b] is not None else "0" for b in pool.free)
    return result
