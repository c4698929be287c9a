"""One engine configuration over a workload: replicas built on their hardware, the fleet that serves them, their record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from prefixsim.analysis.saturation import queue_growth
from prefixsim.engines.contract import Engine, EngineInputs
from prefixsim.engines.tiers.arrays import host_tier
from prefixsim.errors import DoesNotFitError
from prefixsim.fleet.fleet import Fleet
from prefixsim.fleet.routers.base import Router, RouterContext, make_router
from prefixsim.hardware.load import Hardware
from prefixsim.hardware.steptime import StepCosts
from prefixsim.pipeline import warm_start
from prefixsim.pipeline.prepare import Prepared, arrivals_ns
from prefixsim.pipeline.warm_start import Marked, Pinned
from prefixsim.records import I64, RunRecord, new_request_rows
from prefixsim.scenario.models import Scenario, family, granularity_of, rule_of
from prefixsim.workload.table import Workload


def simulate(
    scenario: Scenario,
    options: Any,
    prepared: Prepared,
    hardware: Sequence[Hardware | None],
    report: Callable[[int], None] | None = None,
    *,
    from_ns: int = 0,
    save: Callable[[Scenario, Any, Prepared, Sequence[Engine], I64], None] | None = None,
) -> RunRecord:
    """One engine configuration over the workload: all replicas. hardware: one entry a replica (None: `clock: steps`).

    With priming the workload begins when that has ended: `extra["start_ns"]`. from_ns: instant of the workload from which on
    things count; `extra["marks"]` are then the replicas' records up to it. save: given the replicas at the end.
    """
    w, start, about = prepared.workload, 0, {}
    if prepared.primed is not None:
        alone = _serve(scenario, options, prepared, hardware, None, arrivals_ns(scenario, w), only=prepared.first)
        start = warm_start.begins_ns(alone.rows, [e.record() for e in alone.engines])
        if prepared.primed.header is not None:
            from prefixsim.engines.resident import resident_tokens

            held = resident_tokens(alone.engines, alone.rows[: prepared.first], w, outputs=False)
            about["sequences_resident"] = int((held >= w.prompt_tokens[: prepared.first]).sum())
    mark = start + from_ns if prepared.primed is not None or from_ns else None
    arrivals = warm_start.arrivals_after(scenario, prepared, start)
    served = _serve(scenario, options, prepared, hardware, report, arrivals, mark_ns=mark)
    rows, router, result = served.rows, served.router, served.result
    left = [r.record() for r in served.engines]
    if save is not None:
        save(scenario, options, prepared, served.engines, rows)
    queue = queue_growth(rows, w.after)
    notes = [*served.notes, *(note for record in left for note in record.notes)]
    notes += router.notes() if len(hardware) > 1 else ()
    if w.max_tokens_assumed:
        notes.append("max_tokens: assumed to be the true output length, as the workload gives none")
    if result.never_released:
        notes.append(
            f"{result.never_released} requests wait for a request that never finished: they were never released"
        )
    return RunRecord(
        engine=options.name,
        kind=options.kind,
        requests=rows,
        replicas=tuple(left),
        saturated=queue.saturated,
        saturation_note=queue.note,
        notes=tuple(dict.fromkeys(notes)),
        events=result.events,
        extra={
            "queue": queue.as_dict(),
            "start_ns": start,
            "from_ns": from_ns,
            "prime": about,
            "marks": tuple(m.marked() for m in served.marks),
        },
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """Replicas that have served: engines as built, the marks wrapped around them (none without)."""

    rows: I64
    engines: list[Engine]
    marks: list[Any]
    router: Any
    result: Any
    notes: tuple[str, ...]


def _serve(
    scenario: Scenario,
    options: Any,
    prepared: Prepared,
    hardware: Sequence[Hardware | None],
    report: Callable[[int], None] | None,
    arrivals: I64,
    *,
    only: int | None = None,
    mark_ns: int | None = None,
) -> _Served:
    """New replicas serve the workload, or its first `only` requests; they are looked at at `mark_ns`."""
    w, n_replicas = prepared.workload, len(hardware)
    rows = new_request_rows(w.n)
    replicas, notes = _build(scenario, options, prepared, hardware, rows)
    context = RouterContext(w, n_replicas, scenario.seed, lambda: prepared.trie("none"))
    router: Router = make_router(scenario.router, context)
    if n_replicas > 1 and prepared.primed is not None and prepared.primed.replica is not None:
        router = Pinned(router, prepared.primed.replica)
    marks = [] if mark_ns is None else [Marked(engine, mark_ns) for engine in replicas]
    n = w.n if only is None else only
    fleet = Fleet(
        marks or replicas,
        router,
        rows[:n],
        arrivals[:n],
        w.after[:n],
        w.delay_ns[:n],
        single_step=scenario.granularity == "step",
        report=report,
    )
    return _Served(rows, replicas, marks, router, fleet.serve(), tuple(notes))


def check_engines(
    scenario: Scenario, chosen: Sequence[Any], prepared: Prepared, hardware: Sequence[Hardware | None]
) -> None:
    """What a later engine cannot do here is said before an earlier one runs. Raises PrefixsimError."""
    for options in chosen[1:]:
        _build(scenario, options, prepared, list(dict.fromkeys(hardware)), new_request_rows(prepared.workload.n))


def _build(
    scenario: Scenario, options: Any, prepared: Prepared, hardware: Sequence[Hardware | None], rows: I64
) -> tuple[list[Engine], list[str]]:
    """New replicas, and what is to be said of their layouts."""
    w = prepared.workload
    awaited = np.zeros(w.n, dtype=np.bool_)
    awaited[w.after[w.after >= 0]] = True
    build = import_module(f"prefixsim.engines.{family(options)}.engine").build
    chains = prepared.chains(rule_of(options), granularity_of(options))
    replicas: list[Engine] = []
    notes: list[str] = []
    for i, hw in enumerate(hardware):
        mine, note = options, ""
        if hw is not None and family(options) == "vllm":
            mine, note = hw.with_layout(options)
        notes += [note] if note else []
        steps = scenario.clock == "steps" or hw is None
        inputs = EngineInputs(
            workload=w,
            chains=chains,
            costs=StepCosts.steps()
            if steps or hw is None
            else hw.step_costs(family(options), block_size=chains.granularity),
            capacity=capacity_of(options, hw),
            rows=rows,
            awaited=awaited,
            gpu_memory_gib=0.0 if hw is None else hw.gpu_memory_gib,
            gpu_architecture="" if hw is None else hw.gpu.device.architecture,
            replica=i,
            seed=scenario.seed,
            keep_commits=len(hardware) > 1,
            single_step=scenario.granularity == "step",
            host=None if steps or hw is None else host_tier(hw),
        )
        try:
            replicas.append(build(mine, inputs))
        except MemoryError:
            raise DoesNotFitError(
                f"engine {options.name!r}: this machine's memory does not hold a replica's tables: {chains.n_chains:,} distinct "
                f"blocks of {chains.granularity} tokens in the workload, {inputs.capacity:,} "
                f"{'blocks' if family(options) == 'vllm' else 'tokens'} in the pool. Use larger blocks, a smaller pool or a "
                "shorter workload"
            ) from None
    _check_sizes(scenario, options, w, min(r.longest_tokens for r in replicas))
    return replicas, notes


def capacity_of(options: Any, hardware: Hardware | None) -> int:
    """Cache size of an engine's options. vLLM: blocks, null block included; SGLang: tokens. Raises DoesNotFitError,
    NotModelledError."""
    if family(options) == "vllm":
        given = options.num_gpu_blocks_override
        return int(given) if given is not None or hardware is None else hardware.kv_capacity(options).blocks
    if hardware is not None:
        hardware.refuse_windows()
    given = options.max_total_tokens
    return int(given) if given is not None or hardware is None else hardware.kv_capacity(options).tokens


def _check_sizes(scenario: Scenario, options: Any, w: Workload, capacity_tokens: int) -> None:
    """Refuses requests that can never fit the pool, unless they are to be rejected, or the engine's own limit does it."""
    if scenario.oversized == "reject":
        return
    limit = getattr(options, "max_model_len", None) or getattr(options, "context_length", None)
    too_long = w.prompt_tokens >= capacity_tokens
    if limit is not None:
        too_long &= w.prompt_tokens < limit
    if too_long.any():
        r = int(np.argmax(np.where(too_long, w.prompt_tokens, 0)))
        raise DoesNotFitError(
            f"engine {options.name!r}: the prompt of request {w.request_id(r)} has {w.prompt_tokens[r]:,} tokens, and the KV "
            f"cache of a replica holds {capacity_tokens:,} ({int(too_long.sum())} of {w.n:,} prompts do not fit). "
            "Give it more memory, or set `oversized: reject` to have them rejected and counted, as a server would"
        )
