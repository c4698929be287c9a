"""Tree of thought: several thoughts for every kept node, each scored, the best expanded."""

from __future__ import annotations

import numpy as np

from prefixsim.scenario.generators import TreeOfThoughtWorkload
from prefixsim.workload.edit import take
from prefixsim.workload.generators.build import Ids, Parts, linked, pieces
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample_tokens, stream
from prefixsim.workload.table import Workload

_THINK, _SCORE = 0, 1


@register("tree_of_thought")
def tree_of_thought(spec: TreeOfThoughtWorkload, context: GenerateContext) -> Workload:
    """Generates a `tree_of_thought` section: problems until `requests` are reached.

    Thoughts of a node have the same prompt. A scoring request's prompt is its thought's conversation and a shared question;
    the next level awaits the score (or the thought). Waiting for all of a level is approximated by waiting for the parent.
    """
    seed = context.seed
    rng = stream(seed, "kept")
    parent: list[int] = []  # whose conversation goes on
    after: list[int] = []
    session: list[int] = []
    role: list[int] = []

    def request(s: int, history: int, awaited: int, what: int) -> int:
        parent.append(history)
        after.append(awaited)
        session.append(s)
        role.append(what)
        return len(parent) - 1

    s = 0
    while len(parent) < spec.requests:
        nodes = [(-1, -1)]  # (conversation that goes on, request awaited)
        for _ in range(spec.depth):
            thoughts = []
            for history, awaited in nodes:
                for _ in range(spec.branches):
                    thought = request(s, history, awaited, _THINK)
                    thoughts.append((thought, request(s, thought, thought, _SCORE) if spec.evaluate else thought))
            best = np.sort(rng.permutation(len(thoughts))[: spec.keep])
            nodes = [thoughts[int(k)] for k in best]
            if len(parent) >= spec.requests:
                break
        s += 1
    n = len(parent)
    parents, roles = np.array(parent, dtype=np.int64), np.array(role)
    ids = Ids()
    instruction = int(sample_tokens(spec.instruction_tokens, 1, stream(seed, "instruction"))[0])
    problem = sample_tokens(spec.problem_tokens, s, stream(seed, "problem"))
    step, question = sample_tokens(spec.step_tokens, 2, stream(seed, "step"))
    problems, sessions = ids.fresh(s), np.array(session, dtype=np.int64)
    heads, tails = Parts(n), Parts(n)
    heads.add(ids.shared("instruction", 1), instruction, parents < 0)
    heads.add(problems[sessions], problem[sessions], parents < 0)
    shared = ids.shared("steps", 2) + np.arange(2)
    tails.add(np.where(roles == _SCORE, shared[1], shared[0]), np.where(roles == _SCORE, question, step), parents >= 0)
    thinking = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
    scoring = sample_tokens(spec.evaluation_tokens, n, stream(seed, "evaluation_tokens"))
    outputs = np.where(roles == _SCORE, scoring, thinking)
    made = pieces(n, ids, heads, outputs, parent=parents, tails=tails)
    w = linked(
        "tree_of_thought", spec.arrivals, made, sessions, np.array(after, dtype=np.int64), np.zeros(n, np.int64), context,
        group=roles, group_names=("thought", "score"),
    )  # fmt: skip
    return take(w, np.arange(min(n, spec.requests), dtype=np.int64))
