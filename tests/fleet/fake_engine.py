"""A tiny engine for tests of the fleet: first come first served, whole prompts, a cache of everything it ever computed.

It keeps the contract of `prefixsim.engines.contract.Engine`, and checks that the fleet keeps its part.
"""

from __future__ import annotations

import numpy as np

from prefixsim.engines.contract import EngineInputs, Progress
from prefixsim.records import (
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_RUNNING,
    STATUS_WAITING,
)


class FakeEngine:
    """Steps last 1000 ns plus 10 ns a computed token, plus 300 ns a replica number (so that replicas drift apart)."""

    kind = "fake"

    def __init__(self, inputs: EngineInputs, max_running: int = 4) -> None:
        self.inputs = inputs
        self.name = f"fake-{inputs.replica}"
        self.granularity = inputs.chains.granularity
        self.capacity_tokens = 1 << 30
        self.max_running = max_running
        self.queue: list[tuple[int, int]] = []  # (ready ns, request)
        self.running: dict[int, int] = {}  # request -> tokens still to produce
        self.batch_end_ns: int | None = None
        self.clock_ns = 0
        self.known: set[int] = set()
        self.last_submit_ns = 0
        self.scheduled_ns = -1
        self.log: list[tuple[int, tuple[int, ...]]] = []
        offsets, chains = inputs.chains.expand()
        self.rows = [chains[offsets[r] : offsets[r + 1]].tolist() for r in range(inputs.workload.n)]

    def submit(self, requests, at_ns) -> None:
        for request, at in zip(requests.tolist(), at_ns.tolist(), strict=True):
            assert at >= self.last_submit_ns, "submitted out of order"
            assert at > self.scheduled_ns, f"request {request} at {at} comes after the step of {self.scheduled_ns}"
            self.last_submit_ns = at
            self.queue.append((at, request))
            self.inputs.rows[request, REQ_STATUS] = STATUS_WAITING

    def _next(self) -> int:
        if self.batch_end_ns is not None:
            return self.batch_end_ns
        return max(self.queue[0][0], self.clock_ns) if self.queue else NEVER

    def advance(self, until_ns: int) -> Progress:
        rows, w = self.inputs.rows, self.inputs.workload
        completed: list[tuple[int, int]] = []
        while True:
            now = self._next()
            if self.batch_end_ns is not None and now < until_ns and now > self.clock_ns:
                self.clock_ns = now
            if now >= until_ns:
                break
            self.scheduled_ns = self.clock_ns = now
            self.batch_end_ns = None
            tokens = 0
            while self.queue and self.queue[0][0] <= now and len(self.running) < self.max_running:
                _, request = self.queue.pop(0)
                cached = self.match_tokens(request)
                rows[request, [REQ_ADMITTED_NS, REQ_CACHED_TOKENS]] = now, cached
                rows[request, REQ_STATUS] = STATUS_RUNNING
                self.running[request] = int(w.output_tokens[request]) + 1
                tokens += int(w.prompt_tokens[request]) - cached
                self.known.update(self.rows[request])
            if not self.running:
                continue
            self.log.append((now, tuple(self.running)))
            end = now + 1000 + 10 * tokens + 300 * self.inputs.replica
            self.batch_end_ns = end
            for request in list(self.running):
                self.running[request] -= 1
                if self.running[request] == int(w.output_tokens[request]):
                    rows[request, REQ_FIRST_TOKEN_NS] = end
                    self.running[request] -= 1
                if self.running[request] <= 0:
                    del self.running[request]
                    rows[request, REQ_FINISH_NS], rows[request, REQ_STATUS] = end, STATUS_FINISHED
                    if self.inputs.awaited[request]:
                        completed.append((request, end))
            if completed or self.inputs.single_step:
                break
        return Progress(self.clock_ns, self._next(), np.array(completed, dtype=np.int64).reshape(-1, 2))

    def load(self) -> tuple[int, int, int]:
        return len(self.running), len(self.queue), sum(int(self.inputs.workload.prompt_tokens[r]) for r in self.running)

    def match_tokens(self, request: int) -> int:
        n = 0
        limit = (int(self.inputs.workload.prompt_tokens[request]) - 1) // self.granularity
        for chain in self.rows[request][:limit]:
            if chain not in self.known:
                break
            n += 1
        return n * self.granularity

    def record(self):
        raise NotImplementedError
