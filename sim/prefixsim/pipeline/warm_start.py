"""A run that does not begin cold: priming before its workload, and a first part of the workload that is not counted.

Priming requests and the workload's are one table on the same engines; the workload begins when the priming has ended, which a
run of the priming alone finds out first. What is counted is then cut out of the records: request rows, the timeline, token
gaps, totals and counters from an instant on. Ledger and ceilings are made on the whole, so that priming is known content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prefixsim.analysis.saturation import queue_growth
from prefixsim.analysis.segments import inserted_tokens, shared_tokens
from prefixsim.analysis.since import Mark, later, since
from prefixsim.analysis.warm_rule import WarmPart, warm_part
from prefixsim.engines.contract import Engine, Progress
from prefixsim.errors import ScenarioError
from prefixsim.fleet.routers.base import Router, View
from prefixsim.pipeline.prepare import Prepared, arrivals_ns
from prefixsim.records import (
    I64,
    NEVER,
    REQ_FINISH_NS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    TL_END_NS,
    EngineRecord,
    RunRecord,
    new_request_rows,
)
from prefixsim.scenario.models import Scenario
from prefixsim.units import NS_PER_S
from prefixsim.workload.edit import take
from prefixsim.workload.intern import NamespaceRule
from prefixsim.workload.table import Workload


class Marked:
    """An engine that is looked at at one instant, in passing: all steps before it are done, none at or after it."""

    def __init__(self, engine: Engine, at_ns: int) -> None:
        self.engine, self.at_ns = engine, at_ns
        self.mark: Mark | None = None
        self.advance: Callable[[int], Progress] = self._advance
        self.submit, self.load, self.match_tokens = engine.submit, engine.load, engine.match_tokens
        self.record = engine.record
        self.name, self.kind = engine.name, engine.kind
        self.granularity, self.capacity_tokens = engine.granularity, engine.capacity_tokens
        self.longest_tokens = engine.longest_tokens

    def _advance(self, until_ns: int) -> Progress:
        if until_ns <= self.at_ns:
            return self.engine.advance(until_ns)
        progress = self.engine.advance(self.at_ns)
        if len(progress.completed) or progress.next_ns < self.at_ns:
            return progress
        self.mark = Mark(self.at_ns, self.engine.record())
        self.advance = self.engine.advance
        return self.engine.advance(until_ns)

    def marked(self) -> Mark:
        """The mark; where the engine had ended before, its end."""
        return self.mark or Mark(self.at_ns, self.engine.record())


class Pinned(Router):
    """The first requests go where a saved cache says; the rest is the router's."""

    kind = "pinned"

    def __init__(self, router: Router, replica: I64) -> None:
        super().__init__(router.options, router.context)
        self.router, self.replica = router, replica
        self.lag_ns = router.lag_ns

    @property
    def looks_at_state(self) -> bool:  # type: ignore[override]
        """As the router."""
        return self.router.looks_at_state

    def route(self, request: int, view: View) -> int:
        """The replica."""
        if request < self.replica.shape[0]:
            return int(self.replica[request])
        return self.router.route(request, view)

    def observe(self, request: int, view: View) -> None:
        """As the router."""
        if request >= self.replica.shape[0]:
            self.router.observe(request, view)

    def route_all(self, requests: I64) -> I64:
        """All at once."""
        primed = requests < self.replica.shape[0]
        out = np.empty(requests.shape[0], dtype=np.int64)
        out[primed] = self.replica[requests[primed]]
        out[~primed] = self.router.route_all(requests[~primed])
        return out

    def notes(self) -> tuple[str, ...]:
        """As the router, and what it was not told."""
        return (
            *self.router.notes(),
            "sequences of a saved cache went to their replicas past the router, which does not know them",
        )


def check_replicas(prepared: Prepared, n_replicas: int) -> None:
    """Raises ScenarioError where a saved cache has sequences of a replica that the scenario lacks."""
    replica = None if prepared.primed is None else prepared.primed.replica
    if replica is not None and int(replica.max(initial=0)) >= n_replicas:
        raise ScenarioError(
            f"prime: the saved cache has sequences of replica {int(replica.max())} (counted from 0), and the scenario has "
            f"{n_replicas} replica{'s' if n_replicas > 1 else ''}"
        )


def begins_ns(rows: I64, records: Sequence[EngineRecord]) -> int:
    """First instant after priming: behind its last token and the last step of every replica."""
    last = int(rows[:, REQ_FINISH_NS].max(initial=0))
    for record in records:
        last = max(last, int(record.timeline[:, TL_END_NS].max(initial=0)))
    return last + 1


