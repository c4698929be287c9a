"""One scenario from file to records: the only way in. The command line, studies, checks and the Python interface call this."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixsim import __version__
from prefixsim.engines.contract import Engine, EngineInputs
from prefixsim.engines.tiers.arrays import host_tier
from prefixsim.errors import DoesNotFitError
from prefixsim.hardware.load import Hardware, load_hardware
from prefixsim.hardware.steptime import StepCosts
from prefixsim.prepare import Library, Prepared, arrivals_ns, granularity_of, pick_engines, prepare, rule_of
from prefixsim.records import I64, RunRecord, new_request_rows
from prefixsim.scenario.identity import resolved_yaml, run_identity
from prefixsim.scenario.models import SCHEMA_VERSION, Scenario, family
from prefixsim.workload.table import Workload

if TYPE_CHECKING:
    from prefixsim.warm import Counted

Say = Callable[[str], None]
Share = Callable[..., None]
PRESENT_MAX_PER_REPLICA = 64


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. summary: as in summary.json. records and ledgers (int64 (n, 11), None for lengths-only traces): one
    an engine. folder: None where nothing was written."""

    scenario: Scenario
    run_id: str
    summary: dict[str, Any]
    records: tuple[RunRecord, ...]
    ledgers: tuple[I64 | None, ...]
    workload: Workload
    folder: Path | None = None


