"""What `prefixsim explain` finds: ceilings, ledger, divergence points, advice. Every advice is run again before it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefixsim.analysis.advice import LEAST_GAIN, Advice, prompt_advice
from prefixsim.analysis.ceilings import DEFAULT_GRANULARITIES, Ceilings, ceilings, require_content
from prefixsim.analysis.certainties import certainties
from prefixsim.analysis.curve_report import SHARES, reached
from prefixsim.analysis.curves import Curve, curves
from prefixsim.analysis.divergence import Divergence, divergence_points
from prefixsim.analysis.inputs import Input
from prefixsim.analysis.ledger import admitted, ledger_by, ledger_totals
from prefixsim.analysis.memory import cache_memory
from prefixsim.analysis.segments import Segments
from prefixsim.pipeline.prepare import Library, Prepared
from prefixsim.pipeline.run import Run, run_scenario
from prefixsim.records import LEDGER_PARTS, REQ_ADMITTED_NS, REQ_REPLICA, RunRecord
from prefixsim.scenario.models import Scenario, family, granularity_of, rule_of
from prefixsim.workload.table import I64, Workload

MAX_LABELS = 1_000
TOP_ADVICE = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Explanation:
    """result: JSON-able, see docs/explain.md. points and advice: the objects behind it."""

    result: dict[str, Any]
    points: list[Divergence]
    advice: list[Advice]


class _Fixed(Library):
    """A library that always hands out one prepared workload: edited copies are run through the usual way in."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.prepared = prepared

    def get(self, scenario: Scenario) -> Prepared:
        """The workload, whatever the scenario says of it."""
        return self.prepared


def explain(
    loaded: Input,
    *,
    granularities: Sequence[int] | None = None,
    reuse_outputs: bool = True,
    top: int = 8,
    engines: bool = True,
    say: Say | None = None,
) -> Explanation:
    """Explains a scenario (its engines are run, unless `engines` is False) or a bare trace.

    granularities: for ceilings (default: 1, 16, ..., 512 and the engines' own). Raises NotModelledError for lengths-only
    traces.
    """
    tell = say or (lambda _: None)
    w = loaded.workload
    require_content(w, "an explanation of hits")
    own = loaded.granularities
    prepared = Prepared(w)
    rule = loaded.rule
    trie, segments = prepared.trie(rule), prepared.segments(rule)
    wanted = sorted({1, *(granularities or DEFAULT_GRANULARITIES), *own.values(), w.source.block_tokens})
    tell(f"{loaded.name}: ceilings and curves")
    tops = {reuse: ceilings(w, wanted, reuse_outputs=reuse, rule=rule, segments=segments) for reuse in (True, False)}
    base = tops[reuse_outputs]
    result: dict[str, Any] = {
        "name": loaded.name,
        "source": loaded.path,
        "requests": w.n,
        "prompt_tokens": int(w.prompt_tokens.sum()),
        "synthetic": w.source.synthetic,
        "reuse_outputs": reuse_outputs,
        "outputs_known": base.outputs_known,
        "ceilings": {
            "with_outputs": _ceiling_entry(tops[True]),
            "prompts_only": _ceiling_entry(tops[False]),
        },
        "by": _by_labels(w, base, main_granularity(loaded)),
        "certainties": certainties(w, own or {"": main_granularity(loaded)}, rule, segments=segments),
        "capacity": _capacity(loaded, prepared, reuse_outputs),
        "decisions": [f"{d.name} = {d.value}: {d.evidence}" for d in w.source.decisions],
        "notes": list(w.source.notes),
    }
    run = None
    if loaded.scenario is not None and engines:
        run = run_scenario(loaded.scenario, library=_Fixed(prepared), say=tell)
        result["run_id"] = run.run_id
        result["engines"] = {record.engine: _engine_entry(run, i, prepared) for i, record in enumerate(run.records)}
    tell(f"{loaded.name}: divergence points")
    points = divergence_points(w, top=top, reuse_outputs=reuse_outputs, rule=rule, trie=trie)
    result["divergence"] = [p.as_dict() for p in points]
    tell(f"{loaded.name}: advice, each tried in a run of its own")
    advice = prompt_advice(
        w,
        points,
        main_granularity(loaded),
        base=base,
        trie=trie,
        reuse_outputs=reuse_outputs,
        rule=rule,
        top=TOP_ADVICE,
    )[:TOP_ADVICE]
    entries, kept = [], []
    for a in advice:
        entry = _advice_entry(a)
        if run is not None and a.workload is not None:
            entry["engines"] = _gains(run, run_scenario(run.scenario, library=_Fixed(Prepared(a.workload))))
        entries.append(entry)
        kept.append(a)
    without_gain: list[dict[str, Any]] = []
    if run is not None:
        for kind, text, engine, settings in engine_edits(run, prepared):
            tell(f"{loaded.name}: trying {text}")
            again = rerun(loaded, settings, prepared, engine)
            gains = _gains(run, again)
            best = max((g["saved_tokens"] for g in gains.values()), default=0)
            entry = {"kind": kind, "text": text, "engine": engine, "settings": settings, "engines": gains}
            (entries if best > LEAST_GAIN * run.summary["prompt_tokens"] else without_gain).append(entry)
    result["advice"] = entries
    result["tried_without_gain"] = without_gain
    return Explanation(result, points, kept)


