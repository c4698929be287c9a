"""Few-shot prompts: instruction, examples from a pool, question."""

from __future__ import annotations

import numpy as np

from prefixsim.scenario.generators import FewShotWorkload
from prefixsim.workload.generators.build import Ids, Parts, independent, limit_parts, pieces
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample_tokens, stream, zipf_choice
from prefixsim.workload.table import I64, Workload

MAX_SHOTS = 1000


def distinct(choice: I64, count: I64) -> np.ndarray:
    """bool (n, k): among the first count[i] columns of row i, those that aren't repetitions of an earlier one."""
    n, k = choice.shape
    order = np.argsort(choice, axis=1, kind="stable")
    ordered = np.take_along_axis(choice, order, axis=1)
    fresh = np.ones((n, k), dtype=np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    out = np.empty((n, k), dtype=np.bool_)
    np.put_along_axis(out, order, fresh, axis=1)
    return out & (np.arange(k) < count[:, None])


def shuffle_rows(choice: I64, rng: np.random.Generator) -> I64:
    """Each row in an order of its own."""
    return np.take_along_axis(choice, np.argsort(rng.random(choice.shape), axis=1), axis=1)


@register("few_shot")
def few_shot(spec: FewShotWorkload, context: GenerateContext) -> Workload:
    """Generates a `few_shot` section."""
    n, seed = spec.requests, context.seed
    ids = Ids()
    instruction = int(sample_tokens(spec.instruction_tokens, 1, stream(seed, "instruction"))[0])
    lengths = sample_tokens(spec.example_tokens, spec.examples, stream(seed, "examples"))
    first, base = ids.shared("head", 1), ids.shared("examples", spec.examples)
    rows = spec.sets or n
    shots = np.minimum(sample_tokens(spec.shots, rows, stream(seed, "shots"), least=0), MAX_SHOTS)
    width = max(1, int(shots.max()))
    limit_parts(n, width)
    skew = 0.0 if spec.sets else spec.skew
    choice = zipf_choice(spec.examples, skew, rows * width, stream(seed, "choice")).reshape(rows, width)
    valid = distinct(choice, shots)
    if spec.sets:
        chosen = zipf_choice(spec.sets, spec.skew, n, stream(seed, "sets"))
        choice, valid = choice[chosen], valid[chosen]
    if spec.order == "shuffled":
        place = np.argsort(stream(seed, "order").random(choice.shape), axis=1)
        choice, valid = np.take_along_axis(choice, place, axis=1), np.take_along_axis(valid, place, axis=1)
    heads = Parts(n)
    heads.add(first, instruction)
    for k in range(choice.shape[1]):
        heads.add(base + choice[:, k], lengths[choice[:, k]], valid[:, k])
    heads.add(ids.fresh(n), sample_tokens(spec.question_tokens, n, stream(seed, "question")))
    outputs = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
    return independent("few_shot", spec.arrivals, pieces(n, ids, heads, outputs), context)
