"""Sessions from templates: shared, per-tenant and unique segments, turns that carry their history, forks, tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.workload import Segment, SessionsWorkload, Template
from prefixsim.workload.edit import order_quietly, take
from prefixsim.workload.generators.arrivals import session_starts
from prefixsim.workload.generators.assemble import Pieces, assemble
from prefixsim.workload.generators.build import Ids
from prefixsim.workload.generators.registry import GenerateContext, register, synthetic_source
from prefixsim.workload.links import resolve
from prefixsim.workload.ragged import offsets
from prefixsim.workload.streams import sample, sample_tokens, stream, weighted_choice, zipf_choice
from prefixsim.workload.table import I64, Workload, make_workload


@dataclass(slots=True)
class Plan:
    """Sessions before they become requests. All arrays int64 (sessions,) unless said."""

    template: I64
    tenant: I64
    turns: I64
    fork: np.ndarray  # bool


@register("sessions")
def sessions(spec: SessionsWorkload, context: GenerateContext) -> Workload:
    """Generates the workload of a `generator: sessions` section."""
    n_sessions = min(spec.requests, max(16, spec.requests // 2))
    while True:
        plan = _plan(spec, n_sessions, context)
        request = _requests(spec, plan, context)
        if request["session"].shape[0] >= spec.requests or n_sessions >= 4 * spec.requests + 16:
            break
        n_sessions = min(2 * n_sessions, 4 * spec.requests + 16)
    if request["session"].shape[0] < spec.requests:
        raise ScenarioError("max_prompt_tokens leaves no turn to most sessions: first prompts are longer than it")
    return _finish(spec, plan, request, context)


def _plan(spec: SessionsWorkload, n: int, context: GenerateContext) -> Plan:
    seed = context.seed
    template = weighted_choice([t.weight for t in spec.templates], n, stream(seed, "templates"))
    tenant = zipf_choice(spec.tenants, spec.tenant_skew, n, stream(seed, "tenants"))
    turns = np.ones(n, dtype=np.int64)
    fork = np.zeros(n, dtype=np.bool_)
    for k, t in enumerate(spec.templates):
        mine = np.flatnonzero(template == k)
        drawn = sample_tokens(t.turns or spec.turns, mine.shape[0], stream(seed, f"{t.name}/turns"))
        if spec.abandon_probability:
            leave = stream(seed, f"{t.name}/abandon").geometric(spec.abandon_probability, mine.shape[0])
            drawn = np.minimum(drawn, leave)
        turns[mine] = drawn
        if spec.fork_probability:
            fork[mine[1:]] = stream(seed, f"{t.name}/fork").random(mine.shape[0])[1:] < spec.fork_probability
    turns = np.minimum(turns, spec.requests)
    need = int(np.searchsorted(np.cumsum(turns), spec.requests)) + 1
    if spec.max_prompt_tokens is None and need < n:  # no turn is lost later: these sessions are enough
        template, tenant, turns, fork = template[:need], tenant[:need], turns[:need], fork[:need]
    return Plan(template, tenant, turns, fork)


def _requests(spec: SessionsWorkload, plan: Plan, context: GenerateContext) -> dict[str, Any]:
    """Columns of all requests, session by session, and their pieces."""
    seed = context.seed
    n_sessions = plan.turns.shape[0]
    first = offsets(plan.turns)
    n = int(first[-1])
    session = np.repeat(np.arange(n_sessions, dtype=np.int64), plan.turns)
    turn = np.arange(n, dtype=np.int64) - first[session]
    template = plan.template[session]
    parent = np.where(turn > 0, np.arange(n, dtype=np.int64) - 1, -1)
    columns = {name: np.zeros(n, np.int64) for name in ("message", "output", "thinking", "think_ns")}
    for k, t in enumerate(spec.templates):
        mine = np.flatnonzero(template == k)
        size = mine.shape[0]
        rule = t.turn_tokens or spec.turn_tokens or next((s.tokens for s in reversed(t.segments) if s.unique), None)
        if rule is None and bool((turn[mine] > 0).any()):
            raise ScenarioError(f"template {t.name!r} has several turns but no unique segment: give turn_tokens")
        if rule is not None:
            columns["message"][mine] = sample_tokens(rule, size, stream(seed, f"{t.name}/turn_tokens"))
        length = sample_tokens(t.output_tokens or spec.output_tokens, size, stream(seed, f"{t.name}/output_tokens"))
        thinking = t.thinking_tokens or spec.thinking_tokens
        thought = sample_tokens(thinking, size, stream(seed, f"{t.name}/thinking_tokens"), least=0)
        columns["output"][mine] = length
        columns["thinking"][mine] = np.minimum(thought, length - 1)
        pause = sample(t.think_time_s or spec.think_time_s, size, stream(seed, f"{t.name}/think_time"))
        columns["think_ns"][mine] = np.rint(np.minimum(pause, 9e9) * 1e9).astype(np.int64)
    _forks(spec, plan, parent, first, session, context)
    ids = Ids()
    heads = _heads(spec, plan, session, turn, parent, ids, context)
    tail_count = (parent >= 0).astype(np.int64)
    tailed = parent >= 0
    pieces = Pieces(
        parent=parent,
        **heads,
        tail_count=tail_count,
        tail_id=ids.fresh(int(tailed.sum())),
        tail_tokens=columns["message"][tailed],
        output_id=ids.fresh(n),
        output_tokens=columns["output"],
        thinking_id=ids.fresh(n) if columns["thinking"].any() else np.zeros(n, np.int64),
        thinking_tokens=columns["thinking"],
        keep_thinking=not spec.strip_thinking,
    )
    built = assemble(pieces) if spec.max_prompt_tokens is None else _cut_long(spec.max_prompt_tokens, pieces, session)
    kept = built.pop("kept", None)
    out: dict[str, Any] = {
        "session": session, "turn": turn, "parent": parent, "think_ns": columns["think_ns"], "built": built
    }  # fmt: skip
    if kept is not None:
        number = np.full(n + 1, -1, dtype=np.int64)
        number[kept] = np.arange(kept.shape[0])
        for name in ("session", "turn", "think_ns"):
            out[name] = out[name][kept]
        out["parent"] = number[parent[kept]]
    return out


def _cut_long(limit: int, p: Pieces, session: I64) -> dict[str, Any]:
    """Leaves out turns whose prompt is longer than `limit`, and all that build on them."""
    whole = assemble(p)
    good = whole["prompt_tokens"] <= limit
    for r in np.flatnonzero(~good | (p.parent >= 0)).tolist():  # parents come first
        if p.parent[r] >= 0 and not good[p.parent[r]]:
            good[r] = False
    kept = np.flatnonzero(good)
    w = take(make_workload(source=synthetic_source("sessions"), **whole), kept)
    return {
        "kept": kept, "prompt_tokens": w.prompt_tokens, "output_tokens": w.output_tokens, "atom_offset": w.atom_offset,
        "prompt_atoms": w.prompt_atoms, "atom_id": w.atom_id, "atom_tokens": w.atom_tokens,
    }  # fmt: skip


def _forks(spec: SessionsWorkload, plan: Plan, parent: I64, first: I64, session: I64, context: GenerateContext) -> None:
    """A forked session's first request continues a random turn of an earlier session of its template."""
    for k, t in enumerate(spec.templates):
        mine = np.flatnonzero(plan.template == k)
        draws = stream(context.seed, f"{t.name}/fork/which").random((mine.shape[0], 2))
        for i in np.flatnonzero(plan.fork[mine]).tolist():  # never the template's first session
            s, p = int(mine[i]), int(mine[int(draws[i, 0] * i)])
            parent[first[s]] = first[p] + int(draws[i, 1] * plan.turns[p])
            plan.tenant[s] = plan.tenant[p]


