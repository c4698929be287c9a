"""What must hold at every step of random runs, on the twin and, by its arrays, on the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import small_case
from test_vllm_twin import coefficients, timed_case, timed_engine
from twin_replay import twin_config, twin_requests

from prefixsim.engines.vllm import state as cols
from prefixsim.engines.vllm.twin import Batch, TwinScheduler
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    TL_CACHED_TOKENS,
    TL_END_NS,
    TL_EVICTED_TOKENS,
    TL_FINISHED,
    TL_KV_USED_TOKENS,
    TL_LOOKUP_TOKENS,
    TL_SCHEDULED_TOKENS,
    TL_START_NS,
)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**30).map(lambda x: 4 * x + 1 + x % 3))
def test_twin_at_every_step(seed: int) -> None:
    rows, config = small_case(seed)
    requests = twin_requests(rows, config["block_size"])
    s = TwinScheduler(twin_config(config))
    last = -1
    seen: list[int] = []

    def each(batch: Batch | None) -> None:
        nonlocal last
        # Allocated + free = total, no block in use is free or evicted, links and copies agree.
        s.pool.check([r.table for r in requests])
        assert all(not r.table for r in requests if not r.running or r.finished)
        # No request is lost: waiting, running, finished or not yet arrived, and in one of them only.
        waiting = [entry[1] for entry in s.heap] if s.c.priority else list(s.waiting)
        assert len({id(r) for r in waiting}) == len(waiting)
        for r in requests:
            places = (r in waiting) + (r in s.running) + r.finished
            assert places <= 1
            assert places == 1 or not r.admissions
        assert len(s.running) <= s.c.max_num_seqs
        if batch is None:
            return
        assert batch.instant >= last  # the clock never goes back
        last = batch.instant
        assert sum(item[1] for item in batch.items) <= s.c.max_num_batched_tokens
        for r, new, past, _ in batch.items:
            assert new > 0
            assert len(r.table) * s.c.block_size >= past + new
        # Every hit is a true token prefix of something computed before, in the same namespace.
        for r in requests:
            for at, cached, looked_up in r.admissions[len(r.admissions) - 1 :]:
                if at != batch.instant or not cached:
                    continue
                assert cached % s.c.block_size == 0
                assert cached < looked_up
                row = rows[r.index]
                mine = (row["tokens"] + row["output_tokens"])[:cached]
                assert any(
                    common(mine, rows[o]["tokens"] + rows[o]["output_tokens"]) >= cached
                    and rows[o].get("cache_salt") == row.get("cache_salt")
                    for o in [*seen, *(x.index for x in s.running), r.index if len(r.admissions) > 1 else -1]
                    if o >= 0 and (o != r.index or len(r.admissions) > 1)
                )
        seen.extend(r.index for r in s.running if r.index not in seen)

    s.run(requests, each, until=400)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_engine_at_every_step(seed: int) -> None:
    _, w, s = timed_case(seed)
    engine = timed_engine(w, s, coefficients(), single_step=True)
    engine.submit(np.arange(w.n), w.arrival_ns)
    usable = s.num_gpu_blocks - 1
    table = engine.blocks
    usable = table.shape[0] - 1
    clock = 0
    while True:
        progress = engine.advance(NEVER)
        assert progress.clock_ns >= clock
        clock = progress.clock_ns
        queue = engine.free_queue()
        assert len(set(queue)) == len(queue) == engine.state[cols.I_FREE]
        assert (table[queue, cols.B_REF] == 0).all()
        assert int((table[1:, cols.B_REF] > 0).sum()) + len(queue) == usable
        cached = table[:, cols.B_CHAIN] >= 0
        resident = engine.where[engine.where > 0]
        assert cached[resident].all()
        assert (np.unique(table[cached, cols.B_CHAIN]) == np.flatnonzero(engine.where > 0)).all()
        assert engine.load()[0] == engine.state[cols.I_RUNNING]
        if progress.next_ns == NEVER:
            break
    rows = engine.inputs.rows
    assert set(rows[:, REQ_STATUS]) <= {STATUS_FINISHED, STATUS_REJECTED}
    done = rows[rows[:, REQ_STATUS] == STATUS_FINISHED]
    order = [REQ_RELEASED_NS, REQ_READY_NS, REQ_ADMITTED_NS, REQ_FIRST_TOKEN_NS, REQ_FINISH_NS]
    assert (np.diff(done[:, order], axis=1) >= 0).all()
    assert (done[:, REQ_CACHED_TOKENS] <= done[:, REQ_DEVICE_TOKENS]).all()
    assert (done[:, REQ_DEVICE_TOKENS] <= done[:, REQ_KNOWN_TOKENS]).all()
    assert (done[:, REQ_KNOWN_TOKENS] <= done[:, REQ_LOOKUP_TOKENS]).all()
    record = engine.record()
    t = record.timeline
    if t.shape[0]:
        assert (t[1:, TL_START_NS] >= t[:-1, TL_END_NS]).all()  # the GPU does one step at a time
        for column in (TL_EVICTED_TOKENS, TL_LOOKUP_TOKENS, TL_CACHED_TOKENS, TL_FINISHED):
            assert (np.diff(t[:, column]) >= 0).all()
        assert t[-1, TL_FINISHED] == len(done)
        assert (t[:, TL_KV_USED_TOKENS] <= record.capacity_tokens).all()
        assert (t[:, TL_SCHEDULED_TOKENS] > 0).all()
    assert record.gaps[:, 1].sum() == record.totals["output_tokens"] - len(done)
    assert record.totals["lookup_tokens"] == done[:, REQ_LOOKUP_TOKENS].sum()


NO_JIT = """
import json, sys
sys.path.insert(0, {folder!r})
from small_cases import small_case
from test_vllm_twin import coefficients, timed_case, timed_engine
from prefixsim.engines.vllm.replay import replay
from prefixsim.records import NEVER
import numba, numpy as np
assert numba.config.DISABLE_JIT
out = [replay(*small_case(seed)) for seed in {seeds}]
for seed in {seeds}:
    _, w, s = timed_case(seed)
    engine = timed_engine(w, s, coefficients(), keep_commits=True)
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    out.append(engine.inputs.rows.tolist())
    out.append(engine.record().timeline.tolist())