def main_granularity(loaded: Input) -> int:
    """The block that advice on prompts is about: the engines' largest, else 16 (or the trace's own if coarser)."""
    own = loaded.granularities
    return max(own.values()) if own else max(16, loaded.workload.source.block_tokens)


def _key(granularity: int) -> str:
    return "token" if granularity == 1 else str(granularity)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _ceiling_entry(tops: Ceilings) -> dict[str, Any]:
    out = {}
    for g in tops.granularities:
        hit, prompt = tops.total(g)
        lost = tops.lost_to_granularity(g)
        out[_key(g)] = {
            "hit_tokens": hit,
            "prompt_tokens": prompt,
            "share": _share(hit, prompt),
            "lost_to_granularity": lost,
            "lost_share": _share(lost, prompt),
        }
    return out


def label_columns(w: Workload) -> dict[str, tuple[I64, tuple[str, ...]]]:
    """Of group, tenant, session, turn those the workload has: labels int64 (n,) and their names."""
    out: dict[str, tuple[I64, tuple[str, ...]]] = {}
    for name, labels, names in (
        ("group", w.group, w.group_names),
        ("tenant", w.tenant, w.tenant_names),
        ("session", w.session, w.session_names),
    ):
        if (labels >= 0).any():
            count = int(labels.max()) + 1
            shown = tuple(names[i] if i < len(names) else str(i) for i in range(count))
            out[name] = (labels.astype(np.int64), shown)
    if (w.session >= 0).any():
        out["turn"] = (w.turn.astype(np.int64), tuple(str(i) for i in range(int(w.turn.max(initial=0)) + 1)))
    return out


def _by_labels(w: Workload, tops: Ceilings, granularity: int) -> dict[str, Any]:
    """Ceilings by label: the MAX_LABELS with most prompt tokens; the others summed up."""
    out: dict[str, Any] = {}
    for column, (labels, names) in label_columns(w).items():
        fine, prompt = tops.by(labels, len(names), 1)
        coarse, _ = tops.by(labels, len(names), granularity)
        order = np.argsort(-prompt[:-1], kind="stable")
        rows = [
            {
                "name": names[i],
                "prompt_tokens": int(prompt[i]),
                "token": int(fine[i]),
                _key(granularity): int(coarse[i]),
            }
            for i in order[:MAX_LABELS].tolist()
        ]
        if column == "turn":
            rows.sort(key=lambda row: int(row["name"]))
        rest = np.append(order[MAX_LABELS:], len(names))
        if int(prompt[rest].sum()):
            rows.append(
                {
                    "name": None,
                    "prompt_tokens": int(prompt[rest].sum()),
                    "token": int(fine[rest].sum()),
                    _key(granularity): int(coarse[rest].sum()),
                }
            )
        out[column] = rows
    return out