def arrivals_after(scenario: Scenario, prepared: Prepared, start_ns: int) -> I64:
    """When requests arrive if the workload begins at `start_ns`: priming as it is, the rest later."""
    arrivals = arrivals_ns(scenario, prepared.workload).copy()
    if prepared.primed is not None:
        nominal = 0 if scenario.clock == "steps" else prepared.primed.shift_ns
        arrivals[prepared.first :] += start_ns - nominal
    return arrivals


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts. picked int64 (m,): rows of the whole table (priming first). workload: those requests. warm_up: how the
    others were chosen, None without."""

    picked: I64
    workload: Workload
    warm_up: WarmPart | None


def early_rows(scenario: Scenario, prepared: Prepared) -> I64 | None:
    """Request rows with releases only, where they are known before any run; None where they depend on it."""
    main = prepared.main
    if (main.after >= 0).any() or scenario.warm_up == "auto":
        return None
    rows = new_request_rows(main.n)
    rows[:, REQ_RELEASED_NS] = arrivals_ns(scenario, main)
    return rows


def count(scenario: Scenario, prepared: Prepared, rows: Sequence[tuple[str, I64]]) -> Counted:
    """What counts, from the main requests' rows of each engine."""
    main, first = prepared.main, prepared.first
    part = None
    mine = np.arange(main.n, dtype=np.int64)
    if scenario.warm_up is not None:
        part = warm_part(scenario.warm_up, rows, main.prompt_tokens)
        mine = np.flatnonzero(~part.excluded)
    return Counted(mine + first, take(main, mine), part)


def run_all(
    scenario: Scenario,
    prepared: Prepared,
    chosen: Sequence[Any],
    run: Callable[[Any, int], RunRecord],
    tell: Callable[[str], None],
) -> tuple[list[RunRecord], Counted | None]:
    """(whole record of each engine, what counts: None where all of it does). run: an engine's options and the instant of the
    workload from which on things count, ns. Where that follows from a run, engines run again to be looked at there."""
    counted, known = None, None
    if scenario.warm_up is not None or prepared.primed is not None:
        known = early_rows(scenario, prepared)
        if known is not None:
            counted = count(scenario, prepared, [("", known)])
        elif scenario.warm_up is None:
            counted = count(scenario, prepared, [])
    since_ns = 0 if counted is None or known is None else from_ns(known, counted, prepared.first)
    records = []
    for engine in chosen:
        tell(f"{scenario.name}: simulating {engine.name} ({prepared.workload.n:,} requests)")
        records.append(run(engine, since_ns))
    if scenario.warm_up is None or counted is not None:
        return records, counted
    first = [(r.engine, main_rows(r, prepared.first)) for r in records]
    counted = count(scenario, prepared, first)
    for i, (name, rows) in enumerate(first):
        since_ns = from_ns(rows, counted, prepared.first)
        if since_ns == 0:
            continue
        tell(f"{scenario.name}: simulating {name} again, to look at it where its warm-up ends")
        again = run(chosen[i], since_ns)
        if not np.array_equal(again.requests, records[i].requests):
            raise AssertionError(f"{name}: two runs of the same scenario differ")
        records[i] = again
    return records, counted


def main_rows(record: RunRecord, first: int) -> I64:
    """The workload's own rows, times counted from its start."""
    return later(record.requests[first:], int(record.extra.get("start_ns", 0)))


def from_ns(rows: I64, counted: Counted, first: int) -> int:
    """First release among the requests that count, ns from the workload's start."""
    came = rows[counted.picked - first, REQ_RELEASED_NS]
    came = came[(came >= 0) & (came != NEVER)]
    return int(came.min()) if came.shape[0] else 0


def cut(record: RunRecord, counted: Counted, prepared: Prepared) -> RunRecord:
    """The record of what counts, times counted from the workload's start."""
    start = int(record.extra["start_ns"])
    rows = later(record.requests[counted.picked], start)
    marks: tuple[Mark, ...] = record.extra["marks"]
    replicas = record.replicas
    if marks:
        replicas = tuple(since(r, m, start, rows) for r, m in zip(replicas, marks, strict=True))
    queue = queue_growth(main_rows(record, prepared.first), prepared.main.after)
    return replace(
        record,
        requests=rows,
        replicas=replicas,
        saturated=queue.saturated,
        saturation_note=queue.note,
        extra={**record.extra, "queue": queue.as_dict()},
    )