print(json.dumps(out))
"""


def test_kernels_without_jit_are_bounds_checked_and_equal() -> None:
    """The no-JIT lane: plain Python raises on a bad index and on overflow; results are those of compiled code."""
    seeds = [0, 1, 3, 6, 9, 11]
    code = NO_JIT.format(folder=str(Path(__file__).parent), seeds=seeds)
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    import json

    from prefixsim.engines.vllm.replay import replay

    want: list[Any] = [replay(*small_case(seed)) for seed in seeds]
    for seed in seeds:
        _, w, s = timed_case(seed)
        engine = timed_engine(w, s, coefficients(), keep_commits=True)
        engine.submit(np.arange(w.n), w.arrival_ns)
        engine.advance(NEVER)
        want += [engine.inputs.rows.tolist(), engine.record().timeline.tolist()]
    assert json.loads(run.stdout) == json.loads(json.dumps(want))


@pytest.mark.parametrize("kernel_name", ["run_engine"])
def test_one_compilation_only(kernel_name: str) -> None:
    """No accidental second specialisation (an int32 or strided array somewhere)."""
    from prefixsim.engines.vllm import run_kernels

    _, w, s = timed_case(1)
    timed_engine(w, s, coefficients()).advance(NEVER)
    compiled = getattr(run_kernels, kernel_name)
    if hasattr(compiled, "signatures"):
        first, *others = compiled.signatures
        differ = [(i, str(a), str(b)) for o in others for i, (a, b) in enumerate(zip(first, o, strict=True)) if a != b]
        assert not others, f"(position, type, other type): {differ}"
