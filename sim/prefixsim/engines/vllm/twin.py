"""vLLM's scheduler in plain Python, written to be read beside SPEC section 6: the twin of `schedule_kernels`,
`admit_kernels`, `process_kernels` and `run_kernels`.

Time: S(k) is the instant at which step k is scheduled, E(k) when its output is processed. Synchronous: S(k+1) = E(k).
Asynchronous (two steps in flight): step k+1 is scheduled when the output of k-1 has been processed, as k starts; where
nothing else is in flight, `turn_ns` after step k. A step's batch starts at max(E(k-1), S(k) + turn_ns).
`clock: steps` is turn_ns = 1 and batches of 1 ns; the engine's step number of an event at E is then E - 1.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prefixsim.engines.vllm.twin_pool import Key, TwinPool

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class TwinConfig:
    """Options by vLLM's names; `num_gpu_blocks` counts the null block."""

    block_size: int
    num_gpu_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = UNLIMITED
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = True
    priority: bool = False
    enable_prefix_caching: bool = True
    split_free_queue: bool = True
    turn_ns: int = 0
    """Time of one turn of the engine's loop that does not wait for the GPU."""
    golden_loop: bool = False
    """The loop around the golden cases gives up after a synchronous step that computed nothing and left nothing running,
    once all requests have arrived; a server goes on."""


