"""Requests that have not reached the fleet yet, in order of time."""

from __future__ import annotations

import heapq

import numpy as np

from prefixsim.records import NEVER
from prefixsim.workload.table import I32, I64


class Pending:
    """Arrivals known from the start (a cursor over sorted arrays) and releases that become known on the way (a heap).

    Order: time, then request index.
    """

    def __init__(self, requests: I64, times_ns: I64) -> None:
        order = np.lexsort((requests, times_ns))
        self.requests = np.ascontiguousarray(requests[order])
        self.times_ns = np.ascontiguousarray(times_ns[order])
        self.cursor = 0
        self.heap: list[tuple[int, int]] = []

    def push(self, request: int, time_ns: int) -> None:
        """A release that has become known."""
        heapq.heappush(self.heap, (time_ns, request))

    def peek_ns(self) -> int:
        """Time of the next one; NEVER when none is left."""
        first = int(self.times_ns[self.cursor]) if self.cursor < len(self.times_ns) else NEVER
        return min(first, self.heap[0][0]) if self.heap else first

    def take(self, until_ns: int) -> list[tuple[int, int]]:
        """(time, request) of all with time <= until_ns, in order; they are pending no more."""
        out: list[tuple[int, int]] = []
        times, n = self.times_ns, len(self.times_ns)
        while self.cursor < n and times[self.cursor] <= until_ns:
            out.append((int(times[self.cursor]), int(self.requests[self.cursor])))
            self.cursor += 1
        if self.heap and self.heap[0][0] <= until_ns:
            while self.heap and self.heap[0][0] <= until_ns:
                out.append(heapq.heappop(self.heap))
            out.sort()
        return out


class Followers:
    """Who waits for whose completion. `delay_ns`: think times; `least_delay_ns`: the least of all (0 if nobody waits)."""

    def __init__(self, after: I32, delay_ns: I64) -> None:
        waiting = np.flatnonzero(after >= 0)
        order = waiting[np.argsort(after[waiting], kind="stable")]
        self.requests = order
        self.offset = np.searchsorted(after[order], np.arange(len(after) + 1))
        self.delay_ns = delay_ns
        self.any = len(waiting) > 0
        self.least_delay_ns = int(delay_ns[waiting].min()) if self.any else 0

    def of(self, request: int) -> I64:
        """Requests that wait for this one, ascending."""
        return self.requests[self.offset[request] : self.offset[request + 1]]
