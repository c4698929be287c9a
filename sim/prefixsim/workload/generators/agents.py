"""Agent loops: shared system prompt and tools, a task, steps of tool call and result, sub-agents that a step waits for."""

from __future__ import annotations

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.generators import AgentsWorkload
from prefixsim.workload.generators.build import Ids, Parts, linked, pieces
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample, sample_tokens, stream, zipf_choice
from prefixsim.workload.table import I64, Workload

MAX_STEPS = 100_000


@register("agents")
def agents(spec: AgentsWorkload, context: GenerateContext) -> Workload:
    """Generates an `agents` section: sessions until `requests` are reached; the last session is cut there."""
    n_sessions = 16
    while True:
        plan = _plan(spec, n_sessions, context)
        if plan["session"].shape[0] >= spec.requests:
            break
        n_sessions *= 4
        if n_sessions > 16 * spec.requests + 64:
            raise ScenarioError("max_prompt_tokens leaves no step to most sessions")
    return _build(spec, {k: v[: spec.requests] for k, v in plan.items()}, context)


def _plan(spec: AgentsWorkload, n: int, context: GenerateContext) -> dict[str, I64]:
    """Requests of n sessions: session, kind (-1: sub-agent), parent (its history), after (whom it awaits)."""
    seed = context.seed
    steps = np.minimum(sample_tokens(spec.steps, n, stream(seed, "steps")), min(MAX_STEPS, spec.requests)).tolist()
    kind = zipf_choice(spec.kinds, spec.skew, n, stream(seed, "kinds")).tolist()
    sub_rng, sub_steps_rng = stream(seed, "sub_agents"), stream(seed, "sub_steps")
    out: dict[str, list[int]] = {"session": [], "kind": [], "parent": [], "after": []}

    def request(session: int, of_kind: int, parent: int, after: int) -> int:
        for name, value in (("session", session), ("kind", of_kind), ("parent", parent), ("after", after)):
            out[name].append(value)
        return len(out["session"]) - 1

    for s in range(n):
        previous = awaited = -1
        forks = sub_rng.random(steps[s]) < spec.sub_agent_probability
        for k in range(steps[s]):
            previous = awaited = request(s, kind[s], previous, awaited)
            if forks[k] and k + 1 < steps[s]:
                inner = -1
                for _ in range(int(min(MAX_STEPS, sample_tokens(spec.sub_agent_steps, 1, sub_steps_rng)[0]))):
                    inner = awaited = request(s, -1, inner, awaited)
        if len(out["session"]) >= spec.requests + MAX_STEPS:
            break
    return {k: np.array(v, dtype=np.int64) for k, v in out.items()}


def _build(spec: AgentsWorkload, plan: dict[str, I64], context: GenerateContext) -> Workload:
    seed, n = context.seed, plan["session"].shape[0]
    kind, parent = plan["kind"], plan["parent"]
    ids = Ids()
    systems = sample_tokens(spec.system_tokens, spec.kinds, stream(seed, "system"))
    sub_system = int(sample_tokens(spec.sub_agent_system_tokens, 1, stream(seed, "sub_system"))[0])
    base, sub_id = ids.shared("system", spec.kinds), ids.shared("sub-agent", 1)
    main = kind >= 0
    heads, tails = Parts(n), Parts(n)
    heads.add(np.where(main, base + kind, sub_id), np.where(main, systems[np.maximum(kind, 0)], sub_system), parent < 0)
    heads.add(ids.fresh(n), sample_tokens(spec.task_tokens, n, stream(seed, "task")), parent < 0)
    tails.add(ids.fresh(n), sample_tokens(spec.result_tokens, n, stream(seed, "result")), parent >= 0)
    outputs = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
    pause = np.rint(np.minimum(sample(spec.tool_time_s, n, stream(seed, "tool_time")), 9e9) * 1e9).astype(np.int64)
    # whoever awaits a request that is not its own history starts at once: it is a sub-agent, or a step after one
    delay = np.where(plan["after"] == parent, pause, 0)
    made = pieces(n, ids, heads, outputs, parent=parent, tails=tails)
    names = (*(f"agent-{k}" for k in range(spec.kinds)), "sub-agent")
    w = linked(
        "agents", spec.arrivals, made, plan["session"], plan["after"], delay, context,
        group=np.where(main, kind, spec.kinds), group_names=names,
    )  # fmt: skip
    if spec.max_prompt_tokens is None:
        return w
    return _cut(w, spec.max_prompt_tokens)


def _cut(w: Workload, limit: int) -> Workload:
    """Ends sessions before their first prompt beyond the limit: it, and all later requests of the session, are left out."""
    from prefixsim.workload.edit import take

    long = w.prompt_tokens > limit
    stop = np.full(int(w.session.max()) + 1, np.iinfo(np.int32).max, dtype=np.int64)
    np.minimum.at(stop, w.session[long], w.turn[long])
    kept = np.flatnonzero(w.turn < stop[w.session])
    if kept.shape[0] == 0:
        raise ScenarioError("max_prompt_tokens is below every first prompt")
    return take(w, kept)
