# mypy: disable-error-code="no-untyped-call"
"""One vLLM replica of a model with sliding-window layers, in time: the plain-Python scheduler over the group cache.

Time runs as in `twin.TwinScheduler`; cache and scheduler are those that the golden cases of groups are replayed with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.engines.contract import EngineInputs, Progress
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.facts import Settings
from prefixsim.engines.vllm.front_end import MAX_TIMELINE_ROWS, FrontEnd, as_columns, grown
from prefixsim.engines.vllm.groups_scheduler import Batch, SchedulerRules
from prefixsim.engines.vllm.groups_timed import TimedJob, TimedScheduler, longest_sequence
from prefixsim.engines.vllm.groups_twin import GroupRequest, GroupRules
from prefixsim.engines.vllm.process_kernels import halve_timeline, roll_window, write_timeline
from prefixsim.engines.vllm.statistics import counters, notes, totals
from prefixsim.hardware.step_kernels import prefill_item, step_ns
from prefixsim.records import (
    I64,
    NEVER,
    REQ_CHUNKS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    TIMELINE_COLUMNS,
    EngineRecord,
)


@dataclass(slots=True)
class TimedBatch:
    """A step in flight: its decision, and a row of the timeline (HEAD_COLS)."""

    batch: Batch
    head: I64


class GroupsEngine:
    """See `engines.contract.Engine`. settings.max_model_len is the most that the options allow; the pool may allow less."""

    def __init__(self, name: str, kind: str, settings: Settings, rules: GroupRules, inputs: EngineInputs) -> None:
        self.longest_tokens = longest_sequence(rules)
        rules = replace(rules, max_model_len=self.longest_tokens)
        s = settings = replace(settings, max_model_len=self.longest_tokens)
        self.name, self.kind, self.settings, self.inputs = name, kind, s, inputs
        self.granularity = s.block_size
        self.capacity_tokens = (s.num_gpu_blocks - 1) * s.block_size
        self.state = np.zeros(st.I_COLS, dtype=np.int64)
        self.state[st.I_BLOCK_SIZE] = s.block_size
        self.state[st.I_STRIDE] = 1
        self.scheduler = TimedScheduler(rules, _scheduler_rules(s), self.state, inputs.rows)
        self.queue = np.zeros((16, st.QUEUE_COLS), dtype=np.int64)
        self.window = np.zeros((st.WINDOW_ROWS, 3), dtype=np.int64)
        self.timeline = np.zeros((4096, len(TIMELINE_COLUMNS)), dtype=np.int64)
        self.gaps: dict[int, int] = {}
        self.flight: deque[TimedBatch] = deque()
        self.now = self.end = self.following = self.until = 0
        self.stuck = False
        self.seen = (0, 0, 0)
        self.front_end = FrontEnd(inputs, s.max_model_len - 1, inputs.costs.host.hash_ns_per_token)

    def submit(self, requests: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]) -> None:
        """Requests reach this replica. Prompts that can never fit are refused at once, as vLLM's front end does."""
        requests, at_ns = as_columns(requests, at_ns)
        total = int(self.state[st.I_SUBMITTED]) + requests.shape[0]
        if total > self.queue.shape[0]:
            self.queue = grown(self.queue, max(total, 2 * self.queue.shape[0]))
        self.front_end.take_in(self.state, self.queue, requests, at_ns)

    def advance(self, until_ns: int) -> Progress:
        """Runs steps while the next schedule instant is < until_ns. A refused request that somebody waits for counts as
        completed when it was refused."""
        refused = self.front_end.completed()
        if refused is not None:
            return self._progress(refused)
        self.until = until_ns
        done = self._run(until_ns)
        return self._progress(np.array(done, dtype=np.int64).reshape(-1, 2))

    def _run(self, until: int) -> list[tuple[int, int]]:
        """Steps, until one completes awaited requests: (request, instant) of each."""
        s, cache, depth = self.scheduler, self.scheduler.cache, 2 if self.settings.async_scheduling else 1
        while True:
            if not self._busy() or self.stuck:
                if self.following == self.state[st.I_SUBMITTED]:
                    return []
                self.now = max(self.now, int(self.queue[self.following, st.Q_READY_NS]))
                self.stuck = False
            if self.now >= until:
                return []
            self._arrivals()
            s.step = cache.now_ns = self.now
            batch = s.schedule()
            self.seen = (len(s.running), len(s.waiting), cache.used_blocks())
            self.state[st.I_USED_PEAK] = max(self.state[st.I_USED_PEAK], self.seen[2])
            self.state[st.I_RUNNING] = self.seen[0]
            if batch.tokens:
                self.flight.append(self._close(batch))
                if len(self.flight) < depth:
                    self.now += self.settings.turn_ns
                    continue
            if self.flight:
                done = self._process(self.flight.popleft())
                if done or self.inputs.single_step:
                    return done
            elif batch.preempted:
                self.now += self.settings.turn_ns
            else:
                self.stuck = True

    def _busy(self) -> bool:
        return bool(self.flight or self.scheduler.running or self.scheduler.waiting)

    def _arrivals(self) -> None:
        w, queue = self.inputs.workload, self.queue
        while self.following < self.state[st.I_SUBMITTED] and queue[self.following, st.Q_READY_NS] <= self.now:
            r = int(queue[self.following, st.Q_REQ])
            prompt, most, output = int(w.prompt_tokens[r]), int(w.max_tokens[r]), int(w.output_tokens[r])
            limit = max(most, output + 1) if w.max_tokens_assumed and w.stop[r] else most
            job = TimedJob(
                request=GroupRequest(self.following, prompt, prompt, self._chain(r)),
                order=self.following,
                priority=int(w.priority[r]),
                outputs=min(output, most),
                limit=limit,
                skip_lookup=bool(w.skip_reading_prefix_cache[r]),
            )
            self.scheduler.requests[job.order] = r
            self.scheduler.add(job)
            self.following += 1

    def _chain(self, request: int) -> list[int]:
        """Chain ids of its full blocks."""
        c = self.inputs.chains
        first, last = c.run_offset[request : request + 2]
        length = np.diff(c.run_end[first:last], prepend=0)
        begin = c.run_start[first:last] - np.cumsum(length) + length
        chain: list[int] = (np.arange(length.sum()) + np.repeat(begin, length)).tolist()
        return chain

    def _close(self, batch: Batch) -> TimedBatch:
        """Adds up the batch and its duration."""
        s, costs = self.scheduler, self.inputs.costs
        tokens = prefill_tokens = n_prefill = n_decode = kv_tokens = 0
        work = longest = 0.0
        for order, new in batch.tokens.items():
            job = s.jobs[order]
            past = job.request.computed - new
            tokens += new
            if past < job.request.prompt_tokens:
                prefill_tokens += new
                if job.preemptions == 0:
                    s.rows[s.requests[order], REQ_CHUNKS] += 1
            elif new > 1:
                prefill_tokens += new
            if new > 1:
                n_prefill += 1
                w, item = prefill_item(costs.coef, new, past)
                work += w
                longest = max(longest, item)
            else:
                n_decode += 1
                kv_tokens += past + 1
        start = max(self.end, self.now + (self.settings.turn_ns if self.settings.async_scheduling else 0))
        sampled = len(batch.samples)
        took = step_ns(
            costs.coef, costs.gemm_us, costs.lm_head_us, tokens, n_prefill, float(work), float(longest), n_decode,
            kv_tokens, sampled,
        )  # fmt: skip
        self.end = start + int(took)
        head = np.zeros(st.HEAD_COLS, dtype=np.int64)
        head[st.H_START_NS], head[st.H_END_NS] = start, self.end
        head[st.H_TOKENS], head[st.H_PREFILL] = tokens, prefill_tokens
        head[st.H_RUNNING], head[st.H_WAITING], head[st.H_USED] = self.seen
        head[st.H_EVICTED] = s.cache.pool.evicted
        head[st.H_PREEMPTIONS] = self.state[st.I_PREEMPTIONS]
        head[st.H_LOOKUP], head[st.H_CACHED] = self.state[st.I_FIRST_LOOKUP], self.state[st.I_FIRST_CACHED]
        return TimedBatch(batch, head)

    def _process(self, timed: TimedBatch) -> list[tuple[int, int]]:
        """Takes in a step's output; the engine's clock is then at its end. Returns awaited requests that ended."""
        s, state, end, done = self.scheduler, self.state, int(timed.head[st.H_END_NS]), []
        s.step = s.cache.now_ns = self.now = end
        for job in s.process(timed.batch):
            assert isinstance(job, TimedJob)
            r = s.requests[job.order]
            state[st.I_GENERATED] += 1
            if job.last_ns < 0:
                s.rows[r, REQ_FIRST_TOKEN_NS] = end
            else:
                self.gaps[end - job.last_ns] = self.gaps.get(end - job.last_ns, 0) + 1
            job.last_ns = end
            if job.finish_step is not None:
                state[st.I_CUT] += job.request.tokens - job.request.prompt_tokens < job.outputs
                state[st.I_FINISHED] += 1
                s.rows[r, REQ_FINISH_NS], s.rows[r, REQ_STATUS] = end, STATUS_FINISHED
                del s.requests[job.order]
                if self.inputs.awaited[r]:
                    done.append((r, end))
        state[st.I_RUNNING] = len(s.running)
        roll_window(state, self.window)
        if state[st.I_STEPS] // state[st.I_STRIDE] >= self.timeline.shape[0]:
            if self.timeline.shape[0] < MAX_TIMELINE_ROWS:
                self.timeline = grown(self.timeline, 2 * self.timeline.shape[0])
            else:
                halve_timeline(state, self.timeline)
        write_timeline(state, self.timeline, timed.head)
        return done

    def _progress(self, completed: I64) -> Progress:
        if self._busy() and not self.stuck:
            return Progress(self.now, self.now, completed)
        if self.following < self.state[st.I_SUBMITTED]:
            following = max(self.now, int(self.queue[self.following, st.Q_READY_NS]))
            return Progress(following, following, completed)
        return Progress(self.now, NEVER, completed)

    def load(self) -> tuple[int, int, int]:
        """(running, waiting, KV tokens in use) at the end of the last `advance`, as `VllmEngine.load` says; KV in slots."""
        coming = int(self.state[st.I_SUBMITTED]) - self.following
        s = self.scheduler
        seen = (len(s.running), len(s.waiting), s.cache.used_blocks()) if self.now <= self.until else self.seen
        return seen[0], seen[1] + coming, seen[2] * self.granularity

    def match_tokens(self, request: int, host: bool = False) -> int:
        """Prompt tokens that a lookup of `request` would hit now; changes nothing. There is no host tier."""
        prompt = int(self.inputs.workload.prompt_tokens[request])
        return self.scheduler.cache.lookup(GroupRequest(-1, prompt, prompt, self._chain(request))).tokens

    def record(self) -> EngineRecord:
        """What this replica leaves behind."""
        s, settings, cache = self.state, self.settings, self.scheduler.cache
        s[st.I_EVICTED] = cache.pool.evicted
        extra: dict[str, Any] = {}
        if self.inputs.keep_commits:
            commits = np.full(max(1, self.inputs.chains.n_chains), NEVER, dtype=np.int64)
            commits[list(cache.computed_ns)] = list(cache.computed_ns.values())
            extra["first_commit_ns"] = commits
        return EngineRecord(
            name=self.name,
            kind=self.kind,
            replica=self.inputs.replica,
            granularity=self.granularity,
            capacity_tokens=self.capacity_tokens,
            timeline=self.timeline[: s[st.I_TIMELINE]],
            gaps=np.array(sorted(self.gaps.items()), dtype=np.int64).reshape(-1, 2),
            totals=totals(s, settings, self.front_end.n_refused),
            counters=counters(s, settings, cache.used_blocks()),
            notes=(*notes(s, settings, self.inputs, self.front_end.n_refused), _group_note(cache.rules)),
            timeline_stride=int(s[st.I_STRIDE]),
            **extra,
        )


def _scheduler_rules(s: Settings) -> SchedulerRules:
    return SchedulerRules(
        max_num_seqs=s.max_num_seqs,
        max_num_batched_tokens=s.max_num_batched_tokens,
        async_scheduling=s.async_scheduling,
        scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
        enable_chunked_prefill=s.enable_chunked_prefill,
        long_prefill_token_threshold=s.long_prefill_token_threshold,
        priority_policy=s.priority,
    )


def _group_note(rules: GroupRules) -> str:
    each = "each token takes a slot in both groups; " if len(rules.groups) > 1 else ""
    kept = "window layers keep every block"
    if rules.retention is not None:
        more = f" and every {rules.retention:,} tokens" if rules.retention else ""
        kept = (
            f"window layers keep their blocks at the end of each prompt{more} only (prefix_cache_retention_interval "
            f"{rules.retention}): what that costs is the ledger's engine_rule"
        )
    return f"layout {rules.layout}: window of {rules.sliding_window:,} tokens; KV tokens are slots of the pool; {each}{kept}"
