# mypy: disable-error-code="no-untyped-call"
"""Golden cases: cache and scheduler semantics alone, `clock: steps`, by the kernels of the timed simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.facts import UNLIMITED, Settings
from prefixsim.engines.vllm.pool_kernels import sequential
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_CACHED_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_PREEMPTIONS,
    new_request_rows,
)
from prefixsim.workload.formats.native import read_native, workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload

Rows = list[dict[str, Any]] | Path | str


def replay_settings(c: dict[str, Any]) -> Settings:
    """Settings of a golden case's `config`. Missing keys are as in the golden cases: synchronous, full-ISL test on."""
    chunked = bool(c.get("enable_chunked_prefill", True))
    budget = int(c.get("max_num_batched_tokens", 2048))
    return Settings(
        block_size=int(c["block_size"]),
        num_gpu_blocks=int(c["num_gpu_blocks"]),
        max_num_seqs=int(c.get("max_num_seqs", 256)),
        max_num_batched_tokens=budget,
        max_model_len=int(c.get("max_model_len", UNLIMITED if chunked else budget)),
        watermark=float(c.get("watermark", 0.0)),
        scheduler_reserve_full_isl=bool(c.get("scheduler_reserve_full_isl", True)),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=int(c.get("long_prefill_token_threshold", 0)),
        async_scheduling=bool(c.get("async_scheduling", False)),
        priority=c.get("policy", "fcfs") == "priority",
        enable_prefix_caching=bool(c.get("enable_prefix_caching", True)),
        split_free_queue=bool(c.get("split_free_queue", True)),
        turn_ns=1,
    )


def make_engine(
    workload: Workload, settings: Settings, *, costs: StepCosts | None = None, log: bool = True
) -> VllmEngine:
    """An engine on a workload by itself: interned under vLLM's namespace rule at the engine's block size."""
    chains = build_chains(build_trie(workload, "vllm"), settings.block_size)
    inputs = EngineInputs(
        workload=workload,
        chains=chains,
        costs=StepCosts.steps() if costs is None else costs,
        capacity=settings.num_gpu_blocks,
        rows=new_request_rows(workload.n),
        awaited=np.zeros(workload.n, dtype=np.bool_),
    )
    return VllmEngine("vllm", "vllm@0.33", settings, inputs, log=log)


def replay(rows: Rows, config: dict[str, Any]) -> dict[str, Any]:
    """Replays native rows (with `step`), or a file of them. `config` has a golden case's keys; so has the result."""
    if config.get("layout", "full") != "full":
        from prefixsim.engines.vllm.groups import replay_groups

        return replay_groups(_read_rows(rows) if isinstance(rows, str | Path) else rows, config)
    workload = read_native(Path(rows)) if isinstance(rows, str | Path) else _from_rows(rows)
    engine = make_engine(workload, replay_settings(config))
    result = _sequential(engine) if config["mode"] == "sequential" else _scheduled(engine)
    result["evicted_blocks"] = int(engine.state[st.I_EVICTED])
    cached = engine.blocks[engine.free_queue(), st.B_CHAIN] >= 0
    result["final_free_queue_cached"] = "".join("1" if c else "0" for c in cached)
    return result


def _read_rows(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _from_rows(rows: list[dict[str, Any]]) -> Workload:
    return workload_from_rows(rows, Source(kind="inline"))


def _sequential(engine: VllmEngine) -> dict[str, Any]:
    """File order, one request at a time. A rejected row keeps the cached tokens of its lookup; the total leaves it out."""
    w, c = engine.inputs.workload, engine.inputs.chains
    out = np.zeros((w.n, 2), dtype=np.int64)
    sequential(
        engine.state,
        engine.blocks,
        engine.where,
        engine.commits,
        c.run_offset,
        c.run_start,
        c.run_end,
        w.prompt_tokens,
        w.output_tokens,
        w.skip_reading_prefix_cache,
        engine.granularity,
        out,
    )
    requests = [
        {"id": w.request_id(r), "prompt_tokens": prompt, "cached_tokens": cached, "rejected": bool(refused)}
        for r, (prompt, (cached, refused)) in enumerate(zip(w.prompt_tokens.tolist(), out.tolist(), strict=True))
    ]
    return {"requests": requests, "cached_tokens": int(out[out[:, 1] == 0, 0].sum())}


def _scheduled(engine: VllmEngine) -> dict[str, Any]:
    """Arrivals by `step`. An event at instant E belongs to the engine's step number E - 1."""
    w = engine.inputs.workload
    order = np.argsort(w.step, kind="stable")
    engine.submit(order, w.step[order])
    engine.advance(NEVER)
    state, rows = engine.state, engine.inputs.rows
    admissions: list[list[list[int]]] = [[] for _ in range(w.n)]
    for request, *row in engine.admissions[: state[st.I_ADMISSIONS]].tolist():
        admissions[request].append(row)
    requests = []
    for r in range(w.n):
        first, finish = int(rows[r, REQ_FIRST_TOKEN_NS]), int(rows[r, REQ_FINISH_NS])
        requests.append(
            {
                "id": w.request_id(r),
                "prompt_tokens": int(w.prompt_tokens[r]),
                "cached_tokens": int(rows[r, REQ_CACHED_TOKENS]) if first >= 0 else None,
                "preemptions": int(rows[r, REQ_PREEMPTIONS]),
                "admissions": admissions[r],
                "first_token_step": first - 1 if first >= 0 else None,
                "finish_step": finish - 1 if finish >= 0 else None,
            }
        )
    return {
        "requests": requests,
        "cached_tokens": sum(row["cached_tokens"] or 0 for row in requests),
        "preemptions": int(state[st.I_PREEMPTIONS]),
        "unfinished": sum(row["finish_step"] is None for row in requests),
        "steps": engine.log[: state[st.I_LOG]].tolist(),
    }
