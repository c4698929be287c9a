"""What summary.json says of a run: each engine's totals and ledger, ceilings, workload, hardware, notes, provenance."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim import __version__
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.certainties import certainties
from prefixsim.analysis.ledger import LedgerFacts, ledger, ledger_totals
from prefixsim.analysis.segments import lookup_order
from prefixsim.analysis.summary import engine_summary, without_hits
from prefixsim.hardware.load import Hardware
from prefixsim.jit import kernel_hash
from prefixsim.pipeline import warm_start
from prefixsim.pipeline.prepare import Prepared
from prefixsim.pipeline.warm_start import Counted
from prefixsim.records import I64, REQ_REPLICA, RunRecord
from prefixsim.scenario.models import SCHEMA_VERSION, Scenario, granularity_of, rule_of
from prefixsim.workload.table import Workload

PRESENT_MAX_PER_REPLICA = 64
FRONT_END_TOKENS_PER_S = 9_000
"""Where the slowest measured server stopped whatever its GPUs: docs/validation.md, "Where servers stop"."""


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
    w = prepared.workload
    picked = slice(None) if counted is None else counted.picked
    shown = w if counted is None else counted.workload
    engines: dict[str, Any] = {}
    ledgers: list[I64 | None] = []
    for options, record in zip(chosen, records, strict=True):
        part = engine_summary(record if counted is None else warm_start.cut(record, counted, prepared), shown)
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
        part["notes"] += front_end_notes(part["output_tokens_per_s"], hardware)
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
        found = prepared.ceilings(rule_of(chosen[0]))
        wanted = sorted({*found.granularities, *(granularity_of(o) for o in chosen), w.source.block_tokens})
        for g in wanted:
            hit, prompt = int(found.hit_tokens(g)[picked].sum()), int(shown.prompt_tokens.sum())
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
        summary["warm"] = warm_start.describe(scenario, prepared, counted, records)
        summary["notes"] += warm_start.notes(summary["warm"], prepared, counted, rule_of(chosen[0]))
    return summary, ledgers


def front_end_notes(output_tokens_per_s: float | None, hardware: Sequence[Hardware | None]) -> list[str]:
    """A warning where replicas send more tokens a second than measured servers could: the front end is not modelled."""
    timed = [h for h in hardware if h is not None]
    rate = (output_tokens_per_s or 0.0) / max(1, len(timed))
    if not timed or rate <= FRONT_END_TOKENS_PER_S:
        return []
    return [
        f"a replica sends {rate:,.0f} tokens a second: measured servers stopped at 9,000 (TensorRT-LLM 1.0) and 19,000 "
        "(SGLang 0.5.6) whatever their GPUs, as detokenizing and HTTP take time too; neither is modelled, so latencies "
        "and throughput may be too good"
    ]


def _replica_ceilings(
    part: dict[str, Any], record: RunRecord, prepared: Prepared, rule: Any, granularity: int, picked: Any
) -> None:
    """The ceiling of each replica: an infinite cache that sees only what the router sent there."""
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


@cache
def _libraries() -> tuple[tuple[str, str], ...]:
    return tuple((name, version(name)) for name in ("numpy", "numba", "simpy", "pydantic"))


def provenance(events: dict[str, int]) -> dict[str, Any]:
    """Versions, date, and SimPy events of each engine's run: what may differ between two equal runs."""
    return {
        "prefixsim": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": dict(_libraries()),
        "kernels": kernel_hash(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "simpy_events": events,
    }
