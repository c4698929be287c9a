"""Scans: documents read once, or round and round in order; the traffic that empties an LRU cache for nothing."""

from __future__ import annotations

import numpy as np

from prefixsim.scenario.generators import ScanWorkload
from prefixsim.workload.generators.build import Ids, Parts, independent, pieces
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample_tokens, stream
from prefixsim.workload.table import Workload


@register("scan")
def scan(spec: ScanWorkload, context: GenerateContext) -> Workload:
    """Generates a `scan` section."""
    n, seed = spec.requests, context.seed
    ids = Ids()
    instruction = int(sample_tokens(spec.instruction_tokens, 1, stream(seed, "instruction"))[0])
    size = min(n, spec.documents or n)
    lengths = sample_tokens(spec.document_tokens, size, stream(seed, "documents"))
    heads = Parts(n)
    heads.add(ids.shared("instruction", 1), instruction)
    read = np.arange(n, dtype=np.int64) % size
    documents = ids.shared("documents", size) if spec.documents else int(ids.fresh(size)[0])
    heads.add(documents + read, lengths[read])
    outputs = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
    return independent("scan", spec.arrivals, pieces(n, ids, heads, outputs), context)