def _heads(
    spec: SessionsWorkload, plan: Plan, session: I64, turn: I64, parent: I64, ids: Ids, context: GenerateContext
) -> dict[str, I64]:
    """Heads: all segments at a session's first turn; at later ones only where a segment changes with every request."""
    n = session.shape[0]
    template = plan.template[session]
    sizes = np.array([len(t.segments) for t in spec.templates], dtype=np.int64)
    changing = np.array([any(s.every == "request" for s in t.segments) for t in spec.templates])
    headed = (parent < 0) | changing[template]
    count = np.where(headed, sizes[template], 0)
    offset = offsets(count)
    head_id, head_tokens = np.empty(int(offset[-1]), np.int64), np.empty(int(offset[-1]), np.int64)
    skip_tokens = np.zeros(n, np.int64)
    for k, t in enumerate(spec.templates):
        mine = np.flatnonzero(headed & (template == k))
        for i, segment in enumerate(t.segments):
            ident, tokens = _segment(t, segment, plan, session, turn, parent, mine, ids, spec.tenants, context)
            head_id[offset[mine] + i] = ident
            head_tokens[offset[mine] + i] = tokens
    total = offsets(head_tokens)
    own = total[offset[1:]] - total[offset[:-1]]
    replaced = headed & (parent >= 0)
    skip_tokens[replaced] = own[parent[replaced]]
    skip = np.where(replaced, sizes[template], 0)
    return {
        "head_count": count, "head_id": head_id, "head_tokens": head_tokens, "skip": skip, "skip_tokens": skip_tokens
    }  # fmt: skip