def run_scenario(
    scenario: Scenario,
    *,
    engines: Sequence[str] | None = None,
    library: Library | None = None,
    out: Path | None = None,
    write: bool = False,
    say: Say | None = None,
    share: Share | None = None,
    save_cache: Path | None = None,
) -> Run:
    """Runs a scenario's engines, one after another, over its whole workload.

    engines: names of those to run (default: all). library: shares read and interned workloads between runs. write: write
    the run folder, to `out` or runs/<name>-<run id>. say: told what is going on; share: how many
    of how many requests have arrived. save_cache: file for what the engine's caches hold at the end (one engine only).
    Raises PrefixsimError.
    """
    from prefixsim import warm
    from prefixsim.jit import compile_seconds

    tell = say or (lambda _: None)
    library = library or Library(keep=1)
    with compile_seconds() as compiled:
        if out is not None and write:
            from prefixsim.output.folder import check_target

            check_target(out)
        chosen = pick_engines(scenario, list(engines or []))
        hardware = _hardware(scenario)
        tell(f"{scenario.name}: reading the workload")
        if save_cache is not None:
            from prefixsim.save_cache import check_saving, write_cache

            check_saving(scenario, chosen, save_cache)
        prepared = library.get(scenario) if save_cache is None else prepare(scenario, named=True)
        warm.check_replicas(prepared, scenario.n_replicas)
        clock = _Clock(prepared, compiled)
        run_id = identity(scenario, prepared.workload, hardware)
        if len(chosen) < len(scenario.engines):
            run_id = hashlib.sha256(f"{run_id} {[e.name for e in chosen]}".encode()).hexdigest()
        report = None if share is None else partial(share, total=prepared.workload.n)
        save = None if save_cache is None else partial(write_cache, save_cache)

        def run_one(engine: Any, from_ns: int) -> RunRecord:
            with clock.phase("run"):
                return simulate(scenario, engine, prepared, hardware, report, from_ns=from_ns, save=save)

        records, counted = warm.run_all(scenario, prepared, chosen, run_one, tell)
        tell(f"{scenario.name}: analysis")
        with clock.phase("analysis"):
            summary, ledgers = summarise(scenario, chosen, records, prepared, hardware, run_id, counted)
            if counted is not None:
                records = [warm.cut(r, counted, prepared) for r in records]
        summary["timing_s"] = clock.seconds()
        summary["provenance"] = provenance({r.engine: r.events for r in records})
    workload = prepared.workload if counted is None else counted.workload
    run = Run(scenario, run_id, summary, tuple(records), tuple(ledgers), workload)
    if not write:
        return run
    from prefixsim.output.run_folder import write_run

    folder = out or Path("runs") / f"{scenario.name}-{run_id[:12]}"
    tell(f"{scenario.name}: writing {folder}")
    files = {}
    if scenario.output.report:
        from prefixsim.analysis.run_files import run_files

        rule = rule_of(chosen[0])
        sizes = [granularity_of(o) for o in chosen]
        shown = prepared if counted is None else Prepared(workload)
        files = run_files(workload, sizes, rule, trie=shown.trie(rule), segments=shown.segments(rule))
    write_run(folder, run, resolved_yaml(scenario), files)
    return Run(scenario, run_id, summary, run.records, run.ledgers, run.workload, folder)


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
    from prefixsim import warm
    from prefixsim.analysis.saturation import queue_growth

    w, start, about = prepared.workload, 0, {}
    if prepared.primed is not None:
        alone = _serve(scenario, options, prepared, hardware, None, arrivals_ns(scenario, w), only=prepared.first)
        start = warm.begins_ns(alone.rows, [e.record() for e in alone.engines])
        if prepared.primed.header is not None:
            from prefixsim.engines.resident import resident_tokens

            held = resident_tokens(alone.engines, alone.rows[: prepared.first], w, outputs=False)
            about["sequences_resident"] = int((held >= w.prompt_tokens[: prepared.first]).sum())
    mark = start + from_ns if prepared.primed is not None or from_ns else None
    arrivals = warm.arrivals_after(scenario, prepared, start)
    served = _serve(scenario, options, prepared, hardware, report, arrivals, mark_ns=mark)
    rows, router, result = served.rows, served.router, served.result
    left = [r.record() for r in served.engines]
    if save is not None:
        save(scenario, options, prepared, served.engines, rows)
    queue = queue_growth(rows, w.after)
    notes = [note for record in left for note in record.notes] + list(router.notes() if len(hardware) > 1 else ())
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
    from prefixsim.fleet.fleet import Fleet
    from prefixsim.fleet.routers.base import Router, RouterContext, make_router
    from prefixsim.warm import Marked, Pinned

    w, n_replicas = prepared.workload, len(hardware)
    rows = new_request_rows(w.n)
    awaited = np.zeros(w.n, dtype=np.bool_)
    awaited[w.after[w.after >= 0]] = True
    build = import_module(f"prefixsim.engines.{family(options)}.engine").build
    chains = prepared.chains(rule_of(options), granularity_of(options))
    replicas: list[Engine] = []
    for i, hw in enumerate(hardware):
        steps = scenario.clock == "steps" or hw is None
        inputs = EngineInputs(
            workload=w,
            chains=chains,
            costs=StepCosts.steps()
            if steps or hw is None
            else hw.step_costs(family(options), block_size=chains.granularity),
            capacity=_capacity(options, hw),
            rows=rows,
            awaited=awaited,
            gpu_memory_gib=0.0 if hw is None else hw.gpu_memory_gib,
            gpu_architecture="" if hw is None else hw.gpu.device.architecture,
            replica=i,
            seed=scenario.seed,
            keep_commits=n_replicas > 1,
            single_step=scenario.granularity == "step",
            host=None if steps or hw is None else host_tier(hw),
        )
        replicas.append(build(options, inputs))
    _check_sizes(scenario, options, w, min(r.capacity_tokens for r in replicas))
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
    return _Served(rows, replicas, marks, router, fleet.serve())


def _capacity(options: Any, hardware: Hardware | None) -> int:
    """vLLM: blocks, null block included; SGLang: tokens."""
    if family(options) == "vllm":
        given = options.num_gpu_blocks_override
        return int(given) if given is not None or hardware is None else hardware.kv_capacity(options).blocks
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


def _hardware(scenario: Scenario) -> list[Hardware | None]:
    """The hardware of each replica."""
    out: list[Hardware | None] = []
    for group in scenario.replica_groups:
        spec = group.hardware or scenario.hardware
        hw = None if spec is None else load_hardware(spec, base_dir=scenario.base_dir)
        out += [hw] * group.count
    return out


def identity(scenario: Scenario, workload: Workload, hardware: Sequence[Hardware | None]) -> str:
    """The run identity, SHA-256 hex: scenario, workload content, content of the profiles."""
    profiles = [hw.provenance() for hw in dict.fromkeys(h for h in hardware if h is not None)]
    digest = hashlib.sha256(json.dumps(profiles, sort_keys=True, default=str).encode()).hexdigest() if profiles else ""
    return run_identity(scenario, workload.source.sha256, digest)