def _capacity(loaded: Input, prepared: Prepared, reuse_outputs: bool) -> list[dict[str, Any]]:
    memory = cache_memory(loaded.scenario)
    per_token = memory.bytes_per_token if memory is not None else None
    blocks = sorted(set(loaded.granularities.values())) or [main_granularity(loaded)]
    found = curves(
        loaded.workload,
        blocks,
        reuse_outputs=reuse_outputs,
        rule=loaded.rule,
        segments=prepared.segments(loaded.rule),
        optimal_capacities=[],
    )
    out = []
    for c in found:
        entry: dict[str, Any] = {"granularity": c.granularity, "policy": c.policy}
        gib = memory.kv_gib_per_gpu if memory is not None else None
        for share in SHARES:
            entry[f"{share:.0%}"] = reached(c, share, per_token, gib)
        out.append(entry)
    return out


# ---- engines -----------------------------------------------------------------------------------------------------


def _engine_entry(run: Run, i: int, prepared: Prepared) -> dict[str, Any]:
    record, parts = run.records[i], run.ledgers[i]
    summary = run.summary["engines"][record.engine]
    assert parts is not None  # content is known
    options = next(e for e in run.scenario.engines if e.name == record.engine)
    entry: dict[str, Any] = {
        "granularity": granularity_of(options),
        "capacity_tokens": sum(r.capacity_tokens for r in record.replicas),
        "prompt_tokens": summary["prompt_tokens"],
        "cached_tokens": summary["cached_tokens"],
        "hit_rate": summary["hit_rate"],
        "ledger": ledger_totals(parts),
        "ledger_by": {},
        "same_order": ideal(
            run.workload, record, prepared.segments(rule_of(options)), rule_of(options), granularity_of(options)
        ),
    }
    columns = {**label_columns(run.workload)}
    if len(record.replicas) > 1:
        replica = record.requests[:, REQ_REPLICA]
        columns["replica"] = (replica, tuple(str(k) for k in range(len(record.replicas))))
    for column, (labels, names) in columns.items():
        sums = ledger_by(parts, labels, len(names))
        order = np.argsort(-sums[:-1].sum(axis=1), kind="stable")[:MAX_LABELS]
        rows = [{"name": names[k], **_parts(sums[k])} for k in order.tolist()]
        if column in ("turn", "replica"):
            rows.sort(key=lambda row: int(row["name"]))
        rest = sums.sum(axis=0) - sums[order].sum(axis=0)
        if rest.sum():
            rows.append({"name": None, **_parts(rest)})
        entry["ledger_by"][column] = rows
    return entry


def _parts(row: I64) -> dict[str, int]:
    return {name: int(v) for name, v in zip(LEDGER_PARTS, row, strict=True)}


def ideal(w: Workload, record: RunRecord, segments: Segments, rule: Any, granularity: int) -> dict[str, int]:
    """Hits of an ideal LRU and of the optimum with the same capacity on the run's own order of admissions, each replica by
    itself; and of an infinite cache a replica. No cap on the last token, blocks known at once."""
    inside = admitted(record.requests)
    total = {"lru_tokens": 0, "optimal_tokens": 0, "infinite_tokens": 0}
    for replica in record.replicas:
        mine = np.flatnonzero(inside & (record.requests[:, REQ_REPLICA] == replica.replica))
        order = mine[np.argsort(record.requests[mine, REQ_ADMITTED_NS], kind="stable")]
        blocks = replica.capacity_tokens // granularity
        lru, optimal = curves(w, [granularity], rule=rule, segments=segments, order=order, optimal_capacities=[blocks])
        total["lru_tokens"] += int(lru.at([blocks])[0])
        total["optimal_tokens"] += int(optimal.hit_tokens[0])
        total["infinite_tokens"] += lru.ceiling_tokens
    return total