@dataclass(eq=False)
class TwinRequest:
    """keys: one for each full block of prompt + output. max_tokens: where vLLM stops by length; `output_tokens` < that
    means that it stops by itself (EOS) after `output_tokens`."""

    index: int
    arrival: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    keys: Sequence[Key]
    priority: int = 0
    skip_reading_prefix_cache: bool = False
    order: int = 0

    computed: int = 0
    outputs: int = 0
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0
    running: bool = False
    finished: bool = False
    table: list[int] = field(default_factory=list)
    committed: int = 0
    computed_before: int = 0

    preemptions: int = 0
    recomputed_tokens: int = 0
    chunks: int = 0
    admissions: list[tuple[int, int, int]] = field(default_factory=list)
    """(instant, cached tokens, tokens looked up) of each admission."""
    device_tokens: int = 0
    known_tokens: int = 0
    lookups: int = 0
    first_token: int | None = None
    finish: int | None = None
    token_times: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and the outputs returned so far."""
        return self.prompt_tokens + self.outputs

    @property
    def rank(self) -> tuple[int, int]:
        """Order under the priority policy: small first."""
        return (self.priority, self.order)


@dataclass(eq=False)
class Batch:
    """One scheduled step: (request, new tokens, past tokens, whether it samples), in scheduling order."""

    items: list[tuple[TwinRequest, int, int, bool]]
    preempted: int
    instant: int
    end: int = 0


class TwinScheduler:
    """One engine. `step_ns` gives the duration of a batch from its items; `waiting` starts empty."""

    def __init__(self, config: TwinConfig, step_ns: Callable[[Batch], int] = lambda batch: 1) -> None:
        self.c = config
        self.step_ns = step_ns
        self.pool = TwinPool(config.num_gpu_blocks, split_free_queue=config.split_free_queue)
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.running: list[TwinRequest] = []
        self.waiting: deque[TwinRequest] = deque()
        self.heap: list[tuple[tuple[int, int], TwinRequest]] = []

    # The waiting queue: a deque (FCFS), or a heap on (priority, arrival).

    def n_waiting(self) -> int:
        return len(self.heap) if self.c.priority else len(self.waiting)

    def add(self, r: TwinRequest, *, front: bool = False) -> None:
        if self.c.priority:
            heapq.heappush(self.heap, (r.rank, r))
        elif front:
            self.waiting.appendleft(r)
        else:
            self.waiting.append(r)

    def head(self) -> TwinRequest:
        return self.heap[0][1] if self.c.priority else self.waiting[0]

    def pop_head(self) -> None:
        if self.c.priority:
            heapq.heappop(self.heap)
        else:
            self.waiting.popleft()

    def remove_waiting(self, r: TwinRequest) -> None:
        if self.c.priority:
            self.heap = [entry for entry in self.heap if entry[1] is not r]
            heapq.heapify(self.heap)
        else:
            self.waiting.remove(r)

    # Slots

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.c.block_size)

    def grow(self, r: TwinRequest, new: int) -> bool:
        """Room for `new` more tokens of a running request: pops blocks, then commits what becomes full."""
        need = max(self.blocks_for(r.computed + new) - len(r.table), 0)
        if need > len(self.pool.free):
            return False
        r.table += self.pool.take(need)
        self.commit(r, min(r.computed + new, r.num_tokens))
        return True

    def commit(self, r: TwinRequest, tokens: int) -> None:
        """Commits the request's full blocks within its first `tokens` tokens."""
        if not self.c.enable_prefix_caching:
            return
        while r.committed < tokens // self.c.block_size:
            self.pool.commit(r.table[r.committed], r.keys[r.committed])
            r.committed += 1

    def admit(self, r: TwinRequest, hits: list[int], new: int, *, full: bool, watermark: int) -> bool:
        """Room for an admission: both tests, then touch, pop, commit. Failing changes nothing."""
        computed = len(hits) * self.c.block_size
        free = len(self.pool.free)
        leaving = self.pool.evictable(hits)
        if full and self.blocks_for(r.num_tokens) - len(hits) + leaving + watermark > free:
            return False
        need = self.blocks_for(computed + new) - len(hits)
        if need + leaving + watermark > free:
            return False
        self.pool.touch(hits)
        r.table = hits + self.pool.take(need)
        r.committed = len(hits)
        self.commit(r, min(computed + new, r.num_tokens))
        return True

    def free(self, r: TwinRequest) -> None:
        self.pool.release(r.table)
        r.table = []
        r.committed = 0

    # One step

    def preempt(self, r: TwinRequest) -> None:
        self.free(r)
        r.computed_before = r.computed
        r.computed = 0
        r.placeholders = 0
        r.stale = r.in_flight  # tokens still on their way: appended when they come, without touching the counters
        r.running = False
        r.preemptions += 1
        self.add(r, front=True)

    def schedule(self, now: int) -> Batch:
        """Decides the next step at instant `now`."""
        c = self.c
        budget = c.max_num_batched_tokens
        threshold = c.long_prefill_token_threshold if len(self.running) + self.n_waiting() > 1 else 0
        scheduled: dict[int, tuple[TwinRequest, int]] = {}
        preempted = 0

        i = 0
        while i < len(self.running) and budget > 0:
            r = self.running[i]
            # Outputs in flight already reach max_tokens: nothing more to compute for it.
            if r.placeholders > 0 and r.computed + 2 - r.placeholders >= r.prompt_tokens + r.max_tokens:
                i += 1
                continue
            new = self.cut(r.num_tokens + r.placeholders - r.computed, threshold)
            new = min(new, budget, c.max_model_len - r.computed - 1)
            if new <= 0:
                i += 1
                continue
            while not (fits := self.grow(r, new)):
                victim = max(self.running, key=lambda x: x.rank) if c.priority else self.running[-1]
                at = self.running.index(victim)
                del self.running[at]
                if at < i:
                    i -= 1
                if victim.index in scheduled:  # only under the priority policy
                    budget += scheduled.pop(victim.index)[1]
                self.preempt(victim)
                preempted += 1
                if victim is r:
                    break
            if fits:
                scheduled[r.index] = (r, new)
                budget -= new
                i += 1
            elif not c.priority:
                break

        if not preempted:
            self.admit_waiting(scheduled, budget, threshold, now)

        items = []
        for r, new in scheduled.values():
            past = r.computed
            if past < r.prompt_tokens and not r.preemptions:
                r.chunks += 1
            r.computed += new
            r.in_flight += new
            samples = r.computed >= r.num_tokens + r.placeholders
            if samples and c.async_scheduling:
                r.placeholders += 1
            items.append((r, new, past, samples))
        return Batch(items, preempted, now)

    def admit_waiting(
        self, scheduled: dict[int, tuple[TwinRequest, int]], budget: int, threshold: int, now: int
    ) -> None:
        """Admissions from the head of the queue until one finds no room."""
        c = self.c
        while budget > 0 and self.n_waiting() and len(self.running) < c.max_num_seqs:
            r = self.head()
            assert r.stale == 0  # with two steps in flight late output has always been processed by now
            limit = (r.num_tokens - 1) // c.block_size
            found = self.pool.lookup(r.keys, limit)
            hits = [] if r.skip_reading_prefix_cache else found
            r.lookups += 1
            new = self.cut(r.num_tokens - len(hits) * c.block_size, threshold)
            if not c.enable_chunked_prefill and new > budget:
                break
            new = min(new, budget)
            known = self.known(r)
            watermark = self.watermark_blocks if self.running else 0
            if not self.admit(r, hits, new, full=c.scheduler_reserve_full_isl, watermark=watermark):
                break
            self.pop_head()
            self.note_lookup(r, now, len(hits) * c.block_size, len(found), known)
            self.seat(r, len(hits) * c.block_size)
            scheduled[r.index] = (r, new)
            budget -= new

    def note_lookup(self, r: TwinRequest, now: int, computed: int, found: int, known: int) -> None:
        """Writes down what an admission's lookup found."""
        r.admissions.append((now, computed, r.num_tokens))
        if len(r.admissions) == 1:
            r.device_tokens = found * self.c.block_size
            r.known_tokens = known
        else:
            r.recomputed_tokens += max(0, r.computed_before - computed)

    def seat(self, r: TwinRequest, computed: int) -> None:
        """A request becomes a running one."""
        self.running.append(r)
        r.running = True
        r.computed = computed

    @staticmethod
    def cut(new: int, threshold: int) -> int:
        """Tokens of one request in one step under `long_prefill_token_threshold`."""
        return threshold if 0 < threshold < new else new

    def known(self, r: TwinRequest) -> int:
        """Tokens of the longest prefix of its prompt ever committed here: full blocks, no last-token cap."""
        blocks = 0
        while blocks < r.prompt_tokens // self.c.block_size and r.keys[blocks] in self.pool.ever:
            blocks += 1
        return blocks * self.c.block_size

    def process(self, batch: Batch) -> None:
        """Takes in a step's output at `batch.end`."""
        stopped = []
        for r, new, _, samples in batch.items:
            late = r.stale > 0
            r.in_flight -= new
            if late:
                r.stale -= new
            if r.finished or not samples:
                continue
            r.outputs += 1
            r.token_times.append(batch.end)
            if r.first_token is None:
                r.first_token = batch.end
            stop = r.outputs >= min(r.output_tokens, r.max_tokens) or r.num_tokens >= self.c.max_model_len
            if not late and r.placeholders > 0:
                r.placeholders -= 1
                if r.running:
                    self.commit(r, r.computed - r.in_flight)
            if stop:
                r.finished = True
                r.finish = batch.end
                if r.running:
                    self.free(r)
                    stopped.append(r)
                else:  # finished by a late token while it waits to be resumed
                    self.remove_waiting(r)
        self.running = [r for r in self.running if r not in stopped] if stopped else self.running

    # What a host tier adds (`twin_offload`)

    def idle(self, now: int) -> None:
        """Nothing runs or waits, or nothing that waits can go on."""

    def scheduled(self, batch: Batch, now: int, end: int) -> None:
        """A step has been decided at `now`; what the GPU has been given is done at `end`."""

    def next_transfer(self, arrival: int | None) -> int | None:
        """With nothing to compute: when something that a request waits for is done, or the next arrival; None: nobody waits."""
        return None

    def run(
        self,
        requests: Sequence[TwinRequest],
        each: Callable[[Batch | None], None] = lambda batch: None,
        until: int = UNLIMITED,
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Runs requests (non-decreasing arrival instants) to the end, or until nothing can change any more, or while instants are < until.

        Returns rows (instant, scheduled tokens, preempted, running, waiting, free blocks), steps that schedule nothing
        left out unless they preempt. `each` is called after every schedule (with its batch) and process (None).
        """
        depth = 2 if self.c.async_scheduling else 1
        rows: list[tuple[int, int, int, int, int, int]] = []
        flight: deque[Batch] = deque()
        now, end, following = 0, 0, 0
        while True:
            while following < len(requests) and requests[following].arrival <= now:
                self.add(requests[following])
                following += 1
            if now >= until:
                return rows
            if not flight and not self.running and not self.n_waiting():
                self.idle(now)
                if following == len(requests):
                    return rows
                now = requests[following].arrival
                continue
            batch = self.schedule(now)
            each(batch)
            tokens = sum(item[1] for item in batch.items)
            if tokens or batch.preempted:
                free = len(self.pool.free)
                rows.append((now, tokens, batch.preempted, len(self.running), self.n_waiting(), free))
            if tokens:
                end = max(end, now + (self.c.turn_ns if depth == 2 else 0)) + self.step_ns(batch)
                batch.end = end
            self.scheduled(batch, now, end)
            if tokens:
                flight.append(batch)
                if len(flight) < depth:
                    now += self.c.turn_ns
                    continue
            if flight:
                batch = flight.popleft()
                self.process(batch)
                each(None)
                now = batch.end
            elif batch.preempted and not (
                self.c.golden_loop and depth == 1 and following == len(requests) and not self.running
            ):
                now += self.c.turn_ns
            elif (
                after := self.next_transfer(requests[following].arrival if following < len(requests) else None)
            ) is not None:
                now = max(now, after)
            else:
                self.idle(now)
                if following == len(requests):
                    return rows
                now = max(now, requests[following].arrival)


def run_sequential(config: TwinConfig, requests: Sequence[TwinRequest]) -> tuple[TwinPool, list[tuple[int, bool]]]:
    """One request at a time, to its end: look up, allocate, decode token by token, free.

    Returns the pool and for each request (cached tokens of its lookup, rejected because it can never fit).
    """
    s = TwinScheduler(config)
    out = []
    for r in requests:
        found = s.pool.lookup(r.keys, (r.num_tokens - 1) // config.block_size)
        hits = [] if r.skip_reading_prefix_cache else found
        cached = len(hits) * config.block_size
        fits = s.admit(r, hits, r.num_tokens - cached, full=True, watermark=0)
        out.append((cached, not fits))
        if not fits:
            continue
        r.computed = r.prompt_tokens
        for _ in range(r.output_tokens - 1):  # the last output token never gets KV
            r.outputs += 1
            if not s.grow(r, 1):
                break
            r.computed += 1
        s.free(r)
    return s.pool, out
