# mypy: disable-error-code="no-untyped-call"
"""Golden cases: cache and scheduler semantics alone, `clock: steps`, by the kernels of the timed simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.facts import UNLIMITED, Settings
from prefixsim.engines.vllm.pool_kernels import sequential
from prefixsim.errors import InputError, Problem, nearest
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
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


MODES = ("sequential", "scheduler")
POLICIES = ("fcfs", "priority")
MAX_BLOCKS = 1 << 26
"""Largest pool of a replay (2 GiB of block table): its whole free queue is listed."""

INTEGERS: dict[str, tuple[int | None, int, int]] = {  # default (None: required), least, most
    "block_size": (None, 1, 1 << 20),
    "num_gpu_blocks": (None, 2, MAX_BLOCKS),
    "max_num_seqs": (256, 1, 1 << 40),
    "max_num_batched_tokens": (2048, 1, 1 << 40),
    "long_prefill_token_threshold": (0, 0, 1 << 40),
    "max_steps": (1_000_000, 1, 1 << 40),
}
SWITCHES = {
    "async_scheduling": False,
    "scheduler_reserve_full_isl": True,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "split_free_queue": True,
}
OTHERS = ("mode", "policy", "watermark", "max_model_len", "layout", "sliding_window", "prefix_cache_retention_interval")


def replay_settings(c: dict[str, Any]) -> Settings:
    """Settings of a golden case's `config`; missing keys are as in the golden cases (synchronous, full-ISL test on).
    Raises InputError with every fault."""
    problems = [
        Problem(f"not an option of a vLLM replay{nearest(str(key), [*INTEGERS, *SWITCHES, *OTHERS])}", key=str(key))
        for key in c
        if key not in INTEGERS and key not in SWITCHES and key not in OTHERS
    ]
    whole = {key: _whole(c, key, *limits, problems) for key, limits in INTEGERS.items()}
    switch = {}
    for key, default in SWITCHES.items():
        switch[key] = c.get(key, default)
        if not isinstance(switch[key], bool):
            problems.append(Problem(f"found {switch[key]!r}, expected true or false", key=key))
    for key, known in (("mode", MODES), ("policy", POLICIES)):
        if c.get(key, known[0]) not in known:
            problems.append(Problem(f"found {c[key]!r}{nearest(str(c[key]), known)}", key=key))
    watermark = c.get("watermark", 0.0)
    if isinstance(watermark, bool) or not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        problems.append(Problem(f"found {watermark!r}, expected a number >= 0 and < 1", key="watermark"))
    budget = whole["max_num_batched_tokens"]
    longest = UNLIMITED if switch["enable_chunked_prefill"] else budget
    if c.get("max_model_len") is not None:
        longest = min(longest, _whole(c, "max_model_len", None, 1, 1 << 40, problems))
    if c.get("mode") == "scheduler" and budget < whole["max_num_seqs"]:
        if "max_num_seqs" in c:
            least = f"{budget} is less than max_num_seqs {whole['max_num_seqs']}; vLLM does not start so"
            problems.append(Problem(least, key="max_num_batched_tokens"))
        else:
            whole["max_num_seqs"] = budget
    if problems:
        raise InputError(problems)
    return Settings(
        block_size=whole["block_size"],
        num_gpu_blocks=whole["num_gpu_blocks"],
        max_num_seqs=whole["max_num_seqs"],
        max_num_batched_tokens=budget,
        max_model_len=longest,
        watermark=float(watermark),
        scheduler_reserve_full_isl=switch["scheduler_reserve_full_isl"],
        enable_chunked_prefill=switch["enable_chunked_prefill"],
        long_prefill_token_threshold=whole["long_prefill_token_threshold"],
        async_scheduling=switch["async_scheduling"],
        priority=c.get("policy", "fcfs") == "priority",
        enable_prefix_caching=switch["enable_prefix_caching"],
        split_free_queue=switch["split_free_queue"],
        turn_ns=1,
    )


def _whole(c: dict[str, Any], key: str, default: int | None, low: int, high: int, problems: list[Problem]) -> int:
    value = c.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        found = "missing" if value is None else f"found {value!r}"
        problems.append(Problem(f"{found}, expected a whole number from {low} to {high}", key=key))
        return low
    return value


def make_engine(workload: Workload, settings: Settings) -> VllmEngine:
    """An engine on a workload by itself, which keeps a log: interned under vLLM's namespace rule at the engine's block size."""
    chains = build_chains(build_trie(workload, "vllm"), settings.block_size)
    inputs = EngineInputs(
        workload=workload,
        chains=chains,
        costs=StepCosts.steps(),
        capacity=settings.num_gpu_blocks,
        rows=new_request_rows(workload.n),
        awaited=np.zeros(workload.n, dtype=np.bool_),
    )
    return VllmEngine("vllm", "vllm@0.33", settings, inputs, log=True)


def replay(rows: Rows, config: dict[str, Any]) -> dict[str, Any]:
    """Replays native rows (with `step`), or a file of them. `config` has a golden case's keys; so has the result."""
    if config.get("layout", "full") != "full":
        from prefixsim.engines.vllm.groups import read_rows, replay_groups

        config = {"async_scheduling": False, **config}
        return replay_groups(read_rows(Path(rows)) if isinstance(rows, str | Path) else rows, config)
    settings = replay_settings(config)
    workload = read_native(Path(rows)) if isinstance(rows, str | Path) else _from_rows(rows)
    engine = make_engine(workload, settings)
    if config.get("mode", "sequential") == "sequential":
        result = _sequential(engine)
    else:
        result = _scheduled(engine, int(config.get("max_steps", INTEGERS["max_steps"][0] or 0)))
    result["evicted_blocks"] = int(engine.state[st.I_EVICTED])
    cached = engine.blocks[engine.free_queue(), st.B_CHAIN] >= 0
    result["final_free_queue_cached"] = "".join("1" if c else "0" for c in cached)
    return result


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


def _scheduled(engine: VllmEngine, max_steps: int) -> dict[str, Any]:
    """Arrivals by `step`. An event at instant E belongs to the engine's step number E - 1.

    A request that outgrows the pool is preempted and resumed for ever where its admission is not tested in full, as in
    the real engine; the replay ends `max_steps` after the last arrival.
    """
    w = engine.inputs.workload
    order = np.argsort(w.step, kind="stable")
    engine.submit(order, w.step[order])
    engine.advance(max_steps + (int(w.step.max()) if w.n else 0))
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
