"""vLLM's scheduler over window groups, writing down what a timed run wants to know.

What the rules do not keep is told apart from what was evicted by remembering all keys that were ever given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.groups_scheduler import Job, Scheduler, SchedulerRules
from prefixsim.engines.vllm.groups_twin import GroupCache, GroupRequest, GroupRules, Hit
from prefixsim.records import (
    I64,
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_COMPUTED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_LOOKUP_TOKENS,
    REQ_PREEMPTIONS,
    REQ_RECOMPUTED_TOKENS,
    REQ_STATUS,
    STATUS_RUNNING,
    STATUS_WAITING,
)


@dataclass(slots=True)
class TimedJob(Job):
    """A request of the workload. before: tokens computed when it was preempted. last_ns: when its last token came."""

    before: int = 0
    last_ns: int = -1
    found: int = 0
    kept: int = 0
    computed: int = 0


class RememberingCache(GroupCache):
    """The group cache, and what ever had a key. now_ns: instant of what is going on."""

    def __init__(self, rules: GroupRules) -> None:
        super().__init__(rules)
        self.now_ns = 0
        self.ever: tuple[set[int], ...] = tuple(set() for _ in rules.groups)
        self.computed_ns: dict[int, int] = {}
        """Chain -> when a full block of it was first computed."""
        self.passed: dict[int, int] = {}
        """Request -> blocks that were behind its window when it was last looked at."""

    def commit(self, request: GroupRequest, tokens: int) -> None:
        """As `GroupCache.commit`, and remembers."""
        first = self.committed[0].get(request.number, 0)
        if min(tokens, request.tokens) // self.rules.block_size <= first:
            return
        super().commit(request, tokens)
        for k in range(first, self.committed[0].get(request.number, 0)):
            chain = request.chain[k]
            self.computed_ns.setdefault(chain, self.now_ns)
            for group, ever in enumerate(self.ever):
                if self.pool.key.get(self.tables[group][request.number][k]) == (group, chain):
                    ever.add(chain)

    def allocate(
        self,
        request: GroupRequest,
        new_tokens: int,
        hit: Hit | None = None,
        *,
        whole_sequence: bool = False,
        watermark: bool = False,
    ) -> bool:
        """As `GroupCache.allocate`; at once where a running request stays within its blocks and its window's block."""
        if not whole_sequence and hit is None and self._changes_nothing(request, new_tokens):
            return True
        return super().allocate(request, new_tokens, hit, whole_sequence=whole_sequence, watermark=watermark)

    def _changes_nothing(self, request: GroupRequest, new_tokens: int) -> bool:
        rules, number, end = self.rules, request.number, request.computed + new_tokens
        held = self.tables[0].get(number)
        return (
            held is not None
            and end <= rules.max_model_len
            and end <= len(held) * rules.block_size
            and min(end, request.tokens) // rules.block_size <= self.committed[0].get(number, 0)
            and self.skipped_blocks(max(0, request.computed - request.in_flight)) == self.passed.get(number, -1)
        )

    def _free_behind_window(self, request: GroupRequest, processed: int) -> None:
        self.passed[request.number] = self.skipped_blocks(processed)
        super()._free_behind_window(request, processed)

    def free(self, request: GroupRequest) -> None:
        """As `GroupCache.free`."""
        self.passed.pop(request.number, None)
        super().free(request)

    def kept_blocks(self, request: GroupRequest) -> int:
        """Blocks that a lookup would hit had nothing ever been evicted."""
        limit = (request.prompt_tokens - 1) // self.rules.block_size
        blocks, _ = self.reach(request, limit, lambda group, chain: int(chain in self.ever[group]))
        return len(blocks[0])

    def computed_blocks(self, request: GroupRequest) -> int:
        """Leading full blocks of the prompt that were ever computed, kept or not."""
        last = request.prompt_tokens // self.rules.block_size
        return next((k for k in range(last) if request.chain[k] not in self.computed_ns), last)

    def used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self.pool.n - 1 - self.pool.free


class TimedScheduler(Scheduler):
    """The scheduler, writing down what the request table and vLLM's statistics want to know. `step` is the instant, ns."""

    def __init__(self, rules: GroupRules, scheduler_rules: SchedulerRules, state: I64, rows: I64) -> None:
        super().__init__(rules, scheduler_rules)
        self.cache: RememberingCache = RememberingCache(rules)
        self.state, self.rows = state, rows
        self.requests: dict[int, int] = {}
        """Job -> request of the workload."""

    def looked_up(self, job: Job, hit: Hit | None) -> None:
        """What was resident, and what would have been had nothing been evicted."""
        assert isinstance(job, TimedJob)
        self.state[st.I_LOOKUPS] += 1
        if job.preemptions == 0:
            resident = hit if hit is not None else self.cache.lookup(job.request)
            job.found = resident.tokens
            job.kept = self.cache.kept_blocks(job.request) * self.cache.rules.block_size
            job.computed = self.cache.computed_blocks(job.request) * self.cache.rules.block_size

    def admitted(self, job: Job, hit_tokens: int) -> None:
        """Its row, and the statistics."""
        assert isinstance(job, TimedJob)
        s, row, again = self.state, self.rows[self.requests[job.order]], job.preemptions > 0
        tokens = job.request.tokens
        row[REQ_STATUS] = STATUS_RUNNING
        if again:
            row[REQ_RECOMPUTED_TOKENS] += max(0, job.before - hit_tokens)
        else:
            row[REQ_ADMITTED_NS] = self.step
            row[REQ_CACHED_TOKENS] = hit_tokens
            row[REQ_DEVICE_TOKENS] = job.found
            row[REQ_LOOKUP_TOKENS] = tokens
            row[REQ_KNOWN_TOKENS] = job.kept
            row[REQ_COMPUTED_TOKENS] = job.computed
            s[st.I_FIRST_LOOKUP] += tokens
            s[st.I_FIRST_CACHED] += hit_tokens
        if job.skip_lookup:
            return
        s[st.I_AGAIN_QUERIES if again else st.I_QUERIES] += tokens
        s[st.I_AGAIN_HITS if again else st.I_HITS] += hit_tokens
        if not again:
            s[st.I_UPDATE_REQUESTS] += 1
            s[st.I_UPDATE_QUERIES] += tokens
            s[st.I_UPDATE_HITS] += hit_tokens

    def _preempt(self, job: Job) -> None:
        assert isinstance(job, TimedJob)
        job.before = job.request.computed
        row = self.rows[self.requests[job.order]]
        row[REQ_PREEMPTIONS] += 1
        row[REQ_STATUS] = STATUS_WAITING
        self.state[st.I_PREEMPTIONS] += 1
        super()._preempt(job)


def longest_sequence(rules: GroupRules) -> int:
    """Tokens of the longest sequence that fits an empty pool, at most `rules.max_model_len`."""

    def fits(tokens: int) -> bool:
        blocks = -(-tokens // rules.block_size)
        window = min(blocks, replace(rules, max_model_len=tokens).window_admission_blocks)
        return window + (blocks if len(rules.groups) > 1 else 0) <= rules.num_gpu_blocks - 1

    low, high = 0, rules.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