def describe(scenario: Scenario, prepared: Prepared, counted: Counted, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The `warm` part of summary.json. records: whole ones (priming included)."""
    out: dict[str, Any] = {
        "requests_simulated": prepared.workload.n,
        "requests_counted": int(counted.picked.shape[0]),
        "prime": None,
        "warm_up": None,
    }
    primed, first = prepared.primed, prepared.first
    if primed is not None:
        priming = prepared.workload.prompt_tokens[:first]
        out["prime"] = {
            "what": primed.words,
            "contents_known_by": primed.identity,
            "requests": first,
            "prompt_tokens": int(priming.sum()),
            "sha256": prepared.workload.source.sha256,
            "engines": {r.engine: _priming(r, first) for r in records},
        }
    if counted.warm_up is not None:
        part = counted.warm_up
        out["warm_up"] = {
            "rule": part.rule,
            "found": list(part.words),
            "requests_left_out": int(part.excluded.sum()),
            "prompt_tokens_left_out": int(prepared.main.prompt_tokens[part.excluded].sum()),
            "counted_from_s": {r.engine: int(r.extra["from_ns"]) / NS_PER_S for r in records},
        }
    return out


def _priming(record: RunRecord, first: int) -> dict[str, Any]:
    rows = record.requests[:first]
    done = int((rows[:, REQ_STATUS] == STATUS_FINISHED).sum())
    return {"lasted_s": int(record.extra["start_ns"]) / NS_PER_S, "finished": done, **record.extra["prime"]}


def _known_by_priming(prepared: Prepared, counted: Counted, rule: NamespaceRule) -> int | None:
    """Prompt tokens that count and that begin a prompt as some priming sequence did; None where contents are not known."""
    w = prepared.workload
    if not w.source.content_known:
        return None
    inserted = inserted_tokens(w)
    inserted[prepared.first :] = 0
    order = np.arange(w.n, dtype=np.int64)
    return int(shared_tokens(prepared.segments(rule), w.prompt_tokens, inserted, order)[counted.picked].sum())


def notes(warm: dict[str, Any], prepared: Prepared, counted: Counted, rule: NamespaceRule) -> list[str]:
    """Sentences: what was left out and why, and what priming from a file is."""
    out = []
    prime, warm_up = warm["prime"], warm["warm_up"]
    counted_prompt = int(counted.workload.prompt_tokens.sum())
    known = None if prime is None else _known_by_priming(prepared, counted, rule)
    saved = None if prepared.primed is None else prepared.primed.header
    if prime is not None:
        lasted = ", ".join(f"{name} {e['lasted_s']:.6g} s" for name, e in prime["engines"].items())
        out.append(
            f"primed with {prime['what']}: {prime['requests']:,} requests ({prime['prompt_tokens']:,} prompt tokens) were served "
            f"before the workload began ({lasted}); they are in no metric, but their content counts as known in ledger and "
            f"ceilings; what is the same content is told by: {prime['contents_known_by']}"
        )
        if known is not None:
            out.append(
                f"{known:,} of the {counted_prompt:,} prompt tokens counted begin a prompt as priming did"
                + ("" if known else ": priming shares nothing with the workload, it only fills the cache")
            )
        for name, e in prime["engines"].items():
            if e["finished"] < prime["requests"]:
                out.append(f"{name}: {prime['requests'] - e['finished']:,} priming requests did not finish")
            if "sequences_resident" in e:
                out.append(
                    f"{name}: {e['sequences_resident']:,} of {prime['requests']:,} saved sequences were wholly resident when the "
                    "workload began"
                )
    if saved is not None:
        out.append(
            "modelled: a saved cache is replayed, one sequence after another, least recently used first. Which sequences are "
            "resident and the order of their last use are exact up to the capacity; hit counts, priorities and insertion times "
            "of their blocks (policies other than LRU), duplicate copies of a block, the order of free blocks, and where nodes of a "
            "radix tree begin (whole leaves are evicted) are not"
        )
    out.append(
        "curves and divergence points of the report are those of the counted requests alone, from an empty cache"
    )
    if warm_up is not None:
        found = "".join(f"; {text}" for text in warm_up["found"])
        since_s = ", ".join(f"{name} {s:.6g} s" for name, s in warm_up["counted_from_s"].items())
        out.append(
            f"warm-up ({warm_up['rule']}{found}): {warm_up['requests_left_out']:,} requests "
            f"({warm_up['prompt_tokens_left_out']:,} prompt tokens) were simulated and are in no metric, for all engines alike; "
            f"counted from {since_s}. Their content counts as known. Token gaps, output tokens, KV use, evictions, preemptions, "
            "steps and counters are those of the steps from that instant on, whoever caused them"
        )
    return out
