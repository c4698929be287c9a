"""vLLM 0.33's scheduler over the plain-Python group cache, synchronous or with two steps in flight.

The rules are those of one-group models (docs/vllm.md); what groups change is in the cache: room is counted over all
groups, the admission test is capped by what a window group can hold at a time, and blocks behind the window are given
back on the basis of *processed* tokens, so under asynchronous scheduling one step later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefixsim.engines.vllm.groups_sequential import ChainNames
from prefixsim.engines.vllm.groups_twin import GroupCache, GroupRequest, GroupRules, Hit


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The scheduler's options, under vLLM's names. max_steps: a run is cut there (requests left count as unfinished)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    priority_policy: bool = False
    max_steps: int = 1_000_000


@dataclass(slots=True)
class Job:
    """A request in the scheduler. placeholders: output tokens in flight (asynchronous scheduling)."""

    request: GroupRequest
    order: int
    priority: int
    outputs: int
    """After so many output tokens it ends."""
    limit: int
    """Output tokens that vLLM knows it can't exceed (max_tokens)."""
    skip_lookup: bool
    placeholders: int = 0
    is_prefill_chunk: bool = False
    preemptions: int = 0
    first_hit: int | None = None
    admissions: list[list[int]] = field(default_factory=list)
    first_token_step: int | None = None
    finish_step: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Order of the priority policy."""
        return self.priority, self.order


@dataclass(slots=True)
class Batch:
    """One step's decision, in scheduling order, and which of its jobs sample a token."""

    tokens: dict[int, int]
    samples: set[int] = field(default_factory=set)
    preempted: int = 0


class Scheduler:
    """schedule() makes a batch, process(batch) handles its output."""

    def __init__(self, cache_rules: GroupRules, rules: SchedulerRules) -> None:
        self.cache = GroupCache(cache_rules)
        self.rules = rules
        self.max_model_len = cache_rules.max_model_len
        self.jobs: dict[int, Job] = {}
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.finished_unreported = False
        self.step = 0

    def add(self, job: Job) -> None:
        """A request arrives."""
        self.jobs[job.order] = job
        self._enqueue(job, front=False)

    def _enqueue(self, job: Job, front: bool) -> None:
        if self.rules.priority_policy:
            at = next((i for i, other in enumerate(self.waiting) if other.rank > job.rank), len(self.waiting))
            self.waiting.insert(at, job)
        elif front:
            self.waiting.appendleft(job)
        else:
            self.waiting.append(job)

    def has_requests(self) -> bool:
        """Something is queued or running, or finished without a schedule call since."""
        return bool(self.running or self.waiting or self.finished_unreported)

    # ---- one step

    def schedule(self) -> Batch:
        """Running requests first; then, if nothing was preempted, waiting ones up to the first that does not fit."""
        batch = Batch({})
        threshold = self.rules.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        budget = self._schedule_running(batch, self.rules.max_num_batched_tokens, threshold)
        if not batch.preempted:
            self._schedule_waiting(batch, budget, threshold)
        for order, new in batch.tokens.items():
            job = self.jobs[order]
            request = job.request
            request.computed += new
            request.in_flight += new
            job.is_prefill_chunk = request.computed < request.tokens + job.placeholders
            if not job.is_prefill_chunk:
                batch.samples.add(order)
                if self.rules.async_scheduling:
                    job.placeholders += 1
        self.finished_unreported = False
        return batch

    def _schedule_running(self, batch: Batch, budget: int, threshold: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            job = self.running[at]
            request = job.request
            sure = request.computed + 2 - job.placeholders  # tokens once all outputs in flight are back
            if job.placeholders > 0 and sure >= request.prompt_tokens + job.limit:
                at += 1
                continue
            new = request.tokens + job.placeholders - request.computed
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget, self.max_model_len - request.computed - 1)
            if new == 0:
                at += 1
                continue
            fits = False
            while not fits:
                fits = self.cache.allocate(request, new)
                if fits:
                    break
                victim = max(self.running, key=lambda j: j.rank) if self.rules.priority_policy else self.running[-1]
                place = self.running.index(victim)
                del self.running[place]
                if place < at:
                    at -= 1
                budget += batch.tokens.pop(victim.order, 0)
                self._preempt(victim)
                batch.preempted += 1
                if victim is job:
                    break
            if not fits:
                if self.rules.priority_policy:
                    continue
                break
            batch.tokens[job.order] = new
            budget -= new
            at += 1
        return budget

    def _preempt(self, job: Job) -> None:
        """All blocks are freed; the request goes to the front of the waiting queue. A token in flight still comes, and
        with two steps in flight it comes before the request can be looked at again."""
        self.cache.free(job.request)
        job.request.computed = 0
        job.placeholders = 0
        job.preemptions += 1
        self._enqueue(job, front=True)

    def _schedule_waiting(self, batch: Batch, budget: int, threshold: int) -> None:
        while budget > 0 and self.waiting and len(self.running) < self.rules.max_num_seqs:
            job = self.waiting[0]
            request = job.request
            hit: Hit | None = None
            if not job.skip_lookup:
                hit = self.cache.lookup(request)
            self.looked_up(job, hit)
            request.junction = hit.junction if hit else 0
            hit_tokens = hit.tokens if hit else 0
            if job.preemptions == 0:
                job.first_hit = hit_tokens
            new = request.tokens - hit_tokens
            if 0 < threshold < new:
                new = threshold
            if new > budget and not self.rules.enable_chunked_prefill:
                break
            new = min(new, budget)
            admitted = self.cache.allocate(
                request,
                new,
                hit,
                whole_sequence=self.rules.scheduler_reserve_full_isl,
                watermark=bool(self.running),
            )
            if not admitted:
                break
            job.admissions.append([self.step, hit_tokens, request.tokens])
            self.admitted(job, hit_tokens)
            self.waiting.popleft()
            self.running.append(job)
            request.computed = hit_tokens
            batch.tokens[job.order] = new
            budget -= new

    def looked_up(self, job: Job, hit: Hit | None) -> None:
        """The head of the queue was looked up (hit None: its lookup is skipped); it may still find no room."""

    def admitted(self, job: Job, hit_tokens: int) -> None:
        """It found room."""

    def process(self, batch: Batch) -> list[Job]:
        """Output of a step: tokens are appended, blocks they complete are committed, requests at their end are freed.
        Returns the jobs that got a token, in scheduling order."""
        ended, got = [], []
        for order, new in batch.tokens.items():
            job = self.jobs.get(order)
            if job is None:
                continue
            request = job.request
            request.in_flight -= new
            if order not in batch.samples:
                continue
            request.tokens += 1
            got.append(job)
            if job.first_token_step is None:
                job.first_token_step = self.step
            if job.placeholders > 0:
                job.placeholders -= 1
                self.cache.commit(request, request.computed - request.in_flight)
            if request.tokens >= self.max_model_len or request.tokens - request.prompt_tokens >= job.outputs:
                job.finish_step = self.step
                self.finished_unreported = True
                self.cache.free(request)
                del self.jobs[order]
                ended.append(job)
        if ended:
            self.running = [job for job in self.running if job.finish_step is None]
            self.waiting = deque(job for job in self.waiting if job.finish_step is None)
        return got