def summarise(
    scenario: Scenario,
    chosen: Sequence[Any],
    records: Sequence[RunRecord],
    prepared: Prepared,
    hardware: Sequence[Hardware | None],
    run_id: str,
    counted: Counted | None = None,
) -> tuple[dict[str, Any], list[I64 | None]]:
    """(summary without timing and provenance, ledgers) of whole records, or of those requests that count. The ledger's
    invariant is checked on the way."""
    from prefixsim import warm
    from prefixsim.analysis.certainties import certainties
    from prefixsim.analysis.ledger import LedgerFacts, ledger, ledger_totals
    from prefixsim.analysis.summary import engine_summary, without_hits

    w = prepared.workload
    picked = slice(None) if counted is None else counted.picked
    shown = w if counted is None else counted.workload
    engines: dict[str, Any] = {}
    ledgers: list[I64 | None] = []
    for options, record in zip(chosen, records, strict=True):
        part = engine_summary(record if counted is None else warm.cut(record, counted, prepared), shown)
        rule, granularity = rule_of(options), granularity_of(options)
        parts: I64 | None = None
        if w.source.content_known:
            commits = [r.first_commit_ns for r in record.replicas if r.first_commit_ns is not None]
            parts = ledger(
                w,
                record.requests,
                granularity=granularity,
                rule=rule,
                facts=LedgerFacts(
                    caching=getattr(options, "enable_prefix_caching", True)
                    and not getattr(options, "disable_radix_cache", False),
                    keeps_outputs=not getattr(options, "strip_thinking_cache", False),
                    keeps_last=not getattr(options, "disable_overlap_schedule", True),
                ),
                segments=prepared.segments(rule),
                any_namespace=prepared.segments("none"),
                chains=prepared.chains(rule, granularity),
                first_commit_ns=commits or None,
            )[picked]
            totals = ledger_totals(parts)
            if sum(totals.values()) != part["prompt_tokens"]:
                raise AssertionError(f"ledger of {record.engine}: {totals} do not sum to {part['prompt_tokens']}")
            part["ledger"] = totals
            _replica_ceilings(part, record, prepared, rule, granularity, picked)
        else:
            part = without_hits(part)
        engines[record.engine] = part
        ledgers.append(parts)
    summary: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "name": scenario.name,
        "description": scenario.description,
        "prompt_tokens": int(shown.prompt_tokens.sum()),
        "output_tokens": int(shown.output_tokens.sum()),
        "ceiling": {},
        "ceiling_tokens": {},
        "workload": describe(prepared.main),
        "hardware": _hardware_part(hardware),
        "replicas": len(hardware),
        "router": scenario.router.kind if len(hardware) > 1 else None,
        "seed": scenario.seed,
        "engines": engines,
        "notes": [],
    }
    if w.source.content_known:
        ceilings = prepared.ceilings(rule_of(chosen[0]))
        wanted = sorted({*ceilings.granularities, *(granularity_of(o) for o in chosen), w.source.block_tokens})
        for g in wanted:
            hit, prompt = int(ceilings.hit_tokens(g)[picked].sum()), int(shown.prompt_tokens.sum())
            key = "token" if g == 1 else str(g)
            summary["ceiling"][key], summary["ceiling_tokens"][key] = hit / prompt, hit
            if g == w.source.block_tokens > 1:
                summary["notes"].append(
                    f"ceiling in the trace's own full blocks of {g} tokens: {hit / prompt:.2%} ({hit:,} of {prompt:,} "
                    "prompt tokens)"
                )
        certain = [
            sentence
            for o in chosen
            if not any("hits are certain" in note for note in engines[o.name]["notes"])  # the engine says it by itself
            for sentence in certainties(
                w, {o.name: granularity_of(o)}, rule_of(o), segments=prepared.segments(rule_of(o))
            )
        ]
        summary["notes"] += dict.fromkeys(certain)
    else:
        summary["notes"].append(
            "no ceilings and no ledger: the workload has lengths only, so what is shared is not known"
        )
    if counted is not None:
        summary["warm"] = warm.describe(scenario, prepared, counted, records)
        summary["notes"] += warm.notes(summary["warm"], prepared, counted, rule_of(chosen[0]))
    return summary, ledgers


