"""What replicas hold when nothing runs any more: how much of each request's sequence is in GPU memory."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.records import I64, REQ_REPLICA
from prefixsim.workload.table import Workload


def resident_tokens(engines: Sequence[Any], rows: I64, workload: Workload, *, outputs: bool) -> I64:
    """int64 (m,): longest prefix, in full blocks, of each of the first m requests' sequences (outputs: prompt and output;
    else the prompt) that its replica holds on the device. rows: their request table int64 (m, 16). Changes nothing."""
    out = np.zeros(rows.shape[0], dtype=np.int64)
    length = workload.prompt_tokens[: rows.shape[0]]
    if outputs:
        length = length + workload.output_tokens[: rows.shape[0]]
    looks = [_look_vllm if isinstance(e, VllmEngine) else _look_sglang for e in engines]
    for r, (replica, tokens) in enumerate(zip(rows[:, REQ_REPLICA].tolist(), length.tolist(), strict=True)):
        if replica >= 0:
            engine = engines[replica]
            out[r] = looks[replica](engine, r, tokens // engine.granularity) * engine.granularity
    return out


def _look_vllm(engine: VllmEngine, request: int, blocks: int) -> int:
    from prefixsim.engines.vllm.pool_kernels import lookup

    if not engine.settings.enable_prefix_caching:
        return 0
    c = engine.inputs.chains
    found, _ = lookup(engine.blocks, engine.where, c.run_offset, c.run_start, c.run_end, request, blocks)
    return int(found)


def _look_sglang(engine: Any, request: int, pages: int) -> int:
    if engine.settings.disabled:
        return 0
    a, c = engine.arenas, engine.inputs.chains
    walk = (a.nodes, a.table, c.run_offset, c.run_start, c.run_end, request, pages)
    if getattr(engine, "tiered", False):
        from prefixsim.engines.sglang.hicache_kernels import peek_tiers

        return int(peek_tiers(*walk)[0])
    from prefixsim.engines.sglang.tree_kernels import peek

    return int(peek(*walk))


def latest_of_each(rows: I64, tokens: I64, last_chain: I64, used_ns: I64) -> I64:
    """Requests whose resident prefix is to be replayed, least recently used first: of those that hold the same prefix on the
    same replica, the one that used it last. last_chain int64 (m,): chain id of the prefix's last block."""
    some = np.flatnonzero(tokens > 0)
    order = some[np.lexsort((some, used_ns[some]))]
    key = np.stack([rows[order, REQ_REPLICA], last_chain[order]])
    _, last = np.unique(key[:, ::-1], axis=1, return_index=True)
    return order[np.sort(order.shape[0] - 1 - last)]
