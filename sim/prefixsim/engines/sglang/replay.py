# mypy: disable-error-code="no-untyped-call"
"""Golden cases: cache or scheduler alone, in steps, by the kernels of the timed simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.engine import SglangEngine
from prefixsim.engines.sglang.facts import settle_options
from prefixsim.engines.sglang.request_kernels import run_window
from prefixsim.errors import DoesNotFitError, InputError, Problem, nearest
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import (
    NEVER,
    REQ_CACHED_TOKENS,
    REQ_PREEMPTIONS,
    REQ_STATUS,
    STATUS_REJECTED,
    new_request_rows,
)
from prefixsim.scenario.engine_sglang import EVICTION_POLICIES, SCHEDULE_POLICIES, SglangOptions
from prefixsim.workload.formats.native import read_native, workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload

Rows = list[dict[str, Any]] | Path | str

MODES = ("sequential", "overlap", "scheduler")
INTEGERS: dict[str, tuple[int, int | None, int]] = {  # least, default (None: required), most
    "page_size": (1, 1, 1 << 20),
    "max_total_tokens": (1, None, 1 << 40),
    "width": (1, 4, 1 << 16),
    "max_running_requests": (1, 32, 1 << 30),
    "chunked_prefill_size": (-1, 8192, 1 << 40),
    "max_prefill_tokens": (1, 16384, 1 << 40),
}
SWITCHES = {"overlap_schedule": True, "disable_radix_cache": False, "merge_single_child_parents": False}
EVICTION_KEYS = ("protected_threshold", "threshold", "next_prompt_estimate")
OTHERS = (
    "mode",
    "radix_eviction_policy",
    "radix_eviction_policy_config",
    "schedule_policy",
    "schedule_conservativeness",
)


def replay(rows: Rows, config: dict[str, Any]) -> dict[str, Any]:
    """Replays native rows (or a file of them) under a golden case's `config`; the keys of its `expected`.

    Raises InputError for a config that is wrong, DoesNotFitError where the real engine would run out of memory."""
    if isinstance(rows, str | Path):
        workload = read_native(Path(rows))
    else:
        workload = workload_from_rows(rows, Source(kind="native"))
    return replay_workload(workload, config)


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """The config with defaults filled in. Raises InputError with every fault."""
    known = [*INTEGERS, *SWITCHES, *OTHERS]
    problems = [
        Problem(f"not an option of an SGLang replay{nearest(str(key), known)}", key=str(key))
        for key in config
        if key not in known
    ]
    out: dict[str, Any] = {}
    for key, (least, default, most) in INTEGERS.items():
        value = config.get(key, default)
        if key == "chunked_prefill_size" and value is None:
            value = -1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            problems.append(Problem(f"found {value!r}, expected a whole number from {least} to {most}", key=key))
        out[key] = value
    for key, flag in SWITCHES.items():
        out[key] = config.get(key, flag)
        if not isinstance(out[key], bool):
            problems.append(Problem(f"found {out[key]!r}, expected true or false", key=key))
    for key, default_name, names in (
        ("mode", "sequential", MODES),
        ("radix_eviction_policy", "lru", EVICTION_POLICIES),
        ("schedule_policy", "fcfs", SCHEDULE_POLICIES),
    ):
        out[key] = config.get(key, default_name)
        if out[key] not in names:
            problems.append(Problem(f"found {out[key]!r}{nearest(str(out[key]), names)}", key=key))
    factor = config.get("schedule_conservativeness", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < 1e9:
        problems.append(Problem(f"found {factor!r}, expected a number of at least 0", key="schedule_conservativeness"))
    out["schedule_conservativeness"] = factor
    eviction = config.get("radix_eviction_policy_config") or {}
    if not isinstance(eviction, dict):
        problems.append(Problem(f"found {eviction!r:.60}, expected an object", key="radix_eviction_policy_config"))
        eviction = {}
    for key, value in eviction.items():
        where = f"radix_eviction_policy_config.{key}"
        if key not in EVICTION_KEYS:
            problems.append(Problem(f"unknown key{nearest(str(key), EVICTION_KEYS)}", key=where))
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            problems.append(Problem(f"found {value!r}, expected a whole number of at least 0", key=where))
    out["radix_eviction_policy_config"] = eviction
    if problems:
        raise InputError(problems)
    return out


def options_of(c: dict[str, Any]) -> SglangOptions:
    """Engine options of a checked config."""
    return SglangOptions.model_validate(
        {
            "name": "replay",
            "page_size": c["page_size"],
            "max_total_tokens": c["max_total_tokens"],
            "radix_eviction_policy": c["radix_eviction_policy"],
            "radix_eviction_policy_config": c["radix_eviction_policy_config"],
            "schedule_policy": c["schedule_policy"],
            "schedule_conservativeness": c["schedule_conservativeness"],
            "max_running_requests": c["max_running_requests"],
            "chunked_prefill_size": c["chunked_prefill_size"],
            "max_prefill_tokens": c["max_prefill_tokens"],
            "disable_overlap_schedule": not c["overlap_schedule"],
            "disable_radix_cache": c["disable_radix_cache"],
            "facts": {"merge_single_child_parents": c["merge_single_child_parents"]},
        }
    )


def golden_engine(workload: Workload, c: dict[str, Any]) -> SglangEngine:
    """An engine on the golden clock, for a checked config."""
    chains = build_chains(build_trie(workload, "sglang"), c["page_size"])
    inputs = EngineInputs(
        workload=workload,
        chains=chains,
        costs=StepCosts.steps(),
        capacity=c["max_total_tokens"],
        rows=new_request_rows(workload.n),
        awaited=np.zeros(workload.n, dtype=np.bool_),
    )
    settings = settle_options(options_of(c), c["max_total_tokens"], 0.0, golden=True)
    return SglangEngine("replay", "sglang@0.5.23", settings, inputs, extra=True)


def replay_workload(workload: Workload, config: dict[str, Any]) -> dict[str, Any]:
    """As `replay`, for a workload; arrivals are its `step` column."""
    c = checked(config)
    engine = golden_engine(workload, c)
    s = engine.arenas.scalars
    if c["mode"] == "scheduler":
        order = np.argsort(workload.step, kind="stable")
        engine.submit(order, workload.step[order])
        engine.advance(NEVER)
    else:
        order = np.arange(workload.n)
        run_windows(engine, order, 1 if c["mode"] == "sequential" else c["width"], alone=c["mode"] == "sequential")
    page = engine.granularity
    result: dict[str, Any] = {
        "cached_tokens": int(engine.inputs.rows[:, REQ_CACHED_TOKENS].sum()),
        "evicted_tokens": int(s[st.S_EVICTED]) * page,
        "nodes": int(s[st.S_NODES]),
        "evictable_tokens": int(s[st.S_EVICTABLE]) * page,
        "available_tokens": int(s[st.S_AVAILABLE]) * page,
    }
    if c["mode"] == "scheduler":
        result |= {"steps": int(s[st.S_STEPS]), "retractions": int(s[st.S_RETRACTIONS])}
    result["requests"] = [request_row(engine, int(i), scheduler=c["mode"] == "scheduler") for i in order]
    return result


def run_windows(engine: SglangEngine, order: np.ndarray, width: int, *, alone: bool) -> None:
    """The golden modes sequential and overlap, on an engine that has done nothing yet."""
    a, s = engine.arenas, engine.arenas.scalars
    a.grow_slots(width + 1)
    for slot in range(width + 1):
        a.slots[slot, st.R_LOCK] = slot + 1 if slot < width else st.NIL
    s[st.S_FREE_SLOT] = 0
    s[st.S_ARRIVALS] = order.shape[0]
    while True:
        args = (
            *a.tree_args(),
            a.heads,
            a.marks,
            a.commits,
            a.slots,
            a.lists,
            engine.static,
            engine.inputs.rows,
            engine.extra,
            order,
            width,
            alone,
        )
        code = run_window(*args)
        if code == st.OUT_OF_MEMORY:
            raise DoesNotFitError(engine.out_of_memory())
        if code == st.DONE:
            return
        engine.grow(code)


def request_row(engine: SglangEngine, i: int, *, scheduler: bool) -> dict[str, Any]:
    """One entry of `expected.requests`."""
    row, extra = engine.inputs.rows[i], engine.extra[i]
    workload = engine.inputs.workload
    cached = int(row[REQ_CACHED_TOKENS])
    out: dict[str, Any] = {
        "id": workload.request_id(i),
        "prompt_tokens": int(workload.prompt_tokens[i]),
        "admitted": bool(row[REQ_STATUS] != STATUS_REJECTED),
        "cached_tokens": cached,
    }
    if scheduler:
        out |= {
            "first_hit_tokens": cached,
            "retracted": int(row[REQ_PREEMPTIONS]),
            "chunks": int(extra[st.X_CHUNKS]),
        }
    else:
        out["evicted_tokens"] = int(extra[st.X_EVICTED])
    return out
