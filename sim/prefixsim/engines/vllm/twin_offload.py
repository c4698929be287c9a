"""vLLM's scheduler with native KV offloading in plain Python: the twin of `offload_kernels`, to be read beside docs/tiers.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prefixsim.engines.tiers.twin import Key, TwinHostPool, TwinLink
from prefixsim.engines.vllm.twin import Batch, TwinRequest, TwinScheduler


@dataclass(eq=False)
class Held:
    """What the host tier keeps of a request: `stored` leading blocks were offered; blocks `used` of it were used there
    under `rank`; its last store is done at `busy`; a load of `loaded` blocks behind `hits` is done at `ready`."""

    stored: int = 0
    rank: int = 0
    used: tuple[int, int] = (0, 0)
    busy: int = 0
    hits: int = 0
    loaded: int = 0
    ready: int = 0
    done: bool = False


@dataclass
class OffloadTwin:
    """The tier below one scheduler. parked: requests being loaded or waiting for a place after it, in order."""

    pool: TwinHostPool
    link_in: TwinLink
    link_out: TwinLink
    held: dict[int, Held] = field(default_factory=dict)
    parked: list[TwinRequest] = field(default_factory=list)
    skipped: list[TwinRequest] = field(default_factory=list)
    """In front of the queue, next one last (fcfs)."""
    aside: int = 0
    ended: list[TwinRequest] = field(default_factory=list)
    deferred: int = 0
    host_tokens: dict[int, int] = field(default_factory=dict)


class OffloadScheduler(TwinScheduler):
    """`TwinScheduler` with a host tier."""

    def __init__(self, *args: Any, tier: OffloadTwin, **more: Any) -> None:
        super().__init__(*args, **more)
        self.t = tier
        self.gpu_end = 0

    def of(self, r: TwinRequest) -> Held:
        return self.t.held.setdefault(r.index, Held())

    def n_waiting(self) -> int:
        return super().n_waiting() + len(self.t.parked) + len(self.t.skipped)

    def n_queued(self) -> int:
        return len(self.heap) if self.c.priority else len(self.waiting)

    def use(self, r: TwinRequest, first: int, upto: int) -> None:
        h = self.of(r)
        if not h.rank:
            h.rank = self.t.pool.new_rank()
            h.used = (first, upto)
        h.used = (min(h.used[0], first), max(h.used[1], upto))

    def schedule(self, now: int) -> Batch:
        self.t.pool.settle(now)
        for r in self.t.parked:
            h = self.of(r)
            if not h.done and h.ready <= now:
                self.t.pool.end_load(r.keys[h.hits : h.hits + h.loaded])
                h.done = True
        return super().schedule(now)

    def admit_waiting(
        self, scheduled: dict[int, tuple[TwinRequest, int]], budget: int, threshold: int, now: int
    ) -> None:
        c, t, bs = self.c, self.t, self.c.block_size
        for r in list(t.parked):
            if not self.of(r).done:
                break
            if budget <= 0 or len(self.running) >= c.max_num_seqs:
                return self.end_scan([])
            tokens = self.resume(r, budget, threshold)
            if tokens is None:
                return self.end_scan([])
            scheduled[r.index] = (r, tokens)
            budget -= tokens
        aside: list[TwinRequest] = []
        while budget > 0 and len(self.running) < c.max_num_seqs and (t.skipped or self.n_queued()):
            preempted_first = not c.priority and self.waiting and self.waiting[0].preemptions
            from_skipped = bool(t.skipped) and not preempted_first
            r = t.skipped[-1] if from_skipped else self.head()
            h = self.of(r)
            found = self.pool.lookup(r.keys, (r.num_tokens - 1) // bs)
            h.stored = 0
            hits, more, wait = found, 0, False
            if h.busy > now:
                wait = True
            elif r.skip_reading_prefix_cache:
                hits = []
            else:
                more, wait = t.pool.find(r.keys[len(hits) : r.num_tokens // bs])
            if wait:
                t.deferred += 1
                t.skipped.pop() if from_skipped else self.pop_head()
                aside.append(r)
                continue
            known = self.known(r)
            computed = (len(hits) + more) * bs
            watermark = self.watermark_blocks if self.running else 0
            if more:
                if not self.reserve(r, hits, more, watermark):
                    break
            else:
                new = self.cut(r.num_tokens - computed, threshold)
                if not c.enable_chunked_prefill and new > budget:
                    break
                new = min(new, budget)
                if not self.admit(r, hits, new, full=c.scheduler_reserve_full_isl, watermark=watermark):
                    break
            t.skipped.pop() if from_skipped else self.pop_head()
            first = not r.admissions
            self.note_lookup(r, now, min(computed, r.num_tokens - 1), len(found), known)
            cached = min(computed, (r.num_tokens - 1) // bs * bs)
            if first:
                t.host_tokens[r.index] = cached - len(hits) * bs
            if more:
                self.park(r, hits, more, now)
                continue
            self.seat(r, computed)
            scheduled[r.index] = (r, new)
            budget -= new
        return self.end_scan(aside)

    def end_scan(self, aside: Sequence[TwinRequest]) -> None:
        """Skipped requests wait in front of the others, in their order."""
        self.t.aside = len(aside)
        for r in reversed(aside):
            if self.c.priority:
                self.add(r)
            else:
                self.t.skipped.append(r)

    def reserve(self, r: TwinRequest, hits: list[int], more: int, watermark: int) -> bool:
        """Whether a load fits: it may take nothing that prefills in progress still need."""
        free, leaving = len(self.pool.free), self.pool.evictable(hits) + watermark
        if self.c.scheduler_reserve_full_isl and self.blocks_for(r.num_tokens) - len(hits) + leaving > free:
            return False
        promised = sum(self.blocks_for(x.num_tokens) - len(x.table) for x in self.t.parked)
        for x in self.running:
            if x.computed + 1 < x.num_tokens:
                promised += max(0, self.blocks_for(x.num_tokens) - len(x.table))
        return more + leaving <= free - promised

    def park(self, r: TwinRequest, hits: list[int], more: int, now: int) -> None:
        """Blocks and the load, which starts when the GPU has done what it has been given."""
        h, n = self.of(r), len(hits)
        self.pool.touch(hits)
        r.table = hits + self.pool.take(more)
        h.hits, h.loaded, h.stored, h.done = n, more, n + more, False
        self.use(r, n, n + more)
        self.t.pool.begin_load(r.keys[n : n + more], n, h.rank)
        h.ready = self.t.link_in.transfer(max(now, self.gpu_end), more)
        self.t.parked.append(r)

    def resume(self, r: TwinRequest, budget: int, threshold: int) -> int | None:
        """A parked request whose KV is there: its tokens in this step, or None without room."""
        c, h = self.c, self.of(r)
        if r.committed == 0:
            r.committed = h.hits
        self.commit(r, (h.hits + h.loaded) * c.block_size)
        computed = min((h.hits + h.loaded) * c.block_size, r.num_tokens - 1)
        new = self.cut(r.num_tokens - computed, threshold)
        if not c.enable_chunked_prefill and new > budget:
            return None
        new = min(new, budget)
        spare = self.watermark_blocks if self.running else 0
        free, held = len(self.pool.free), len(r.table)
        if c.scheduler_reserve_full_isl and self.blocks_for(r.num_tokens) - held + spare > free:
            return None
        need = self.blocks_for(computed + new) - held
        if need + spare > free:
            return None
        r.table += self.pool.take(need)
        self.commit(r, computed + new)
        self.t.parked.remove(r)
        self.seat(r, computed)
        return new

    def process(self, batch: Batch) -> None:
        before = [r.finished for r, *_ in batch.items]
        super().process(batch)
        self.t.ended += [r for (r, *_), done in zip(batch.items, before, strict=True) if r.finished and not done]

    def scheduled(self, batch: Batch, now: int, end: int) -> None:
        self.gpu_end = end
        for r, *_ in batch.items:
            self.offer(r, min(r.computed, r.num_tokens), now)
        self.offer_ended(now)

    def idle(self, now: int) -> None:
        self.offer_ended(now)

    def offer_ended(self, now: int) -> None:
        """The last output token never gets KV."""
        for r in self.t.ended:
            self.offer(r, max(r.prompt_tokens, r.num_tokens - 1), now)
        for r in self.t.ended:
            self.t.pool.refresh(r.keys[slice(*self.of(r).used)])
        self.t.ended = []

    def offer(self, r: TwinRequest, tokens: int, now: int) -> None:
        """Full blocks not offered yet; the store of new ones starts when the GPU has done what it has been given."""
        h, upto = self.of(r), tokens // self.c.block_size
        if upto <= h.stored:
            return
        self.use(r, h.stored, upto)
        keys: list[Key] | None = self.t.pool.offer(r.keys[h.stored : upto], h.stored, h.rank)
        if keys is None:
            return
        h.stored = upto
        if keys:
            h.busy = self.t.link_out.transfer(max(now, self.gpu_end), len(keys))
            for key in keys:
                self.t.pool.blocks[key].ready_ns = h.busy

    def next_transfer(self, arrival: int | None) -> int | None:
        times = [self.of(r).ready for r in self.t.parked if not self.of(r).done]
        if self.t.aside:
            times += [b.ready_ns for b in self.t.pool.blocks.values() if b.ready_ns is not None]
        if not times:
            return None
        return min(times) if arrival is None else min(*times, arrival)
