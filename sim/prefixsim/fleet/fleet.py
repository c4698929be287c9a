"""Replicas and arrivals in simulated time, on SimPy. Time is int64 ns.

Three ways to serve a workload, chosen by what couples the replicas:

- nothing (one replica, or a router blind to state, and no awaited completions): all requests are routed beforehand, and a
  replica's process runs its engine to the end between two events (`granularity: jump`). One replica with awaited
  completions is disturbed by nobody else either: its process hands out what it releases itself;
- a router that looks at state: arrivals are events; at each, the replicas the router looks at catch up to that instant.
  A replica's own process then only runs it to the end after the last arrival. Where a kernel knows the router's rule
  (`joint`), it does the same for many arrivals between two events;
- awaited completions (`after` + `delay`) on several replicas, or `granularity: step`: each replica's process runs its engine up to its
  horizon, the earliest instant at which anything outside could matter: the next pending arrival or release, and the
  earliest release that a completion on another replica could cause.

Why the horizon is safe: a replica whose next schedule instant is t completes nothing before t + 1 ns that it has not
already reported, so it releases nothing before t + 1 + least delay. The engine itself stops after its own completions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import simpy

from prefixsim.engines.contract import Engine, Progress
from prefixsim.errors import PrefixsimError
from prefixsim.fleet.pending import Followers, Pending
from prefixsim.fleet.routers.base import Router
from prefixsim.records import NEVER, REQ_RELEASED_NS, REQ_REPLICA
from prefixsim.workload.table import I32, I64

CHUNK, CLOSED_CHUNK = 50_000, 1_000
"""Requests after which a run of one replica lets progress be shown and Ctrl-C be heard."""
Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FleetResult:
    """events: SimPy events processed. never_released: requests whose awaited completion did not come."""

    events: int
    never_released: int


class Fleet:
    """One run. Build, then `serve` once."""

    def __init__(
        self,
        engines: Sequence[Engine],
        router: Router,
        rows: I64,
        arrival_ns: I64,
        after: I32,
        delay_ns: I64,
        *,
        single_step: bool = False,
        jointly: bool = True,
        report: Report | None = None,
    ) -> None:
        first = np.flatnonzero(after < 0).astype(np.int64)
        self.pending = Pending(first, arrival_ns[first])
        self.followers = Followers(after, delay_ns)
        self.engines = list(engines)
        self.router = router
        self.rows = rows
        self.single_step = single_step
        self.jointly = jointly
        self.report = report
        self.env = simpy.Environment()
        self.eager = self.followers.any or single_step
        self.next_ns = [NEVER] * len(self.engines)
        self.wakes: list[simpy.Event] = [self.env.event() for _ in self.engines]
        self.alarms: list[simpy.Event | None] = [None] * len(self.engines)
        self.caught_up_ns = [-1] * len(self.engines)
        self.known_loads: list[int | None] = [None] * len(self.engines)  # since it last ran or was sent a request
        self.released = 0
        self.passed = 0  # requests whose arrival uncoupled replicas have passed, for progress
        self.looks = Pending(first, np.maximum(arrival_ns[first] - router.lag_ns, 0)) if router.lag_ns else None
        self.bell: simpy.Event | None = None
        self.bell_ns = NEVER

    # ---- the view that routers have -----------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return int(self.env.now)

    def outstanding(self, replica: int) -> int:
        """Requests sent to a replica and not finished."""
        self._catch_up(replica)
        load = self.known_loads[replica]
        if load is None:
            running, waiting, _ = self.engines[replica].load()
            load = self.known_loads[replica] = running + waiting
        return load

    def loads(self) -> list[int]:
        """`outstanding` of every replica: what most routers ask at every arrival, hence in one loop."""
        return [self.outstanding(i) for i in range(len(self.engines))]

    def kv_tokens(self, replica: int) -> int:
        """KV tokens held by running requests."""
        self._catch_up(replica)
        return self.engines[replica].load()[2]

    def match_tokens(self, replica: int, request: int) -> int:
        """Prompt tokens that a lookup would hit now."""
        self._catch_up(replica)
        return self.engines[replica].match_tokens(request)

    def _catch_up(self, replica: int) -> None:
        """Runs the steps scheduled before this instant (in eager runs its own process has done so: then none is left)."""
        now = self.env.now
        if self.caught_up_ns[replica] < now:
            self.caught_up_ns[replica] = now
            if self.next_ns[replica] <= now:
                self._advance(replica, now)

    # ---- serving ------------------------------------------------------------------------------------------------

    def serve(self) -> FleetResult:
        """Runs to the end."""
        alone = len(self.engines) == 1 and not self.single_step and self.looks is None
        if alone and self.followers.any:
            self.env.process(self._closed_alone())
        elif self.followers.any or (self.router.looks_at_state and not alone):
            self.env.process(self._arrivals_jointly() if self._joins() else self._arrivals())
            for i in range(len(self.engines)):
                self.env.process(self._replica(i))
        else:
            self._route_all()
            for i in range(len(self.engines)):
                self.env.process(self._replica_alone(i))
        events = 0
        while self.env.peek() != float("inf"):
            self.env.step()
            events += 1
            if self.report is not None and (events % 256 == 0 or self.passed):
                self.report(self.passed or self.released)
        for waited in (*self.wakes, self.bell):  # for ever: a cycle that would keep all memory until it is collected
            if waited is not None:
                waited.callbacks = []
        return FleetResult(events, len(self.rows) - self.released)

    def _route_all(self) -> None:
        requests, times = self.pending.requests, self.pending.times_ns
        one = len(self.engines) == 1
        replicas = np.zeros(len(requests), dtype=np.int64) if one else self.router.route_all(requests)
        self.rows[requests, REQ_REPLICA] = replicas
        self.rows[requests, REQ_RELEASED_NS] = times
        for i, engine in enumerate(self.engines):
            mine = replicas == i
            if mine.any():
                engine.submit(np.ascontiguousarray(requests[mine]), np.ascontiguousarray(times[mine]))
        self.released = len(requests)

    def _replica_alone(self, i: int) -> Generator[simpy.Event, Any, None]:
        """A replica that nothing outside can disturb: to the end, in a few pieces for the sake of progress and Ctrl-C."""
        times = self.pending.times_ns
        cuts = [int(t) for t in times[CHUNK::CHUNK]] if not self.single_step else []
        for until in [*cuts, NEVER]:
            while True:
                progress = self._advance(i, until)
                if progress.next_ns >= until or progress.next_ns == NEVER:
                    break
                yield self.env.timeout(max(progress.next_ns - self.now_ns, 0))
            self.passed += CHUNK // len(self.engines)
            if progress.next_ns == NEVER and until == NEVER:
                yield self.env.timeout(max(progress.clock_ns - self.now_ns, 0))
            elif until > self.now_ns:
                yield self.env.timeout(until - self.now_ns)

    def _closed_alone(self) -> Generator[simpy.Event, Any, None]:
        """A single replica whose completions release requests: nothing else is there to disturb it, so it takes what is due
        by its next schedule instant, runs to the next pending time or awaited completion, and so on, without events."""
        engine, pending, due = self.engines[0], self.pending, 0
        while True:
            upcoming = pending.peek_ns()
            if upcoming == NEVER and self.next_ns[0] == NEVER:
                return
            if upcoming <= self.next_ns[0]:
                taken = np.array(
                    pending.take(upcoming if self.next_ns[0] == NEVER else self.next_ns[0]), dtype=np.int64
                )
                times, requests = np.ascontiguousarray(taken[:, 0]), np.ascontiguousarray(taken[:, 1])
                self.rows[requests, REQ_REPLICA] = 0
                self.rows[requests, REQ_RELEASED_NS] = times
                engine.submit(requests, times)
                self.released += len(requests)
            self._advance(0, pending.peek_ns())
            if self.released >= due:
                due += CLOSED_CHUNK
                coming = min(self.next_ns[0], pending.peek_ns())
                if coming != NEVER:
                    yield self.env.timeout(max(coming - self.now_ns, 0))

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        """Wakes at each pending arrival, release and look, and hands them out."""
        while True:
            self._deliver()
            upcoming = self._outside_ns()
            if upcoming == NEVER and not self.eager:
                for i in range(len(self.engines)):
                    self._ring(i)
            if not self.eager:
                if upcoming == NEVER:
                    return
                yield self.env.timeout(upcoming - self.env.now)
                continue
            self.bell, self.bell_ns = self.env.event(), NEVER
            self._set_bell(upcoming)
            yield self.bell

    def _joins(self) -> bool:
        if self.router.kind != "cache_aware" or self.eager or not self.jointly:
            return False
        from prefixsim.fleet.joint import joins  # loads vLLM's kernels

        return joins(self.engines, self.router)

    def _arrivals_jointly(self) -> Generator[simpy.Event, Any, None]:
        """As `_arrivals` where the replicas' kernel knows the router's rule: many arrivals between two events."""
        from prefixsim.fleet.joint import Joint

        times = self.pending.times_ns
        joint = Joint(self.engines, cast(Any, self.router), times, self.pending.requests)
        joint.start(self.next_ns, self.caught_up_ns)
        for first in range(0, len(times), CLOSED_CHUNK):
            stop = min(first + CLOSED_CHUNK, len(times))
            yield self.env.timeout(max(int(times[stop - 1]) - self.now_ns, 0))
            joint.send(stop)
            self.released = stop
        self.next_ns = joint.finish()
        for i in range(len(self.engines)):
            self._ring(i)

    def _replica(self, i: int) -> Generator[simpy.Event, Any, None]:
        """One replica. Eager: up to its horizon each time it wakes. Not eager: wakes once, after the last arrival."""
        while True:
            yield self.wakes[i]
            self.wakes[i] = self.env.event()
            if self.eager:
                self._deliver()
                if self.next_ns[i] < self.now_ns:
                    raise AssertionError(f"replica {i} was left behind: {self.next_ns[i]} < {self.now_ns} ns")
                if self.next_ns[i] > self.now_ns:
                    self._set_alarm(i)
                    continue
                self._advance(i, self._horizon(i))
                self._set_alarm(i)
            else:
                self._advance(i, NEVER)

    # ---- parts --------------------------------------------------------------------------------------------------

    def _outside_ns(self) -> int:
        """When the next thing comes from outside the replicas."""
        upcoming = self.pending.peek_ns()
        return min(upcoming, self.looks.peek_ns()) if self.looks is not None else upcoming

    def _horizon(self, i: int) -> int:
        """First instant at which replica i may not schedule yet."""
        horizon = self._outside_ns()
        if self.followers.any and len(self.engines) > 1:
            mine = self.next_ns[i]
            self.next_ns[i] = NEVER
            others = min(self.next_ns)
            self.next_ns[i] = mine
            if others != NEVER:
                horizon = min(horizon, others + 1 + (0 if self.looks is not None else self.followers.least_delay_ns))
        return horizon

    def _advance(self, i: int, until_ns: int) -> Progress:
        progress = self.engines[i].advance(until_ns)
        self.next_ns[i] = progress.next_ns
        self.known_loads[i] = None
        if self.followers.any:
            for request, completed_ns in progress.completed.tolist():
                self._release_followers(request, completed_ns)
        return progress

    def _release_followers(self, request: int, completed_ns: int) -> None:
        for follower in self.followers.of(request).tolist():
            at = completed_ns + int(self.followers.delay_ns[follower])
            self.pending.push(follower, at)
            if self.looks is not None:
                self.looks.push(follower, max(at - self.router.lag_ns, completed_ns))
        self._set_bell(self._outside_ns())

    def _deliver(self) -> None:
        """Looks and arrivals that are due are handed out, in order of time (looks first at equal times)."""
        now = self.now_ns
        if self.looks is not None:
            for _, request in self.looks.take(now):
                self.router.observe(request, self)
        due = self.pending.take(now)
        if not due:
            return
        for at, request in due:
            replica = self.router.route(request, self)
            if not 0 <= replica < len(self.engines):
                raise PrefixsimError(f"router {self.router.kind}: no replica {replica}")
            self.rows[request, REQ_REPLICA] = replica
            self.rows[request, REQ_RELEASED_NS] = at
            self.engines[replica].submit(np.array([request], dtype=np.int64), np.array([at], dtype=np.int64))
            self.known_loads[replica] = None
            self.released += 1
            self.next_ns[replica] = min(self.next_ns[replica], at)  # unknown before the next `advance`: at least `at`
            if self.eager:
                self._advance(replica, at)  # schedules nothing before `at`: only tells when it wants to act
                self._set_alarm(replica)

    def _set_alarm(self, i: int) -> None:
        """Wakes replica i when it wants to act."""
        upcoming = self.next_ns[i]
        if upcoming == NEVER:
            self.alarms[i] = None
            return
        alarm = self.env.timeout(max(upcoming - self.now_ns, 0), value=i)
        self.alarms[i] = alarm
        alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: Any) -> None:
        if self.alarms[alarm.value] is alarm:
            self._ring(alarm.value)

    def _ring(self, i: int) -> None:
        if not self.wakes[i].triggered:
            self.wakes[i].succeed()

    def _set_bell(self, at_ns: int) -> None:
        """Wakes the arrivals' process at the given time, if nothing does so earlier."""
        bell = self.bell
        if bell is None or at_ns >= self.bell_ns:
            return
        self.bell_ns = at_ns
        timer = self.env.timeout(max(at_ns - self.now_ns, 0))
        timer.callbacks.append(lambda _: None if bell.triggered else bell.succeed())