def _segment(
    t: Template, s: Segment, plan: Plan, session: I64, turn: I64, parent: I64, mine: I64, ids: Ids, tenants: int,
    context: GenerateContext,
) -> tuple[I64, I64]:  # fmt: skip
    """Ids and lengths of one segment in the heads of the given requests."""
    seed, name = context.seed, f"{t.name}/{s.name}"
    size = mine.shape[0]
    if s.unique is not None:
        if s.every == "request":
            return ids.fresh(size), sample_tokens(s.tokens, size, stream(seed, f"{name}/tokens"))
        starts = parent[mine] < 0
        new = ids.fresh(int(starts.sum()))
        lengths = sample_tokens(s.tokens, new.shape[0], stream(seed, f"{name}/tokens"))
        return _carry(mine, starts, parent, new), _carry(mine, starts, parent, lengths)
    if s.per_tenant is not None:
        choice, n_variants = plan.tenant[session[mine]], tenants
    else:
        n_variants = s.variants
        rng = stream(seed, f"{name}/variant")
        if s.every == "request":
            choice = zipf_choice(n_variants, s.skew, size, rng)
        else:
            starts = parent[mine] < 0
            choice = _carry(mine, starts, parent, zipf_choice(n_variants, s.skew, int(starts.sum()), rng))
    base = ids.shared(f"{'tenant' if s.per_tenant else 'shared'}/{s.name}", n_variants)
    lengths = sample_tokens(s.tokens, n_variants, stream(seed, f"segment/{s.name}/tokens"))
    return base + choice, lengths[choice]


def _carry(mine: I64, starts: np.ndarray, parent: I64, drawn: I64) -> I64:
    """Values drawn at session starts, carried along `parent` to the later requests of the same context."""
    if bool(starts.all()):
        return drawn
    value = np.zeros(parent.shape[0], np.int64)
    value[mine[starts]] = drawn
    for r in mine[~starts].tolist():
        value[r] = value[parent[r]]
    return value[mine]


def _finish(spec: SessionsWorkload, plan: Plan, request: dict[str, Any], context: GenerateContext) -> Workload:
    session, turn, parent = request["session"], request["turn"], request["parent"]
    n, seed = session.shape[0], context.seed
    template = plan.template[session]
    starts = session_starts(spec.arrivals, plan.turns.shape[0], context)
    after, delay = parent.copy(), np.where(parent >= 0, request["think_ns"], 0)
    arrival = starts.start_ns[session]
    if starts.previous is not None and starts.pause_ns is not None:
        if spec.fork_probability:
            raise ScenarioError("fork_probability cannot be combined with closed_loop arrivals")
        last = np.full(plan.turns.shape[0], -1, dtype=np.int64)
        last[session] = np.arange(n)
        opens = (turn == 0) & (starts.previous[session] >= 0)
        after[opens] = last[starts.previous[session[opens]]]
        delay[opens] = starts.pause_ns[session[opens]]
    arrival, _ = resolve(after.astype(np.int32), delay, arrival, after < 0)
    built = request["built"]
    tenants, tenant = _tenants(spec.tenants, plan.tenant[session])
    names = [t.name for t in spec.templates]
    spaces: dict[str, Any] = {}
    for field, column in (("cache_salt", "salt"), ("lora", "lora"), ("extra_key", "extra_key")):
        table: dict[str, int] = {"": 0}
        codes = np.zeros(n, np.int32)
        for k, t in enumerate(spec.templates):
            value = getattr(t, field)
            mine = template == k
            if value == "per_tenant" and column == "salt":
                base = len(table)
                table |= {f"tenant-{j}": base + i for i, j in enumerate(tenants) if f"tenant-{j}" not in table}
                codes[mine] = np.array([table[f"tenant-{j}"] for j in tenants])[tenant[mine]]
            elif value:
                codes[mine] = table.setdefault(value, len(table))
        spaces[column], spaces[f"{column}_names"] = codes, tuple(table)
    max_tokens = None
    if spec.max_tokens is not None:
        drawn = sample_tokens(spec.max_tokens, n, stream(seed, "max_tokens"))
        max_tokens = np.maximum(drawn, built["output_tokens"])
    w = make_workload(
        source=synthetic_source("sessions", counts={"sessions": int(session[: spec.requests].max()) + 1}),
        **built,
        arrival_ns=arrival,
        after=after,
        delay_ns=delay,
        session=session,
        turn=turn,
        group=template,
        group_names=tuple(names),
        tenant=tenant if spec.tenants > 1 else None,
        tenant_names=tuple(f"tenant-{j}" for j in tenants) if spec.tenants > 1 else (),
        priority=np.array([t.priority for t in spec.templates], dtype=np.int64)[template],
        stop=stream(seed, "stop").random(n) < spec.stop_probability if spec.stop_probability else None,
        max_tokens=max_tokens,
        **spaces,
    )
    w = take(w, np.arange(min(spec.requests, n), dtype=np.int64))
    return order_quietly(w)


def _tenants(count: int, of_request: I64) -> tuple[Sequence[int], I64]:
    """(numbers of the tenants that get a name, place of each request's tenant in them): all, or where there are more tenants
    than requests only those that occur."""
    if count <= of_request.shape[0]:
        return range(count), of_request
    used, place = np.unique(of_request, return_inverse=True)
    return used.tolist(), place.reshape(-1).astype(np.int64)
