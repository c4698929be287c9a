"""What the golden loop leaves out of the order of waiting requests, and timed runs do as SGLang (docs/sglang.md): a chunk that
goes on leaves room for shorter waiting prompts under shortest-prefill-first; hrrn weighs what was prefilled since arrival."""

from __future__ import annotations

import random

import numpy as np
import pytest

from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.prefill_kernels import shorter_waiting
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_FINISH_NS,
    REQ_PREEMPTIONS,
    REQ_STATUS,
    STATUS_FINISHED,
    TL_SCHEDULED_TOKENS,
)
from prefixsim.workload.table import Source, Workload, make_workload

from .cases import engine_of, workload_of

CHUNK = 64


def workload(prompts: list[int]) -> Workload:
    """The first prompt arrives at 0, the others while its first chunk is computed. They share nothing."""
    n = len(prompts)
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=prompts,
        output_tokens=[2] * n,
        atom_offset=list(range(n + 1)),
        prompt_atoms=[1] * n,
        atom_id=list(range(n)),
        atom_tokens=prompts,
        arrival_ns=[0] + [1000] * (n - 1),
    )


def prefills(policy: str, prompts: list[int]) -> list[int]:
    """Tokens of each prefill step, in order."""
    w = workload(prompts)
    engine = engine_of(
        w, 4000, page_size=4, chunked_prefill_size=CHUNK, schedule_policy=policy, disable_overlap_schedule=True
    )
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    steps = engine.record().timeline[:, TL_SCHEDULED_TOKENS].tolist()
    assert sum(steps) == sum(prompts) + w.n, "every prompt token once, one decode each"
    return [t for t in steps if t > len(prompts)]


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        # 200 - 64 are left: room for 10 and 20 (12 and 20 in pages) beside a chunk of 32; 500 is not shorter
        ("shortest-prefill-first", [64, 32 + 30, 64, 40 + 24, *[64] * 7, 28]),
        ("fcfs", [64, 64, 64, 8 + 30 + 24, *[64] * 7, 28]),
    ],
)
def test_shorter_prompts_go_beside_the_chunk(policy: str, steps: list[int]) -> None:
    assert prefills(policy, [200, 20, 10, 500]) == steps


def test_the_chunk_keeps_a_page() -> None:
    """60 of 64 may be given away, 64 not: then the waiting one waits, and nothing is held back for it."""
    assert prefills("shortest-prefill-first", [200, 60])[:2] == [64, 4 + 60]
    assert prefills("shortest-prefill-first", [200, 61])[:2] == [64, 64]


def test_room_held_back_is_its_definition() -> None:
    rng = random.Random(1)
    for _ in range(500):
        page, room, left = rng.choice([1, 4, 16]), rng.randint(0, 80), rng.randint(1, 80)
        works = [rng.randint(0, 40) for _ in range(rng.randint(0, 5))]
        slots = np.zeros((5, st.SLOT_COLUMNS), dtype=np.int64)
        scalars = np.zeros(st.N_SCALARS, dtype=np.int64)
        scalars[st.S_PAGE] = page
        order = rng.sample(range(5), len(works))
        for slot, work in zip(order, works, strict=True):
            prefix = rng.randint(0, 9)
            slots[slot, [st.R_PROMPT, st.R_MADE, st.R_PREFIX]] = work + prefix - 1, 1, prefix
        taken = [-(-max(1, work) // page) * page for work in works]
        fits = [
            max(1, work) < left and sum(taken[: i + 1]) + page <= room for i, work in enumerate(works)
        ]  # in order of the queue, up to the first that is too long
        count = fits.index(False) if False in fits else len(fits)
        want = sum(taken[:count]) if room >= 2 * page else 0
        assert shorter_waiting(scalars, slots, np.array(order, dtype=np.int64), len(works), room, left) == want


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # one at a time; after b, c has waited through 300 tokens for 60 of its own, e for 1000; after c, d through 60 for 50;
        # f, which came while c ran, is shorter than d but has waited through nothing
        ("hrrn", "abcdfe"),
        ("shortest-prefill-first", "acdfbe"),
        ("fcfs", "abcedf"),
    ],
)
def test_hrrn_weighs_prefill_since_arrival_by_what_is_left(policy: str, order: str) -> None:
    prompts = {"a": (100, 0), "b": (300, 1), "c": (60, 1), "e": (1000, 1), "d": (50, 30), "f": (40, 50)}
    rows = [
        {"id": name, "step": 0, "tokens": [100 * i] * tokens, "output_tokens": [1] * 200, "priority": 0}
        for i, (name, (tokens, _)) in enumerate(prompts.items())
    ]
    w = workload_of(rows, arrival_ns=np.array([ms for _, ms in prompts.values()], dtype=np.int64) * 1_000_000)
    engine = engine_of(w, 9000, max_running_requests=1, schedule_policy=policy, disable_overlap_schedule=True)
    engine.submit(np.arange(w.n), w.arrival_ns)
    engine.advance(NEVER)
    admitted = engine.inputs.rows[:, REQ_ADMITTED_NS]
    assert "".join(list(prompts)[i] for i in np.argsort(admitted)) == order


def test_results_in_flight_free_memory_before_anybody_is_retracted() -> None:
    """The last token of one request is in flight and the pool is full: the other decodes one step later. One page less, and
    somebody is retracted before that."""

    def ends(capacity: int) -> tuple[list[int], int]:
        rows = [
            {"id": name, "step": 0, "tokens": [i] * 10, "output_tokens": [i] * outputs, "priority": 0}
            for i, (name, outputs) in enumerate((("long", 200), ("short", 20)))
        ]
        w = workload_of(rows, arrival_ns=np.array([0, 2_000_000]))
        engine = engine_of(w, capacity, schedule_conservativeness=0.01)
        engine.submit(np.arange(2), w.arrival_ns)
        engine.advance(NEVER)
        table = engine.inputs.rows
        assert (table[:, REQ_STATUS] == STATUS_FINISHED).all(), "alone in a full pool it would be aborted"
        return table[:, REQ_PREEMPTIONS].tolist(), int(table[1, REQ_FINISH_NS])

    (retracted, _), (full, ended), (roomy, in_time) = ends(77), ends(78), ends(99)
    assert sum(retracted) == 1
    assert full == roomy == [0, 0]
    assert ended == in_time, "the one that ends is not held up"
