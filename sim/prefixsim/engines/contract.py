"""What an engine is: a step machine over the requests of one workload. No SimPy, no wall clock.

The fleet promises: when it calls `advance(until_ns)`, every request that can arrive before `until_ns` has been submitted.
The engine promises: it schedules only at instants < `until_ns`, sees at each instant exactly the requests whose ready time
is <= that instant, and returns right after the first step that completes an awaited request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from prefixsim.records import I64, EngineRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """clock_ns: the engine's next schedule instant if it has work, else the end of its last step.
    next_ns: when it wants to act by itself (NEVER when idle: nothing waiting, running or submitted for later).
    completed: int64 (k, 2) rows (request index, completion time ns) of *awaited* requests completed in this call.
    """

    clock_ns: int
    next_ns: int
    completed: I64


class Engine(Protocol):
    """One replica. Built per engine folder by `build(options, workload, hardware, ...)`."""

    name: str
    kind: str
    granularity: int
    capacity_tokens: int

    def submit(self, requests: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]) -> None:
        """Requests (workload indices) reach this replica at the given times, non-decreasing, not before earlier ones.

        One call may carry the whole workload: the kernel then consumes arrivals by itself.
        """
        ...

    def advance(self, until_ns: int) -> Progress:
        """Runs steps while the next schedule instant is < until_ns (NEVER: to the end)."""
        ...

    def load(self) -> tuple[int, int, int]:
        """(running requests, waiting requests, KV tokens in use) now, for routers."""
        ...

    def match_tokens(self, request: int) -> int:
        """Prompt tokens of `request` that a lookup would hit now; changes nothing. For routers and bounds."""
        ...

    def record(self) -> EngineRecord:
        """The replica's record; request rows were written in place into the table given to `build`."""
        ...