def replay_scheduler(
    rows: Sequence[Mapping[str, Any]], cache_rules: GroupRules, rules: SchedulerRules
) -> dict[str, Any]:
    """Arrivals by `step`, every step one unit of time; idle time is jumped. Result keys are those of the golden cases."""
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i].get("step") or 0), i))
    names = ChainNames(cache_rules.block_size)
    jobs: dict[int, Job] = {}
    s = Scheduler(cache_rules, rules)
    steps: list[list[int]] = []
    in_flight: deque[Batch] = deque()
    depth = 2 if rules.async_scheduling else 1
    arrived = 0
    while True:
        while arrived < len(order) and int(rows[order[arrived]].get("step") or 0) <= s.step:
            row = rows[order[arrived]]
            prompt = len(row["tokens"])
            request = GroupRequest(arrived, prompt, prompt, names.row(row))
            outputs = max(1, len(row.get("output_tokens") or []))
            job = Job(
                request,
                arrived,
                int(row.get("priority") or 0),
                outputs,
                outputs,
                bool(row.get("skip_reading_prefix_cache")),
            )
            jobs[order[arrived]] = job
            s.add(job)
            arrived += 1
        if not s.has_requests() and not in_flight:
            if arrived == len(order):
                break
            s.step = int(rows[order[arrived]].get("step") or 0)
            continue
        if s.step >= rules.max_steps:
            break
        if s.has_requests():
            batch = s.schedule()
            scheduled = sum(batch.tokens.values())
            in_flight.append(batch)
            steps.append([s.step, scheduled, batch.preempted, len(s.running), len(s.waiting), s.cache.pool.free])
            # A queue that nothing will ever move. (The loop that made the golden cases also ends, synchronously, where the
            # last running request has just preempted itself.)
            stuck = bool(s.waiting) and not s.running and not any(b.tokens for b in in_flight)
            if stuck and arrived == len(order) and (not batch.preempted or depth == 1):
                break
            if len(in_flight) < depth and (scheduled or s.has_requests()):
                s.step += 1
                continue
        s.process(in_flight.popleft())
        s.step += 1
    pool = s.cache.pool
    return {
        "evicted_blocks": pool.evicted,
        "final_free_queue_cached": pool.cached_flags(),
        "requests": [_request_row(row, jobs.get(i)) for i, row in enumerate(rows)],
        "cached_tokens": sum((j.first_hit or 0) for j in jobs.values() if j.first_token_step is not None),
        "preemptions": sum(j.preemptions for j in jobs.values()),
        "unfinished": len(rows) - sum(j.finish_step is not None for j in jobs.values()),
        "steps": steps,
    }


def _request_row(row: Mapping[str, Any], job: Job | None) -> dict[str, Any]:
    """One request's result; cached_tokens is None while no token has come out."""
    return {
        "id": row["id"],
        "prompt_tokens": len(row["tokens"]),
        "cached_tokens": job.first_hit if job and job.first_token_step is not None else None,
        "preemptions": job.preemptions if job else None,
        "admissions": job.admissions if job else [],
        "first_token_step": job.first_token_step if job else None,
        "finish_step": job.finish_step if job else None,
    }
