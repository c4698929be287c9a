"""What SGLang's engine works out of a workload before it runs, with numpy."""

from __future__ import annotations

import numpy as np

from prefixsim.workload.intern import ChainIndex, Trie, build_chains, build_trie
from prefixsim.workload.table import I64, Workload

IN_BATCH_TOKENS = 32


def heads32(workload: Workload, chains: ChainIndex, trie: Trie | None = None) -> I64:
    """Identity of each request's first 32 tokens (namespace included), int64 (n,); -1 where prompt + output are fewer.

    In-batch prefix sorting compares waiting prompts token by token but acts only on "32 or more tokens shared", so this
    identity is all it needs, whatever the page size."""
    if IN_BATCH_TOKENS % chains.granularity:
        chains = build_chains(trie if trie is not None else build_trie(workload, "sglang"), IN_BATCH_TOKENS)
    block = IN_BATCH_TOKENS // chains.granularity - 1
    n = workload.n
    heads = np.full(n, -1, dtype=np.int64)
    rows = np.flatnonzero(workload.prompt_tokens + workload.output_tokens >= IN_BATCH_TOKENS)
    # the run that holds the block: rows have few runs, so step over them all at once
    run = chains.run_offset[rows].copy()
    while True:
        behind = chains.run_end[run] <= block
        if not behind.any():
            break
        run[behind] += 1
    first = np.where(run > chains.run_offset[rows], chains.run_end[run - 1], 0)
    heads[rows] = chains.run_start[run] + block - first
    return heads


def id_ranks(workload: Workload) -> I64:
    """Place of each request's id among all ids sorted as text, int64 (n,): hrrn breaks ties so."""
    ids = workload.ids if workload.ids is not None else tuple(str(i) for i in range(workload.n))
    order = sorted(range(workload.n), key=ids.__getitem__)
    ranks = np.empty(workload.n, dtype=np.int64)
    ranks[order] = np.arange(workload.n)
    return ranks
