"""Golden cases on the plain-Python twin: one workload, one config, the keys of a golden case's `expected`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prefixsim.engines.sglang.prepare import heads32, id_ranks
from prefixsim.engines.sglang.reference_alone import run_overlap, run_sequential
from prefixsim.engines.sglang.reference_cache import Cache, Request
from prefixsim.engines.sglang.reference_scheduler import Scheduler, SchedulerOptions
from prefixsim.engines.sglang.reference_tree import EvictionRule
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Workload


def requests_of(workload: Workload, page_size: int) -> list[Request]:
    """The twin's requests: every row written out as page ids."""
    trie = build_trie(workload, "sglang")
    chains = build_chains(trie, page_size)
    offsets, ids = chains.expand()
    rows = ids.tolist()
    heads, ranks = heads32(workload, chains, trie), id_ranks(workload)
    return [
        Request(
            index=i,
            row=rows[offsets[i] : offsets[i + 1]],
            prompt=int(workload.prompt_tokens[i]),
            outputs=int(workload.output_tokens[i]),
            max_new=int(workload.max_tokens[i]),
            priority=int(workload.priority[i]),
            step=int(workload.step[i]),
            rank=int(ranks[i]),
            head=int(heads[i]),
            stop=bool(workload.stop[i]),
        )
        for i in range(workload.n)
    ]


def replay_reference(
    workload: Workload, config: dict[str, Any], on_step: Callable[[Cache], None] | None = None
) -> dict[str, Any]:
    """Runs a golden config on the twin. `on_step` is called after every request or loop iteration."""
    page = int(config["page_size"])
    policy = config.get("radix_eviction_policy", "lru")
    rule = EvictionRule(policy, **(config.get("radix_eviction_policy_config") or {}))
    merge, disabled = bool(config.get("merge_single_child_parents")), bool(config.get("disable_radix_cache"))
    cache = Cache(int(config["max_total_tokens"]), page, rule, merge=merge, disabled=disabled)
    requests = requests_of(workload, page)
    check = (lambda: on_step(cache)) if on_step else None
    extra: dict[str, Any] = {}
    mode = config.get("mode", "sequential")
    if mode == "sequential":
        run_sequential(cache, requests, check)
    elif mode == "overlap":
        run_overlap(cache, requests, int(config.get("width", 4)), check)
    else:
        chunk = config.get("chunked_prefill_size", 8192)
        options = SchedulerOptions(
            schedule_policy=config.get("schedule_policy", "fcfs"),
            max_running_requests=config.get("max_running_requests", 32),
            chunked_prefill_size=chunk if chunk is not None and chunk > 0 else None,
            max_prefill_tokens=config.get("max_prefill_tokens", 16384),
            schedule_conservativeness=config.get("schedule_conservativeness", 1.0),
            overlap_schedule=config.get("overlap_schedule", True),
            eviction_is_lru=policy == "lru",
        )
        scheduler = Scheduler(cache, options)
        order = np.argsort(workload.step, kind="stable")
        scheduler.run([requests[i] for i in order], check)
        requests = [requests[i] for i in order]
        extra = {"steps": scheduler.step, "retractions": scheduler.retractions}
    rows = []
    for r in requests:
        row: dict[str, Any] = {"id": workload.request_id(r.index), "prompt_tokens": r.prompt, "admitted": r.admitted}
        if mode == "scheduler":
            row |= {
                "first_hit_tokens": r.first_hit,
                "cached_tokens": r.first_hit or 0,
                "retracted": r.retractions,
                "chunks": r.chunks,
            }
        else:
            row |= {"cached_tokens": r.first_hit, "evicted_tokens": r.evicted}
        rows.append(row)
    tree = cache.tree
    return {
        "cached_tokens": sum(r.first_hit or 0 for r in requests),
        "evicted_tokens": tree.evicted_pages * page,
        "nodes": tree.n_nodes,
        "evictable_tokens": tree.evictable * page,
        "available_tokens": tree.available * page,
        **extra,
        "requests": rows,
    }
