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

from prefixsim.engines.tiers.arrays import HostTier
from prefixsim.hardware.steptime import StepCosts
from prefixsim.records import I64, EngineRecord
from prefixsim.workload.intern import ChainIndex
from prefixsim.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Progress:
    """clock_ns: the engine's next schedule instant if it has work, else the end of its last step.
    next_ns: when it wants to act by itself (NEVER when idle: nothing waiting, running or submitted for later).
    completed: int64 (k, 2) rows (request index, completion time ns) of *awaited* requests completed in this call.
    """

    clock_ns: int
    next_ns: int
    completed: I64


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """What every engine is built from: `engines.<family>.engine.build(options, inputs) -> Engine`.

    workload and chains: chains interned under the engine's namespace rule at its granularity (block or page size).
    costs: step time and host costs (`StepCosts.steps()` for `clock: steps`).
    capacity: vLLM: number of GPU blocks, null block included; SGLang: tokens in the pool (floored to pages by the engine).
    gpu_memory_gib: nominal memory of the GPU, for the engines' own defaults (0: unknown).
    gpu_architecture: as in the GPU's profile (vLLM keeps the A100, "ampere", on small defaults whatever its memory).
    replica: number of this replica. rows: int64 (n, 16) request table (records.REQUEST_COLUMNS), written in place for
    requests this replica serves; shared by all replicas of a run. awaited bool (n,): completions somebody waits for.
    seed: for anything random (schedule_policy random). keep_commits: fill EngineRecord.first_commit_ns.
    single_step: return from `advance` after every step (`granularity: step`; must not change any result).
    host: memory and link below the GPU, for engines whose options ask for a host tier (None: unknown, such options are
    refused).
    """

    workload: Workload
    chains: ChainIndex
    costs: StepCosts
    capacity: int
    rows: I64
    awaited: npt.NDArray[np.bool_]
    gpu_memory_gib: float = 0.0
    gpu_architecture: str = ""
    replica: int = 0
    seed: int = 0
    keep_commits: bool = False
    single_step: bool = False
    host: HostTier | None = None


class Engine(Protocol):
    """One replica, built by `engines.<family>.engine.build(options, inputs)`."""

    name: str
    kind: str
    granularity: int
    capacity_tokens: int
    longest_tokens: int
    """Tokens of the longest sequence that an empty pool holds."""

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

    def match_tokens(self, request: int, host: bool = False) -> int:
        """Prompt tokens of `request` that a lookup would hit now, with `host` those of the host tier too; changes nothing.
        For routers and bounds."""
        ...

    def record(self) -> EngineRecord:
        """The replica's record; request rows were written in place into the table given to `build`."""
        ...
