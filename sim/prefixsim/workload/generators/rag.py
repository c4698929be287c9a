"""Retrieval-augmented prompts: system prompt, popular documents in a fixed or shuffled order, question."""

from __future__ import annotations

import numpy as np

from prefixsim.scenario.generators import RagWorkload
from prefixsim.workload.generators.build import Ids, Parts, independent, limit_parts, pieces
from prefixsim.workload.generators.few_shot import MAX_SHOTS, distinct
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample_tokens, stream, zipf_choice
from prefixsim.workload.table import Workload


@register("rag")
def rag(spec: RagWorkload, context: GenerateContext) -> Workload:
    """Generates a `rag` section. A document drawn twice for a prompt stands in it once."""
    n, seed = spec.requests, context.seed
    ids = Ids()
    system = int(sample_tokens(spec.system_tokens, 1, stream(seed, "system"))[0])
    lengths = sample_tokens(spec.document_tokens, spec.documents, stream(seed, "documents"))
    first, base = ids.shared("head", 1), ids.shared("documents", spec.documents)
    wanted = np.minimum(sample_tokens(spec.documents_per_request, n, stream(seed, "wanted"), least=0), MAX_SHOTS)
    width = max(1, int(wanted.max()))
    limit_parts(n, width)
    choice = zipf_choice(spec.documents, spec.skew, n * width, stream(seed, "choice")).reshape(n, width)
    valid = distinct(choice, wanted)
    if spec.order == "fixed":
        place = np.argsort(choice, axis=1, kind="stable")
        choice, valid = np.take_along_axis(choice, place, axis=1), np.take_along_axis(valid, place, axis=1)
    heads = Parts(n)
    heads.add(first, system)
    for k in range(width):
        heads.add(base + choice[:, k], lengths[choice[:, k]], valid[:, k])
    heads.add(ids.fresh(n), sample_tokens(spec.question_tokens, n, stream(seed, "question")))
    outputs = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
    return independent("rag", spec.arrivals, pieces(n, ids, heads, outputs), context)
