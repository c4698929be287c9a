# mypy: disable-error-code="no-untyped-call"
"""One vLLM replica: arrays, and the calls that run the kernels on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.engines.contract import Engine, EngineInputs, Progress
from prefixsim.engines.gaps import join_gaps
from prefixsim.engines.tiers.arrays import TierArrays
from prefixsim.engines.tiers.layout import T_ENDED
from prefixsim.engines.tiers.pool_kernels import find_run
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.facts import Settings, resolve
from prefixsim.engines.vllm.front_end import MAX_TIMELINE_ROWS, FrontEnd, as_columns, grown
from prefixsim.engines.vllm.offload import offload_blocks, tier_counters, tier_notes, tier_totals
from prefixsim.engines.vllm.offload_kernels import next_transfer
from prefixsim.engines.vllm.pool_kernels import lookup, reset_pool
from prefixsim.engines.vllm.process_kernels import halve_timeline
from prefixsim.engines.vllm.run_kernels import run_engine
from prefixsim.engines.vllm.statistics import counters, notes, totals
from prefixsim.errors import DoesNotFitError
from prefixsim.hardware.step_kernels import C_CLOCK_STEPS
from prefixsim.records import (
    I64,
    NEVER,
    TIMELINE_COLUMNS,
    EngineRecord,
)
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.workload.table import Workload

NOBODY: I64 = np.zeros((0, 2), dtype=np.int64)
MAX_IDS = (1 << 31) - 2


def build(options: VllmOptions, inputs: EngineInputs) -> Engine:
    """A vLLM engine. Raises NotModelledError (what groups of layers do not have here), DoesNotFitError (pool, workload too
    large for its ids)."""
    turn_ns = int(inputs.costs.coef[C_CLOCK_STEPS])
    if inputs.capacity < 2:
        raise DoesNotFitError(
            f"engine '{options.name}': {inputs.capacity} KV blocks; vLLM needs 2 at least, one of them its null block"
        )
    if options.layout not in (None, "full"):
        from prefixsim.engines.vllm.groups_build import build_groups

        return build_groups(options, inputs, turn_ns)
    settings = resolve(options, inputs.capacity, inputs.gpu_memory_gib, inputs.gpu_architecture, turn_ns)
    extra = options.kv_connector_extra_config
    settings = replace(
        settings,
        offload_blocks=offload_blocks(options, inputs.host),
        store_threshold=extra.store_threshold,
        max_tracker_size=extra.max_tracker_size,
    )
    return VllmEngine(options.name, options.kind, settings, inputs)


class VllmEngine:
    """See `engines.contract.Engine`. `log`: keep golden rows (every step and admission) for `replay`."""

    def __init__(self, name: str, kind: str, settings: Settings, inputs: EngineInputs, *, log: bool = False) -> None:
        s, w, chains = settings, inputs.workload, inputs.chains
        if chains.granularity != s.block_size:
            raise ValueError(f"chains of granularity {chains.granularity} for block_size {s.block_size}")
        if chains.n_chains > MAX_IDS or s.num_gpu_blocks > MAX_IDS:
            raise DoesNotFitError(
                f"engine '{name}': {chains.n_chains:,} distinct blocks in the workload and {s.num_gpu_blocks:,} in the "
                f"pool; at most {MAX_IDS:,} can be told apart: use a larger block_size or a shorter workload"
            )
        self.name, self.kind, self.settings, self.inputs = name, kind, s, inputs
        self.granularity = s.block_size
        self.capacity_tokens = self.longest_tokens = (s.num_gpu_blocks - 1) * s.block_size
        n_slots = max(1, min(s.max_num_seqs, w.n, s.num_gpu_blocks - 1))
        state = self.state = np.zeros(st.I_COLS, dtype=np.int64)
        for column, value in (
            (st.I_BLOCK_SIZE, s.block_size),
            (st.I_MAX_SEQS, min(s.max_num_seqs, n_slots)),
            (st.I_BUDGET, s.max_num_batched_tokens),
            (st.I_MAX_LEN, s.max_model_len),
            (st.I_WATERMARK, int(s.watermark * s.num_gpu_blocks)),
            (st.I_RESERVE, s.scheduler_reserve_full_isl),
            (st.I_CHUNKED, s.enable_chunked_prefill),
            (st.I_THRESHOLD, s.long_prefill_token_threshold),
            (st.I_DEPTH, 2 if s.async_scheduling else 1),
            (st.I_PRIORITY, s.priority),
            (st.I_CACHING, s.enable_prefix_caching),
            (st.I_SPLIT, s.split_free_queue),
            (st.I_TURN_NS, s.turn_ns),
            (st.I_COUNT_RETRIES, s.stats_count_retries),
            (st.I_SINGLE_STEP, inputs.single_step),
            (st.I_KEEP_COMMITS, inputs.keep_commits and s.enable_prefix_caching),
            (st.I_KEEP_LOG, log),
            (st.I_LAST_END, -1),
            (st.I_STRIDE, 1),
        ):
            state[column] = int(value)
        n_chains = chains.n_chains if s.enable_prefix_caching else 0
        self.blocks = np.empty((s.num_gpu_blocks if log else _useful_blocks(s, w), 8), dtype=np.int32)
        reset_pool(state, self.blocks)
        self.where = np.zeros(max(1, n_chains), dtype=np.int32)
        self.commits = np.full(max(1, n_chains) if inputs.keep_commits else 1, NEVER, dtype=np.int64)
        self.slots = np.zeros((n_slots, st.SLOT_COLS), dtype=np.int64)
        self.lists = np.zeros((3, n_slots), dtype=np.int64)
        self.lists[st.LIST_FREE] = np.arange(n_slots)[::-1]
        self.queue = np.zeros((16, st.QUEUE_COLS), dtype=np.int64)
        self.heap = np.zeros(16 if s.priority else 1, dtype=np.int64)
        self.batches = np.zeros((2, n_slots, 4), dtype=np.int64)
        self.heads = np.zeros((2, st.HEAD_COLS), dtype=np.int64)
        self.window = np.zeros((st.WINDOW_ROWS, 3), dtype=np.int64)
        self.done = np.zeros((n_slots + 2, 2), dtype=np.int64)
        self.gaps = np.zeros((4 * n_slots + 4096, 2), dtype=np.int64)
        self.timeline = np.zeros((4096, len(TIMELINE_COLUMNS)), dtype=np.int64)
        self.log = np.zeros((4096 if log else 1, st.LOG_COLS), dtype=np.int64)
        self.admissions = np.zeros((n_slots + 4096 if log else 1, 4), dtype=np.int64)
        self.tier = TierArrays.absent()
        if s.offload_blocks > 0 and inputs.host is not None:
            self.tier = TierArrays.of_blocks(
                inputs.host, s.offload_blocks, s.block_size, n_chains, s.store_threshold, s.max_tracker_size
            )
            state[st.I_OFFLOAD] = 1
        self.holds = np.zeros((16 if state[st.I_OFFLOAD] else 1, st.HOLD_COLS), dtype=np.int64)
        hash_ns = inputs.costs.host.hash_ns_per_token if s.enable_prefix_caching else 0.0
        self.front_end = FrontEnd(inputs, s.max_model_len - 1, hash_ns)
        self.open_ended = w.stop if w.max_tokens_assumed else np.zeros(w.n, dtype=np.bool_)
        self.until = 0
        self.view = memoryview(state)  # type: ignore[arg-type]  # reads as Python integers, at a third of an array's price
        self._args: tuple[Any, ...] | None = None

    def submit(self, requests: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]) -> None:
        """Requests reach this replica. Prompts that can never fit are refused at once, as vLLM's front end does."""
        requests, at_ns = as_columns(requests, at_ns)
        total = self.view[st.I_SUBMITTED] + requests.shape[0]
        if total > self.queue.shape[0]:
            self._lengthen_queue(total)
        self.front_end.take_in(self.state, self.queue, requests, at_ns)

    def advance(self, until_ns: int) -> Progress:
        """Runs steps while the next schedule instant is < until_ns. A refused request that somebody waits for counts as
        completed when it was refused."""
        refused = self.front_end.completed()
        if refused is not None:
            return self._progress(refused)
        self.until = until_ns
        args = (*self.args(), until_ns)
        while run_engine(*args) == st.STOP_ROOM:
            self.make_room()
            args = (*self.args(), until_ns)
        done = self.view[st.I_DONE]
        return self._progress(self.done[:done].copy() if done else NOBODY)

    def args(self) -> tuple[Any, ...]:
        """Arguments of `run_engine` but the last. Kept between calls: most calls run a step or two."""
        if self._args is None:
            w, c, costs = self.inputs.workload, self.inputs.chains, self.inputs.costs
            self._args = (
                self.state,
                self.blocks,
                self.where,
                self.commits,
                self.slots,
                self.lists,
                self.queue,
                self.heap,
                self.batches,
                self.heads,
                self.window,
                c.run_offset,
                c.run_start,
                c.run_end,
                w.prompt_tokens,
                w.output_tokens,
                w.max_tokens,
                self.open_ended,
                w.priority,
                w.skip_reading_prefix_cache,
                self.inputs.awaited,
                self.inputs.rows,
                self.done,
                self.gaps,
                self.timeline,
                self.log,
                self.admissions,
                costs.coef,
                costs.gemm_us,
                costs.lm_head_us,
                self.tier.tier,
                self.tier.host,
                self.tier.places,
                self.tier.tracker,
                self.holds,
            )
        return self._args

    def _lengthen_queue(self, rows: int) -> None:
        self._args = None
        self.queue = grown(self.queue, max(rows, 2 * self.queue.shape[0]))
        if self.settings.priority:
            self.heap = grown(self.heap, self.queue.shape[0])
        if self.state[st.I_OFFLOAD]:
            self.holds = grown(self.holds, self.queue.shape[0])

    def replace_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Puts an array with the same content in the place of one of this replica's own."""
        setattr(self, name, array)
        self._args = None
        if name == "state":
            self.view = memoryview(array)  # type: ignore[arg-type]

    def make_room(self) -> None:
        """Arrays are full: the queue grows, gaps are joined, the timeline grows and then is thinned, logs grow."""
        if self.view[st.I_SUBMITTED] >= self.queue.shape[0]:
            self._lengthen_queue(self.view[st.I_SUBMITTED] + 1)
        state, slack = self.state, self.slots.shape[0] + 2
        self._args = None
        if state[st.I_GAPS] + slack > self.gaps.shape[0]:
            joined = join_gaps(self.gaps[: state[st.I_GAPS]])
            if 2 * (joined.shape[0] + slack) > self.gaps.shape[0]:
                self.gaps = np.zeros((2 * self.gaps.shape[0], 2), dtype=np.int64)
            self.gaps[: joined.shape[0]] = joined
            state[st.I_GAPS] = joined.shape[0]
        if state[st.I_STEPS] // state[st.I_STRIDE] >= self.timeline.shape[0]:
            if self.timeline.shape[0] < MAX_TIMELINE_ROWS:
                self.timeline = grown(self.timeline, 2 * self.timeline.shape[0])
            else:
                halve_timeline(state, self.timeline)
        if state[st.I_KEEP_LOG]:
            if state[st.I_LOG] >= self.log.shape[0]:
                self.log = grown(self.log, 2 * self.log.shape[0])
            if state[st.I_ADMISSIONS] + slack > self.admissions.shape[0]:
                self.admissions = grown(self.admissions, 2 * self.admissions.shape[0])

    def _progress(self, completed: I64) -> Progress:
        s = self.view
        now = s[st.I_NOW]
        busy = s[st.I_FLIGHT] > 0 or s[st.I_RUNNING] > 0 or self._waiting() > 0
        if (busy and not s[st.I_STUCK]) or (s[st.I_OFFLOAD] and self.tier.tier[T_ENDED]):
            return Progress(now, now, completed)
        following = NEVER
        if busy and s[st.I_OFFLOAD]:
            following = int(next_transfer(self.tier.tier, self.tier.host, self.holds))
        if s[st.I_FOLLOWING] < s[st.I_SUBMITTED]:
            following = min(following, int(self.queue[s[st.I_FOLLOWING], st.Q_READY_NS]))
        if following < NEVER:
            following = max(now, following)
            return Progress(following, following, completed)
        return Progress(now, NEVER, completed)

    def _waiting(self) -> int:
        s = self.view
        if s[st.I_PRIORITY]:
            return s[st.I_HEAP] + s[st.I_HELD]
        return s[st.I_STACK] + s[st.I_FOLLOWING] - s[st.I_HEAD] + s[st.I_HELD]

    def load(self) -> tuple[int, int, int]:
        """(running, waiting, KV tokens in use) at the end of the last `advance`: steps whose output came later than that
        still count as running; requests that arrived since count as waiting."""
        s = self.view
        coming = s[st.I_SUBMITTED] - s[st.I_FOLLOWING]
        if s[st.I_NOW] <= self.until:
            used = self.blocks.shape[0] - 1 - s[st.I_FREE]
            return s[st.I_RUNNING], self._waiting() + coming, used * self.granularity
        return s[st.I_SEEN_RUNNING], s[st.I_SEEN_WAITING] + coming, s[st.I_SEEN_USED] * self.granularity

    def match_tokens(self, request: int, host: bool = False) -> int:
        """Prompt tokens that a lookup of `request` would hit now, with `host` those of the host tier too; changes nothing."""
        if not self.settings.enable_prefix_caching:
            return 0
        c = self.inputs.chains
        limit = (int(self.inputs.workload.prompt_tokens[request]) - 1) // self.granularity
        found, _ = lookup(self.blocks, self.where, c.run_offset, c.run_start, c.run_end, request, limit)
        if host and self.state[st.I_OFFLOAD]:
            runs = (c.run_offset, c.run_start, c.run_end)
            more, _ = find_run(self.tier.host, self.tier.places, *runs, request, found, limit)
            found += more
        return int(found) * self.granularity

    def _tier_totals(self) -> dict[str, int]:
        return tier_totals(self.tier.tier, self.settings.block_size) if self.state[st.I_OFFLOAD] else {}

    def _tier_counters(self) -> dict[str, float]:
        if not self.state[st.I_OFFLOAD]:
            return {}
        return tier_counters(self.tier.tier, self.inputs, self.settings, int(self.state[st.I_END]))

    def _tier_notes(self) -> tuple[str, ...]:
        host = self.inputs.host
        return tier_notes(host) if self.state[st.I_OFFLOAD] and host is not None else ()

    def free_queue(self) -> list[int]:
        """Block ids in eviction order. For tests and `replay`."""
        out: list[int] = []
        b = int(self.blocks[0, st.B_NEXT])
        while b:
            out.append(b)
            b = int(self.blocks[b, st.B_NEXT])
        return out

    def record(self) -> EngineRecord:
        """What this replica leaves behind."""
        s = self.state
        extra: dict[str, Any] = {}
        if self.inputs.keep_commits:
            extra["first_commit_ns"] = self.commits if self.settings.enable_prefix_caching else None
        return EngineRecord(
            name=self.name,
            kind=self.kind,
            replica=self.inputs.replica,
            granularity=self.granularity,
            capacity_tokens=self.capacity_tokens,
            timeline=self.timeline[: s[st.I_TIMELINE]],
            gaps=join_gaps(self.gaps[: s[st.I_GAPS]]),
            totals=totals(s, self.settings, self.front_end.n_refused) | self._tier_totals(),
            counters=counters(s, self.settings, self.blocks.shape[0] - 1 - int(s[st.I_FREE])) | self._tier_counters(),
            notes=(*notes(s, self.settings, self.inputs, self.front_end.n_refused), *self._tier_notes()),
            timeline_stride=int(s[st.I_STRIDE]),
            **extra,
        )


def _useful_blocks(s: Settings, w: Workload) -> int:
    """Rows of the block table: the pool, or fewer where the whole workload fits without reuse of a single block (a
    watermark looks at the free count itself, so then the pool as it is)."""
    if s.watermark > 0:
        return s.num_gpu_blocks
    tokens = np.minimum(w.prompt_tokens + w.output_tokens, s.max_model_len)
    return min(s.num_gpu_blocks, 2 + int((tokens // s.block_size).sum()) + 2 * w.n)