def _replica_ceilings(
    part: dict[str, Any], record: RunRecord, prepared: Prepared, rule: Any, granularity: int, picked: Any
) -> None:
    """The ceiling of each replica: an infinite cache that sees only what the router sent there."""
    from prefixsim.analysis.ceilings import ceilings
    from prefixsim.analysis.segments import lookup_order
    from prefixsim.records import REQ_REPLICA

    if not 1 < len(record.replicas) <= PRESENT_MAX_PER_REPLICA:
        return
    order, of = lookup_order(prepared.workload), record.requests[:, REQ_REPLICA]
    counts = np.zeros(prepared.workload.n, dtype=np.bool_)
    counts[picked] = True
    for replica in part["replicas"]:
        mine = order[of[order] == replica["replica"]]
        found = ceilings(prepared.workload, rule=rule, segments=prepared.segments(rule), order=mine)
        mine = mine[counts[mine]]
        prompt = int(prepared.workload.prompt_tokens[mine].sum())
        for key, g in (("token", 1), (str(granularity), granularity)):
            hit = int(found.hit_tokens(g)[mine].sum())
            replica.setdefault("ceiling_tokens", {})[key] = hit
            replica.setdefault("ceiling", {})[key] = hit / prompt if prompt else None


def describe(w: Workload) -> dict[str, Any]:
    """The workload's part of the summary: what it is, and what was decided on the way."""
    s = w.source
    return {
        "kind": s.kind,
        "path": Path(s.path).name if s.path else None,
        "sha256": s.sha256,
        "requests": w.n,
        "prompt_tokens": int(w.prompt_tokens.sum()),
        "output_tokens": int(w.output_tokens.sum()),
        "sessions": len(w.session_names) or int(w.session.max(initial=-1)) + 1,
        "awaiting": int((w.after >= 0).sum()),
        "content_known": s.content_known,
        "synthetic": s.synthetic,
        "block_tokens": s.block_tokens,
        "max_tokens_assumed": w.max_tokens_assumed,
        "decisions": [
            {"name": d.name, "value": d.value, "evidence": d.evidence, "overridden": d.overridden} for d in s.decisions
        ],
        "counts": {name: int(value) for name, value in sorted(s.counts.items())},
        "notes": list(s.notes),
    }


def _hardware_part(hardware: Sequence[Hardware | None]) -> dict[str, Any] | None:
    kinds = [h for h in dict.fromkeys(hardware) if h is not None]
    if not kinds:
        return None
    first = kinds[0]
    part: dict[str, Any] = {
        "gpu": first.gpu.name,
        "model": first.model.name,
        "tensor_parallel_size": first.spec.tensor_parallel_size,
        "validity": list(dict.fromkeys(f"{h.gpu.name}: {h.validity}" for h in kinds)),
        "provenance": first.provenance(),
        "usd_per_replica_hour": first.usd_per_hour,
    }
    if len(kinds) > 1:
        part["kinds"] = [{"gpu": h.gpu.name, "model": h.model.name, "replicas": hardware.count(h)} for h in kinds]
    return part


def provenance(events: dict[str, int]) -> dict[str, Any]:
    """Versions, date, and SimPy events of each engine's run: what may differ between two equal runs."""
    from importlib.metadata import version

    from prefixsim.jit import kernel_hash

    return {
        "prefixsim": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: version(name) for name in ("numpy", "numba", "simpy", "pydantic")},
        "kernels": kernel_hash(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "simpy_events": events,
    }


class _Clock:
    """Wall seconds by phase; compiling and interning, wherever they fall, are taken out and reported apart."""

    def __init__(self, prepared: Prepared, compiled: Callable[[], float]) -> None:
        self.prepared, self.compiled = prepared, compiled
        self.spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to a phase."""
        since, before = time.perf_counter(), self._elsewhere()
        yield
        took = time.perf_counter() - since - (self._elsewhere() - before)
        self.spent[name] = self.spent.get(name, 0.0) + max(took, 0.0)

    def _elsewhere(self) -> float:
        return self.compiled() + self.prepared.seconds["intern"]

    def seconds(self) -> dict[str, float]:
        """read, intern, compile, run, analysis."""
        return {**self.prepared.seconds, "compile": self.compiled(), **self.spent}
