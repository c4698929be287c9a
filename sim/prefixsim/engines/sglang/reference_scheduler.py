"""Plain-Python SGLang 0.5.23: the scheduler loop, written for reading. Twin of `loop_kernels`.

One unit of time a loop iteration. Lengths of prefixes and KV are tokens, of tree keys pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prefixsim.engines.sglang.reference_cache import Cache, Request, ceil_div
from prefixsim.engines.sglang.reference_tree import dfs_weight_order

CLIP_NEW_TOKENS = 4096
WAITING_MATCH_MAX = 128
REFRESH_INTERVAL = 32
IN_BATCH_TOKENS = 32
RETRACT_TOKENS = 20
CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


@dataclass(slots=True)
class SchedulerOptions:
    """Options of the scheduler loop, by SGLang's names. chunked_prefill_size None: no chunking."""

    schedule_policy: str = "fcfs"
    max_running_requests: int = 32
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    overlap_schedule: bool = True
    eviction_is_lru: bool = True


@dataclass(slots=True)
class Budget:
    """What one prefill pass may still admit. `reserved` is a float: running requests weigh in by the new-token ratio."""

    reserved_total: float
    reserved_now: int
    input_tokens: int
    chunk_tokens: int | None
    batch: list[Request] = field(default_factory=list)
    chunked: Request | None = None