def _gains(before: Run, after: Run) -> dict[str, Any]:
    out = {}
    for name, part in after.summary["engines"].items():
        old = before.summary["engines"][name]
        saved = (old["prompt_tokens"] - old["cached_tokens"]) - (part["prompt_tokens"] - part["cached_tokens"])
        out[name] = {
            "cached_tokens_before": old["cached_tokens"],
            "cached_tokens_after": part["cached_tokens"],
            "hit_rate_before": old["hit_rate"],
            "hit_rate_after": part["hit_rate"],
            "saved_tokens": saved,
        }
    return out


def rerun(loaded: Input, settings: Mapping[str, Any], prepared: Prepared, engine: str = "") -> Run:
    """The scenario with settings changed, on the same workload; one engine or ("") all."""
    from prefixsim.scenario.load import load_scenario

    changed = load_scenario(loaded.path, {**loaded.overrides, **settings})
    return run_scenario(changed, engines=[engine] if engine else None, library=_Fixed(prepared))


def engine_edits(run: Run, prepared: Prepared) -> list[tuple[str, str, str, dict[str, Any]]]:
    """(kind, text, engine, scenario keys) of settings the ledgers say are worth trying."""
    out: list[tuple[str, str, str, dict[str, Any]]] = []
    routing = 0.0
    for options, record, parts in zip(run.scenario.engines, run.records, run.ledgers, strict=True):
        assert parts is not None
        total = ledger_totals(parts)
        prompt = max(sum(total.values()), 1)
        name, vllm = options.name, family(options) == "vllm"
        g = granularity_of(options)
        capacity = record.replicas[0].capacity_tokens
        if total["evicted"] > 0.005 * prompt:
            target = _enough(run.workload, record, prepared.segments(rule_of(options)), rule_of(options), g)
            target = max(target, 2 * capacity // g)
            key, value = ("num_gpu_blocks_override", target + 1) if vllm else ("max_total_tokens", target * g)
            text = f"{name}: a KV cache of {target * g:,} tokens a replica instead of {capacity:,}"
            out.append(("pool", text, name, {f"engines.{name}.{key}": value}))
        smaller = 16 if vllm else 1
        if g > smaller and total["granularity"] > 0.002 * prompt:
            settings: dict[str, Any] = {f"engines.{name}.{'block_size' if vllm else 'page_size'}": smaller}
            if vllm and options.num_gpu_blocks_override is not None:  # type: ignore[union-attr]
                settings[f"engines.{name}.num_gpu_blocks_override"] = capacity // smaller + 1
            text = f"{name}: {'blocks' if vllm else 'pages'} of {smaller} instead of {g} tokens"
            out.append(("block_size", text, name, settings))
        routing = max(routing, total["routing"] / prompt)
    if routing > 0.002 and run.scenario.router.kind not in ("cache_aware", "kv_events", "oracle"):
        text = f"a cache-aware router instead of {run.scenario.router.kind}"
        out.append(("router", text, "", {"router": {"kind": "cache_aware"}}))
    return out


def _enough(w: Workload, record: RunRecord, segments: Segments, rule: Any, granularity: int) -> int:
    """Blocks a replica with which an ideal LRU on the run's own order reaches 95 % of what an infinite cache would."""
    inside = admitted(record.requests)
    most = 0
    for replica in record.replicas:
        mine = np.flatnonzero(inside & (record.requests[:, REQ_REPLICA] == replica.replica))
        order = mine[np.argsort(record.requests[mine, REQ_ADMITTED_NS], kind="stable")]
        lru: Curve = curves(w, [granularity], ["lru"], rule=rule, segments=segments, order=order)[0]
        most = max(most, lru.capacity_for(0.95))
    return most


# ---- JSON forms --------------------------------------------------------------------------------------------------


def divergence_entry(point: Divergence) -> dict[str, Any]:
    """JSON form of a divergence point."""
    return point.as_dict()


def _advice_entry(advice: Advice) -> dict[str, Any]:
    return {
        "kind": advice.kind,
        "text": advice.text,
        "granularity": advice.granularity,
        "infinite_cache": {
            "hit_tokens_before": advice.before[0],
            "hit_tokens_after": advice.after[0],
            "prompt_tokens_before": advice.before[1],
            "prompt_tokens_after": advice.after[1],
            "saved_tokens": advice.saved_tokens,
        },
    }
