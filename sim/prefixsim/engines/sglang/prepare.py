"""What SGLang's engine works out of a workload before it runs, with numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefixsim.engines.sglang.facts import Settings
from prefixsim.engines.sglang.state import (
    FIRST_AWARE,
    HRRN,
    IN_BATCH_TOKENS,
    RANDOM,
    STATIC_COLUMNS,
    W_AWAITED,
    W_HEAD,
    W_MAX_NEW,
    W_OUTPUTS,
    W_PRIORITY,
    W_PROMPT,
    W_RANK,
    W_STOP,
)
from prefixsim.workload.intern import ChainIndex, Trie, build_chains, build_trie
from prefixsim.workload.table import I64, Workload


def heads32(workload: Workload, chains: ChainIndex, trie: Trie | None = None) -> I64:
    """Identity of each request's first 32 tokens (namespace included), int64 (n,); -1 where prompt + output are fewer.

    In-batch prefix sorting compares waiting prompts token by token but acts only on "32 or more tokens shared", so this
    identity is all it needs, whatever the page size."""
    if IN_BATCH_TOKENS % chains.granularity:
        chains = build_chains(trie if trie is not None else build_trie(workload, "sglang"), IN_BATCH_TOKENS)
    block = IN_BATCH_TOKENS // chains.granularity - 1
    heads = np.full(workload.n, -1, dtype=np.int64)
    rows = np.flatnonzero(workload.prompt_tokens + workload.output_tokens >= IN_BATCH_TOKENS)
    run = chains.run_offset[rows].copy()
    while True:  # rows have few runs: step over them all at once
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


def static_rows(
    workload: Workload, chains: ChainIndex, settings: Settings, awaited: npt.NDArray[np.bool_], seed: int
) -> tuple[I64, int, int]:
    """(static rows int64 (n, STATIC_COLUMNS), number of distinct 32-token heads, requests whose output was cut).

    A real server cuts max_new_tokens to what context and pool allow; requests longer than that end there, by length."""
    static = np.zeros((workload.n, STATIC_COLUMNS), dtype=np.int64)
    outputs, allowed, stop = workload.output_tokens, workload.max_tokens, workload.stop
    cut = 0
    if settings.max_length is not None:
        page = settings.page_size
        whole = -(-workload.prompt_tokens // page) * page
        room = np.minimum(settings.max_length - workload.prompt_tokens - 1, settings.capacity_tokens - whole - page - 1)
        room = np.maximum(room, 1)
        cut = int(np.count_nonzero(outputs > room))
        stop = stop & (outputs <= room)
        outputs, allowed = np.minimum(outputs, room), np.minimum(allowed, room)
    static[:, W_PROMPT] = workload.prompt_tokens
    static[:, W_OUTPUTS] = outputs
    static[:, W_MAX_NEW] = np.maximum(allowed, outputs)
    static[:, W_PRIORITY] = workload.priority
    static[:, W_STOP] = stop
    static[:, W_AWAITED] = awaited
    n_heads = 1
    static[:, W_HEAD] = -1
    if settings.schedule >= FIRST_AWARE:
        heads = heads32(workload, chains)
        distinct, dense = np.unique(heads, return_inverse=True)
        static[:, W_HEAD] = np.where(heads >= 0, dense.reshape(-1), -1)
        n_heads = distinct.shape[0]
    if settings.schedule == HRRN:
        static[:, W_RANK] = id_ranks(workload)
    elif settings.schedule == RANDOM:
        static[:, W_RANK] = np.random.default_rng(seed).integers(0, 1 << 30, workload.n)
    return static, n_heads, cut
