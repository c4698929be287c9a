"""The waiting queue on its own: long random walks beside plain Python lists, both policies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from prefixsim.engines.vllm import queue_kernels as qk
from prefixsim.engines.vllm import state as cols
from prefixsim.records import (
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_REJECTED,
    STATUS_WAITING,
    new_request_rows,
)

N = 30


class Queue:
    """The arrays, and the same as lists. running: admitted. waiting: preempted first, in the order they are admitted again."""

    def __init__(self, by_priority: bool, rng: random.Random) -> None:
        self.by_priority = by_priority
        self.rank = np.array([rng.randrange(3) for _ in range(N)], dtype=np.int64)
        self.requests = rng.sample(range(N), N)  # not in file order: positions and requests differ
        self.state = np.zeros(cols.I_COLS, dtype=np.int64)
        self.state[cols.I_PRIORITY] = by_priority
        self.state[cols.I_SUBMITTED] = N
        self.queue = np.zeros((N, cols.QUEUE_COLS), dtype=np.int64)
        self.queue[:, cols.Q_REQ] = self.requests
        self.lists = np.full((3, N), -1, dtype=np.int64)
        self.heap = np.full(N, -1, dtype=np.int64)
        self.waiting: list[int] = []
        self.running: list[int] = []

    def order(self, pos: int) -> tuple[int, int]:
        return int(self.rank[self.requests[pos]]), pos

    def args(self) -> tuple:
        return self.state, self.lists, self.queue, self.heap, self.rank

    def arrive(self) -> None:
        pos = int(self.state[cols.I_FOLLOWING])
        if pos == N:
            return
        self.state[cols.I_FOLLOWING] += 1
        self.waiting.append(pos)
        if self.by_priority:
            qk.push_waiting(*self.args(), pos)
            self.waiting.sort(key=self.order)

    def admit(self) -> None:
        if self.waiting:
            assert qk.head_of_queue(self.state, self.lists, self.heap) == self.waiting[0]
            qk.pop_waiting(*self.args())
            self.running.append(self.waiting.pop(0))

    def preempt(self, rng: random.Random) -> None:
        if self.running:
            pos = self.running.pop(rng.randrange(len(self.running)))
            qk.push_waiting(*self.args(), pos)
            self.waiting.insert(0, pos)
            if self.by_priority:
                self.waiting.sort(key=self.order)

    def end_while_waiting(self, rng: random.Random) -> None:
        """A preempted request whose last token was in flight."""
        stack = len(self.waiting) if self.by_priority else int(self.state[cols.I_STACK])
        if stack:
            pos = self.waiting.pop(rng.randrange(stack))
            qk.remove_waiting(*self.args(), pos)

    def same(self) -> None:
        assert qk.waiting_count(self.state) == len(self.waiting)
        if self.by_priority:
            heap = self.heap[: self.state[cols.I_HEAP]].tolist()
            assert sorted(heap) == sorted(self.waiting)
            assert all(self.order(heap[(i - 1) // 2]) < self.order(heap[i]) for i in range(1, len(heap)))
        else:
            stack = self.lists[cols.LIST_PREEMPTED, : self.state[cols.I_STACK]].tolist()
            arrived = list(range(self.state[cols.I_HEAD], self.state[cols.I_FOLLOWING]))
            assert stack[::-1] + arrived == self.waiting


@pytest.mark.parametrize("by_priority", [False, True])
def test_queue_is_its_definition(by_priority: bool) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        queue = Queue(by_priority, rng)
        arrivals = rng.choice([1, 4])
        for _ in range(200):
            (what,) = rng.choices(["arrive", "admit", "preempt", "end"], (arrivals, 4, 4, 2))
            if what == "arrive":
                queue.arrive()
            elif what == "admit":
                queue.admit()
            elif what == "preempt":
                queue.preempt(rng)
            else:
                queue.end_while_waiting(rng)
            queue.same()
        while queue.waiting:
            queue.admit()
            queue.same()


def test_one_thread_hashes_what_is_not_refused() -> None:
    rows = new_request_rows(5)
    state = np.zeros(cols.I_COLS, dtype=np.int64)
    state[cols.I_SUBMITTED] = 1  # one came before
    queue = np.zeros((5, cols.QUEUE_COLS), dtype=np.int64)
    prompts = np.array([10, 40, 41, 20, 5], dtype=np.int64)
    requests, at = np.array([4, 2, 1, 3]), np.array([100, 100, 101, 1000])
    assert qk.enqueue(state, queue, rows, prompts, requests, at, 7, 2.0, 40) == 1
    assert rows[[4, 1, 3], REQ_READY_NS].tolist() == [110, 190, 1040], "nothing for the refused one, no gap is kept"
    assert rows[[4, 2, 1, 3], REQ_RELEASED_NS].tolist() == at.tolist()
    assert rows[[4, 2, 1, 3], REQ_REPLICA].tolist() == [7] * 4
    waits, refused = STATUS_WAITING, STATUS_REJECTED
    assert rows[[4, 2, 1, 3], REQ_STATUS].tolist() == [waits, refused, waits, waits]
    assert state[cols.I_SUBMITTED] == 4
    assert queue[1:4, cols.Q_REQ].tolist() == [4, 1, 3]
    assert queue[1:4, cols.Q_READY_NS].tolist() == [110, 190, 1040]
    assert state[cols.I_HOST_NS] == 1040
