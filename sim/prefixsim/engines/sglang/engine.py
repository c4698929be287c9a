# mypy: disable-error-code="no-untyped-call"
"""One SGLang replica as a step machine (`engines.contract`), on compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.engines.contract import EngineInputs, Progress
from prefixsim.engines.sglang.arenas import Arenas, enlarged
from prefixsim.engines.sglang.facts import INPUT_HEADROOM, Settings, settle_options
from prefixsim.engines.sglang.hicache import (
    backup_uses,
    host_pages,
    prepare,
    tier_counters,
    tier_notes,
    tier_totals,
)
from prefixsim.engines.sglang.hicache_kernels import peek_tiers
from prefixsim.engines.sglang.loop_kernels import advance
from prefixsim.engines.sglang.prefill_kernels import N_BUDGET, N_LEFT
from prefixsim.engines.sglang.prepare import static_rows
from prefixsim.engines.sglang.state import (
    COMPLETED,
    DFS_WEIGHT,
    EXTRA_COLUMNS,
    F_EVICT_NS,
    F_INSERT_NS,
    F_MATCH_NS,
    F_RATIO,
    F_RATIO_DECAY,
    F_RATIO_MIN,
    F_SPLIT_NS,
    GROW_COMMITS,
    GROW_GAPS,
    GROW_NODES,
    GROW_SLOTS,
    GROW_TIMELINE,
    N_RING_NS,
    NIL,
    OUT_OF_MEMORY,
    S_ADMITTED,
    S_ARRIVALS,
    S_ARRIVED,
    S_AVAILABLE,
    S_CHUNK,
    S_CHUNKED,
    S_COMPLETED,
    S_DISABLED,
    S_EVICTABLE,
    S_HELD,
    S_HOST_COSTS,
    S_KEEP_COMMITS,
    S_LAST,
    S_MAX_INPUT,
    S_MAX_PREFILL,
    S_MAX_RUNNING,
    S_MAX_RUNS,
    S_MERGE,
    S_NOW,
    S_OOM_HAVE,
    S_OOM_NEED,
    S_OVERLAP,
    S_PAGE,
    S_PAGES,
    S_PENDING,
    S_POLICY,
    S_PROTECTED_THRESHOLD,
    S_REPLICA,
    S_RING_AT,
    S_RUNNING,
    S_SCHEDULE,
    S_SEEN_ADMITTED,
    S_SEEN_AT,
    S_SEEN_USED,
    S_SEEN_WAITING,
    S_SINGLE_STEP,
    S_STEP_CLOCK,
    S_STRIP_THINKING,
    S_TIMELINE,
    S_TIMELINE_STRIDE,
    S_TLRU_ESTIMATE,
    S_TLRU_THRESHOLD,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
)
from prefixsim.engines.sglang.statistics import counters, first_commits, notes, totals
from prefixsim.engines.sglang.tree_kernels import peek
from prefixsim.errors import DoesNotFitError
from prefixsim.hardware.step_kernels import C_CLOCK_STEPS
from prefixsim.records import (
    I64,
    NEVER,
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    EngineRecord,
)
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.units import NS_PER_S

RATIO_FIRST, RATIO_FLOOR, RATIO_STEPS = 0.7, 0.14, 600
"""New-token ratio: first value per conservativeness, floor as a share of it, decode steps from one to the other."""


def build(options: SglangOptions, inputs: EngineInputs) -> SglangEngine:
    """One SGLang replica. Raises DoesNotFitError for a pool of less than a page."""
    golden = float(inputs.costs.coef[C_CLOCK_STEPS]) > 0
    settings = settle_options(options, inputs.capacity, inputs.gpu_memory_gib, golden=golden)
    pages = host_pages(options, settings.pages, inputs.host)
    settings = replace(settings, host_pages=pages, backup_uses=backup_uses(options))
    return SglangEngine(options.name, options.kind, settings, inputs)


class SglangEngine:
    """See `engines.contract.Engine`. All state is in the arenas; a call is one kernel run until something outside matters.

    What a step puts into the tree is there for `match_tokens` from the moment the step was scheduled for processing, which
    may be up to one step before it is there in simulated time; `load` is exact."""

    def __init__(self, name: str, kind: str, settings: Settings, inputs: EngineInputs, *, extra: bool = False) -> None:
        self.name, self.kind, self.settings, self.inputs = name, kind, settings, inputs
        self.granularity = settings.page_size
        self.capacity_tokens = self.longest_tokens = settings.capacity_tokens
        w, chains = inputs.workload, inputs.chains
        self.static, n_heads, self.n_cut = static_rows(
            w, chains, settings, inputs.awaited, inputs.seed + 7919 * inputs.replica
        )
        dfs = settings.schedule == DFS_WEIGHT
        self.tiered = settings.host_pages > 0
        self.arenas = Arenas(settings.pages, chains, dfs=dfs, keep_commits=inputs.keep_commits, tier=self.tiered)
        self.arenas.seen = np.zeros(n_heads, dtype=np.int64)
        self.extra: I64 = np.zeros((w.n if extra else 0, EXTRA_COLUMNS), dtype=np.int64)
        self.arrivals: I64 = np.zeros((64, 2), dtype=np.int64)
        self.completed: I64 = np.zeros((1 + int(inputs.awaited.sum()), 2), dtype=np.int64)
        self.budget: npt.NDArray[np.float64] = np.zeros(N_BUDGET, dtype=np.float64)
        self.left: I64 = np.zeros(N_LEFT, dtype=np.int64)
        self.row: I64 = np.zeros(self.arenas.timeline.shape[1], dtype=np.int64)
        self.until = 0
        self._set_scalars()
        self._args: tuple[Any, ...] | None = None

    def _set_scalars(self) -> None:
        s, o, f = self.arenas.scalars, self.settings, self.arenas.floats
        host, coef = self.inputs.costs.host, self.inputs.costs.coef
        runs = np.diff(self.inputs.chains.run_offset)
        values = {
            S_PAGE: o.page_size,
            S_POLICY: o.policy,
            S_PROTECTED_THRESHOLD: o.eviction.protected_threshold,
            S_TLRU_THRESHOLD: o.eviction.threshold,
            S_TLRU_ESTIMATE: o.eviction.next_prompt_estimate,
            S_MERGE: o.merge,
            S_DISABLED: o.disabled,
            S_SCHEDULE: o.schedule,
            S_MAX_RUNNING: o.max_running,
            S_CHUNK: o.chunk,
            S_MAX_PREFILL: o.max_prefill,
            S_OVERLAP: o.overlap,
            S_STEP_CLOCK: int(coef[C_CLOCK_STEPS]),
            S_MAX_INPUT: max(1, o.max_length - INPUT_HEADROOM) if o.max_length is not None else 0,
            S_STRIP_THINKING: o.strip_thinking,
            S_REPLICA: self.inputs.replica,
            S_KEEP_COMMITS: self.inputs.keep_commits,
            S_SINGLE_STEP: self.inputs.single_step,
            S_PAGES: o.pages,
            S_AVAILABLE: o.pages,
            S_MAX_RUNS: int(runs.max()) if runs.shape[0] else 1,
        }
        for index, value in values.items():
            s[index] = int(value)
        first = min(RATIO_FIRST * o.conservativeness, 1.0)
        floor = min(first * RATIO_FLOOR, 1.0)
        f[F_RATIO], f[F_RATIO_MIN], f[F_RATIO_DECAY] = first, floor, (first - floor) / RATIO_STEPS
        f[[F_MATCH_NS, F_INSERT_NS, F_SPLIT_NS, F_EVICT_NS]] = (
            host.match_ns_per_node,
            host.insert_ns_per_node,
            host.split_ns_per_node,
            host.evict_ns_per_node,
        )
        if self.tiered and self.inputs.host is not None:
            prepare(s, o.host_pages, o.backup_uses, o.page_size, self.inputs.host)
        s[S_HOST_COSTS] = bool(f[[F_MATCH_NS, F_INSERT_NS, F_SPLIT_NS, F_EVICT_NS]].any())

    # -- the contract

    def submit(self, requests: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]) -> None:
        """Requests (workload indices, int64) reach this replica at the given times (ns), not before earlier ones."""
        k = requests.shape[0]
        s = self.arenas.scalars
        done, queued = int(s[S_ARRIVED]), int(s[S_ARRIVALS])
        if queued + k > self.arrivals.shape[0]:
            if done > queued // 2:  # forget what the kernel has taken
                self.arrivals[: queued - done] = self.arrivals[done:queued]
                s[S_ARRIVED], s[S_ARRIVALS] = 0, queued - done
                queued -= done
            if queued + k > self.arrivals.shape[0]:
                self.arrivals = enlarged(self.arrivals, max(queued + k, 2 * self.arrivals.shape[0]))
                self._args = None
        self.arrivals[queued : queued + k, 0] = requests
        self.arrivals[queued : queued + k, 1] = at_ns
        s[S_ARRIVALS] = queued + k
        rows = self.inputs.rows
        rows[requests, REQ_REPLICA] = self.inputs.replica
        rows[requests, REQ_RELEASED_NS] = at_ns
        rows[requests, REQ_READY_NS] = at_ns

    def advance(self, until_ns: int) -> Progress:
        """Runs steps while the next schedule instant is < until_ns. Raises DoesNotFitError where the real engine would
        stop for want of KV memory."""
        s = self.arenas.scalars
        self.until = until_ns
        while True:
            args = (*self.args(), until_ns)
            code = advance(*args)
            if code == OUT_OF_MEMORY:
                raise DoesNotFitError(self.out_of_memory())
            if code <= COMPLETED:
                break
            self.grow(code)
        completed = self.completed[: s[S_COMPLETED]].copy()
        s[S_COMPLETED] = 0
        now = int(s[S_NOW])
        if s[S_HELD]:
            following = int(self.arenas.nodes[s[S_RING_AT], N_RING_NS])
            if s[S_ARRIVED] < s[S_ARRIVALS]:
                following = min(following, int(self.arrivals[s[S_ARRIVED], 1]))
            following = max(now, following)
            return Progress(following, following, completed)
        waiting = s[S_WAIT_TAIL] > s[S_WAIT_HEAD]
        if waiting or s[S_RUNNING] or s[S_LAST] or s[S_PENDING] or s[S_CHUNKED] != NIL:
            return Progress(now, now, completed)
        if s[S_ARRIVED] < s[S_ARRIVALS]:
            following = max(now, int(self.arrivals[s[S_ARRIVED], 1]))
            return Progress(following, following, completed)
        return Progress(now, NEVER, completed)

    def load(self) -> tuple[int, int, int]:
        """(running requests, waiting requests, KV tokens of running ones) as of the last `advance`: results that come
        later than its horizon are not in yet; requests submitted since count as waiting."""
        s = self.arenas.scalars
        coming = int(s[S_ARRIVALS] - s[S_ARRIVED])
        if s[S_SEEN_AT] > self.until:
            return int(s[S_SEEN_ADMITTED]), int(s[S_SEEN_WAITING]) + coming, int(s[S_SEEN_USED])
        used = int(s[S_PAGES] - s[S_AVAILABLE] - s[S_EVICTABLE]) * self.granularity
        return int(s[S_ADMITTED]), int(s[S_WAIT_TAIL] - s[S_WAIT_HEAD]) + coming, used

    def match_tokens(self, request: int, host: bool = False) -> int:
        """Prompt tokens a lookup of `request` would hit now, with `host` those of the host tier too; changes nothing."""
        if self.settings.disabled:
            return 0
        a, c = self.arenas, self.inputs.chains
        pages = (int(self.inputs.workload.prompt_tokens[request]) - 1) // self.granularity
        if self.tiered:
            found = peek_tiers(a.nodes, a.table, c.run_offset, c.run_start, c.run_end, request, pages)
            return int(found[1 if host else 0]) * self.granularity
        return int(peek(a.nodes, a.table, c.run_offset, c.run_start, c.run_end, request, pages)) * self.granularity

    def record(self) -> EngineRecord:
        """What this replica leaves behind."""
        a = self.arenas
        commits = first_commits(a, self.inputs) if self.inputs.keep_commits else None
        return EngineRecord(
            name=self.name,
            kind=self.kind,
            replica=self.inputs.replica,
            granularity=self.granularity,
            capacity_tokens=self.capacity_tokens,
            timeline=a.timeline[: a.scalars[S_TIMELINE]].copy(),
            gaps=a.summed_gaps(),
            totals=totals(a, self.inputs, self.granularity) | self._tier_totals(),
            counters=counters(a, self.granularity) | self._tier_counters(),
            notes=(*notes(a, self.settings, self.inputs, self.n_cut), *self._tier_notes()),
            timeline_stride=int(a.scalars[S_TIMELINE_STRIDE]),
            first_commit_ns=commits,
        )

    # -- helpers

    def _tier_totals(self) -> dict[str, int]:
        return tier_totals(self.arenas.scalars, self.granularity) if self.tiered else {}

    def _tier_counters(self) -> dict[str, float]:
        return tier_counters(self.arenas.scalars, self.inputs, self.granularity) if self.tiered else {}

    def _tier_notes(self) -> tuple[str, ...]:
        return tier_notes(self.inputs.host) if self.tiered and self.inputs.host is not None else ()

    def args(self) -> tuple[Any, ...]:
        """Arguments of `loop_kernels.advance` but the last."""
        if self._args is None:
            a, costs = self.arenas, self.inputs.costs
            tree = a.tree_args()
            self._args = (
                tree[0],
                a.floats,
                *tree[1:],
                a.heads,
                a.marks,
                a.commits,
                a.slots,
                a.lists,
                a.ratio,
                a.seen,
                a.weights,
                self.static,
                self.inputs.rows,
                self.extra,
                self.arrivals,
                costs.coef,
                costs.gemm_us,
                costs.lm_head_us,
                a.timeline,
                a.gaps,
                self.completed,
                self.budget,
                self.left,
                self.row,
            )
        return self._args

    def grow(self, code: int) -> None:
        """Enlarges the arena a kernel has asked for."""
        a, s = self.arenas, self.arenas.scalars
        busy = int(s[S_RUNNING] + s[S_LAST] + s[S_PENDING]) + 4
        waiting = int(s[S_WAIT_TAIL] - s[S_WAIT_HEAD])
        if code == GROW_NODES:
            a.grow_nodes(0)
        elif code == GROW_SLOTS:
            a.grow_slots(0)
        elif code == GROW_TIMELINE:
            a.grow_timeline()
        elif code == GROW_GAPS:
            a.grow_gaps(busy + waiting)
        elif code == GROW_COMMITS:
            a.grow_commits(a.commits.shape[0] + 2 * busy * int(s[S_MAX_RUNS]))
        self._args = None

    def out_of_memory(self) -> str:
        """Message for an allocation that the real engine could not make either."""
        s, page = self.arenas.scalars, self.granularity
        need, have = int(s[S_OOM_NEED]) * page, int(s[S_OOM_HAVE]) * page
        return (
            f"engine '{self.name}', replica {self.inputs.replica}: at {int(s[S_NOW]) / NS_PER_S:.6g} s SGLang would stop with "
            f"'out of memory': {need} KV tokens needed, {have} can be had of {self.capacity_tokens}. More memory, a larger "
            "schedule_conservativeness or a smaller chunked_prefill_size avoids it"
        )