class Scheduler:
    """The scheduler loop, normal and overlap."""

    def __init__(self, cache: Cache, options: SchedulerOptions) -> None:
        self.cache, self.options = cache, options
        o = options
        aware = o.schedule_policy in CACHE_AWARE
        self.policy = "fcfs" if cache.disabled and aware else o.schedule_policy
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.last_prefill: list[Request] = []
        self.pending: list[tuple[bool, Request]] = []
        self.chunked: Request | None = None
        self.full = False
        self.step = self.retractions = self.refreshes = 0
        self.ratio = min(0.7 * o.schedule_conservativeness, 1.0)
        self.ratio_min = min(self.ratio * 0.14, 1.0)
        self.ratio_decay = (self.ratio - self.ratio_min) / 600

    # -- order of the waiting queue

    def calc_priority(self) -> None:
        """Sorts the waiting queue by the schedule policy; some policies look every waiting request up."""
        waiting, policy = self.waiting, self.policy
        if policy in ("lpm", "hrrn") and len(waiting) > WAITING_MATCH_MAX:
            policy = "fcfs"
        if policy in CACHE_AWARE:
            back = self.lookup_waiting()
            match policy:
                case "lpm":
                    waiting.sort(key=lambda r: float("inf") if r in back else -r.matched)
                case "dfs-weight":
                    last = [r.node for r in waiting if r.node is not None]
                    waiting[:] = [waiting[i] for i in dfs_weight_order(self.cache.tree.root, last)]
                case "shortest-prefill-first":
                    waiting.sort(key=lambda r: (r in back, max(1, r.length - r.matched), r.step))
                case "hrrn":
                    waiting.sort(key=lambda r: (hrrn_class(r, back), r.rank))
            return
        if policy == "lof":
            waiting.sort(key=lambda r: -r.max_new)
        if waiting and self.options.eviction_is_lru and not self.cache.disabled:
            self.refreshes += 1
            if (self.refreshes - 1) % REFRESH_INTERVAL == 0:
                for r in reversed(waiting[:WAITING_MATCH_MAX]):
                    self.cache.tree.match(r.row, r.length // self.cache.page)

    def lookup_waiting(self) -> set[Request]:
        """Matches all waiting requests; returns those to be sorted last: little in the cache, but 32 tokens or more shared
        with an earlier waiting prompt that is not itself sorted last."""
        back: set[Request] = set()
        seen: set[int] = set()
        for r in self.waiting:
            self.cache.match(r)
            if r.prefix <= IN_BATCH_TOKENS and r.head >= 0 and r.length >= IN_BATCH_TOKENS:
                if r.head in seen:
                    back.add(r)
                seen.add(r.head)
        return back

    # -- admission

    def remaining(self, reserved: float) -> float:
        """Pool tokens not spoken for."""
        return self.cache.available + self.cache.evictable - reserved

    def budget_verdict(self, b: Budget) -> str:
        """CONTINUE, NO_TOKEN or OTHER for the next candidate."""
        if self.remaining(b.reserved_total) <= 0 or self.remaining(b.reserved_now) <= 0:
            return "NO_TOKEN"
        if b.input_tokens <= 0 or (b.chunk_tokens is not None and b.chunk_tokens <= 0):
            return "OTHER"
        return "CONTINUE"

    def charge(self, b: Budget, tokens: int, max_new: int) -> None:
        """Books one admitted prefill."""
        paged = ceil_div(tokens, self.cache.page) * self.cache.page
        b.reserved_total += paged + self.cache.page + max_new
        b.reserved_now += paged + self.cache.page
        b.input_tokens -= paged
        if b.chunk_tokens is not None:
            b.chunk_tokens -= paged

    def continue_chunk(self, b: Budget, r: Request) -> Request | None:
        """The next chunk of the request being chunked; returns it while more is left."""
        assert b.chunk_tokens is not None
        room = min(b.chunk_tokens, int(self.remaining(b.reserved_total)))
        if room <= 0:
            room = b.chunk_tokens
        left = r.length - r.prefix
        tokens = min(left, room)
        r.extend_end = r.prefix + tokens
        b.batch.append(r)
        self.charge(b, tokens, min(r.max_new, CLIP_NEW_TOKENS) if left <= room else 0)
        return r if left > room else None

    def admit(self, b: Budget, r: Request) -> str:
        """Tries to admit a looked-up request; returns what the pass should do next."""
        page, tree = self.cache.page, self.cache.tree
        assert r.node is not None
        tokens = r.length - r.prefix
        total = tokens + min(max(r.max_new - r.made, 0), CLIP_NEW_TOKENS) + page
        tree.lock(r.node)  # this prefix is not evictable for itself
        verdict = self.admission_shape(b, r, tokens, total)
        if isinstance(verdict, str):
            tree.unlock(r.node)
            return verdict
        extend, chunked = verdict
        r.extend_end = r.prefix + extend
        r.locked = r.node
        b.batch.append(r)
        if chunked:
            b.chunked = r
        self.charge(b, extend, 0 if chunked else min(r.max_new, CLIP_NEW_TOKENS))
        return self.budget_verdict(b)

    def admission_shape(self, b: Budget, r: Request, tokens: int, total: int) -> tuple[int, bool] | str:
        """(tokens to prefill, whether that is a chunk), or why not."""
        page = self.cache.page
        if total >= self.remaining(b.reserved_total):
            return "NO_TOKEN"
        paged = ceil_div(tokens, page) * page
        if b.chunk_tokens is None:
            return "OTHER" if b.batch and paged >= b.input_tokens else (tokens, False)
        if paged <= b.chunk_tokens:
            return tokens, False
        if self.chunked is not None and self.options.schedule_policy == "shortest-prefill-first":
            return "OTHER"
        extend = (r.prefix + b.chunk_tokens // page * page) // page * page - r.prefix
        return (extend, True) if extend > 0 else "OTHER"

    def prefill_batch(self) -> list[Request]:
        """One pass over the waiting queue."""
        o = self.options
        if (self.full or not self.waiting) and self.chunked is None:
            return []
        if len(self.running) >= o.max_running_requests and self.chunked is None:
            return []
        self.calc_priority()
        reserved = 0.0
        for r in self.running:
            reserved += min(r.max_new - r.made, CLIP_NEW_TOKENS) * self.ratio
        b = Budget(reserved, 0, o.max_prefill_tokens, o.chunked_prefill_size)
        if self.chunked is not None:
            self.chunked = self.continue_chunk(b, self.chunked)
        for r in self.waiting:
            if self.budget_verdict(b) == "OTHER":
                break
            if len(b.batch) >= o.max_running_requests - len(self.running):
                self.full = True
                break
            self.cache.next_round(r)
            verdict = self.admit(b, r)
            if r in b.batch and r.first_hit is None:
                r.first_hit = r.prefix
            if verdict != "CONTINUE":
                if verdict == "NO_TOKEN":
                    self.full = bool(b.batch) or bool(self.running)
                break
        self.waiting = [r for r in self.waiting if r not in b.batch]
        if b.chunked is not None:
            self.chunked = b.chunked
        return b.batch

    # -- the loop

    def run(self, requests: Sequence[Request], check: Callable[[], None] | None = None) -> None:
        """Runs until nothing is left. Requests must be sorted by step."""
        arrivals = list(requests)
        while arrivals or self.waiting or self.running or self.last_prefill or self.chunked or self.pending:
            while arrivals and arrivals[0].step <= self.step:
                self.waiting.append(arrivals.pop(0))
            self.iteration()
            self.step += 1
            if check:
                check()

    def iteration(self) -> None:
        """One pass of the scheduler's event loop."""
        self.merge_last_prefill()
        batch = self.prefill_batch()
        if not batch and not self.running and self.waiting and self.chunked is None:
            never = self.waiting.pop(0)  # nothing runs, and still it does not fit
            never.first_hit = never.first_hit or 0
            never.admitted = False
            return
        if batch:
            if self.chunked is not None:
                self.chunked.middle_chunks += 1
            before = self.cache.tree.evicted_pages
            self.cache.extend(batch)
            batch[0].evicted += (self.cache.tree.evicted_pages - before) * self.cache.page
            self.last_prefill = batch
        else:
            self.decode_batch()
        new = [(True, r) for r in batch] or [(False, r) for r in self.running]
        if self.options.overlap_schedule:
            new, self.pending = self.pending, new
        self.process(new)

    def merge_last_prefill(self) -> None:
        """Stashes the last chunk in the tree and moves finished prefills to the running batch."""
        r = self.chunked
        if r is not None and r.extend_end > r.prefix:
            self.cache.checkpoint(r, r.extend_end)
            r.prefix = r.extend_end
        before = len(self.running)
        self.running += [x for x in self.last_prefill if x is not r]
        self.running = [x for x in self.running if not x.finished]
        self.last_prefill = []
        if len(self.running) < before or not self.running:
            self.full = False

    def decode_batch(self) -> None:
        """Allocates one decode step; retracts requests where it does not fit."""
        cache = self.cache
        in_flight = {r for _, r in self.pending}
        ending = [r for r in self.running if r in in_flight and not r.stop and r.made + 1 >= r.outputs]
        if ending:  # their last token is already being computed
            self.full = False
            self.running = [r for r in self.running if r not in ending]
        if not self.running:
            return
        before = len(self.running)
        if cache.can_decode(self.running):
            self.ratio = max(self.ratio - self.ratio_decay, self.ratio_min)
        else:
            self.retract()
        if len(self.running) < before:
            self.full = False
        if self.running:
            cache.decode(self.running)

    def retract(self) -> None:
        """Drops the KV of requests with fewest outputs, then longest input, until the others fit. A last one that does not
        fit alone is aborted."""
        cache = self.cache
        keep = sorted(self.running, key=lambda r: (r.made, -r.prompt), reverse=True)
        while len(keep) > 1:
            r = keep.pop()
            self.drop(r, len(keep))
            r.retractions += 1
            r.retracted_now = True
            r.prefix = r.protected = r.inserted = r.matched = r.committed = r.middle_chunks = 0
            r.node = None
            self.waiting.append(r)
            self.retractions += 1
            if cache.can_decode(keep):
                break
        if len(keep) == 1 and not cache.can_decode(keep):
            r = keep.pop()
            self.drop(r, 0)
            r.outputs = r.made
            r.admitted = False
        self.running = keep
        made, allowed = sum(r.made for r in keep), sum(r.max_new for r in keep)
        self.ratio = min(1.0, (made + RETRACT_TOKENS * len(keep)) / (allowed + 1))

    def drop(self, r: Request, left: int) -> None:
        """Frees a request's KV without keeping it, and room for some decode steps of the others."""
        self.cache.release(r, keep=False)
        self.cache.evict_for(left * RETRACT_TOKENS)

    def process(self, results: Sequence[tuple[bool, Request]]) -> None:
        """Takes in the results of a batch."""
        for prefill, r in results:
            if prefill and r.middle_chunks > 0:
                r.middle_chunks -= 1
            elif r.finished or r.retracted_now:
                continue
            elif prefill:
                self.cache.emit_first(r)
            else:
                self.cache.emit(r)


def hrrn_class(r: Request, back: set[Request]) -> float:
    """hrrn's first key where nothing has been prefilled since a request came: sorted last, nothing to prefill, others."""
    if r in back:
        return float("inf")
    return float("-inf") if r.prompt - r.matched <= 0 else 0.0
