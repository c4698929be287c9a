"""Where everything lies in the arrays that the kernels share. `prefixsim.jit` hashes this file with the kernels' sources.

blocks int32 (N, 8): one 32-byte row a block, a cache line holds two. Row 0 (the null block) is the free queue's sentinel.
where int32 (n_chains,): by chain id: 0 never committed, -1 committed once and gone, else the oldest cached block.
slots int64 (S, SLOT_COLS): running requests. queue int64 (Q, QUEUE_COLS): requests in order of arrival at this replica.
batch int64 (2, S, 4): the steps in flight; head int64 (2, HEAD_COLS): their sums. lists int64 (3, S), LIST_*.
"""

from __future__ import annotations

(
    B_NEXT,  # free queue links, valid while ref is 0
    B_PREV,
    B_REF,
    B_CHAIN,  # committed chain id, -1 none
    B_COPY_NEXT,  # ring of the blocks that hold the same chain, oldest at where[chain]
    B_COPY_PREV,
    B_OWN,  # previous block that the same request took from the pool (0: none)
    B_SPARE,
) = range(8)

NEVER_COMMITTED, GONE = 0, -1

(
    S_POS,  # position in queue
    S_REQ,  # workload index
    S_PROMPT,
    S_COMPUTED,  # tokens computed or scheduled to be
    S_OUTPUTS,  # output tokens returned
    S_PLACE,  # output tokens in flight (asynchronous)
    S_FLIGHT,  # tokens scheduled and not yet processed
    S_HITS,  # leading blocks that came from the cache
    S_BLOCKS,  # all blocks held
    S_TAIL,  # last block taken from the pool; the others follow by B_OWN
    S_COMMITTED,  # leading blocks committed
    S_RUN,  # run of the chain row reached by commits
    S_STOP,  # outputs after which the request ends
    S_LIMIT,  # prompt + max_tokens
    S_LAST_NS,  # when its last output token came
    S_AGAIN,  # 1: admitted again after a preemption
    S_ENTRY,  # entry in the batch being scheduled, -1 none
    SLOT_COLS,
) = range(18)

Q_REQ, Q_READY_NS, Q_OUTPUTS, Q_BEFORE, Q_LAST_NS, Q_STATE, QUEUE_COLS = range(7)
"""Outputs, tokens computed and last token's time are those at a preemption."""
IN_QUEUE, IN_SLOT, IS_PREEMPTED, IS_DONE = range(4)

E_POS, E_SLOT, E_NEW, E_SAMPLES = range(4)
LIST_RUNNING, LIST_FREE, LIST_PREEMPTED = range(3)

(
    H_START_NS,
    H_END_NS,
    H_ENTRIES,
    H_TOKENS,
    H_PREFILL,
    H_RUNNING,
    H_WAITING,
    H_USED,
    H_EVICTED,
    H_PREEMPTIONS,
    H_LOOKUP,
    H_CACHED,
    HEAD_COLS,
) = range(13)

(
    # options
    I_BLOCK_SIZE,
    I_MAX_SEQS,
    I_BUDGET,
    I_MAX_LEN,
    I_WATERMARK,
    I_RESERVE,
    I_CHUNKED,
    I_THRESHOLD,
    I_DEPTH,
    I_PRIORITY,
    I_CACHING,
    I_SPLIT,
    I_TURN_NS,
    I_COUNT_RETRIES,
    I_SINGLE_STEP,
    I_KEEP_COMMITS,
    I_KEEP_LOG,
    # pool
    I_FREE,
    I_EVICTED,
    I_USED_PEAK,
    # scheduler
    I_NOW,
    I_END,
    I_LAST_END,
    I_SUBMITTED,
    I_FOLLOWING,  # next request of the queue to arrive
    I_HEAD,  # first arrived request never admitted (fcfs)
    I_RUNNING,
    I_STACK,  # preempted requests waiting in front (fcfs)
    I_HEAP,  # all waiting requests (priority)
    I_FLIGHT,
    I_OLDEST,  # which batch buffer is the oldest in flight
    I_STUCK,
    I_STEPS,
    I_PREEMPTIONS,
    I_FINISHED,
    I_CUT,  # requests that ended at max_model_len
    # state after the last schedule, for routers
    I_SEEN_RUNNING,
    I_SEEN_WAITING,
    I_SEEN_USED,
    # statistics
    I_QUERIES,
    I_HITS,
    I_AGAIN_QUERIES,
    I_AGAIN_HITS,
    I_FIRST_LOOKUP,
    I_FIRST_CACHED,
    I_GENERATED,
    I_LOOKUPS,
    I_UPDATE_REQUESTS,  # since the last update of the log line's window
    I_UPDATE_QUERIES,
    I_UPDATE_HITS,
    I_WINDOW_AT,
    I_WINDOW_N,
    I_WINDOW_REQUESTS,
    I_WINDOW_QUERIES,
    I_WINDOW_HITS,
    # output arrays
    I_TIMELINE,
    I_STRIDE,
    I_GAPS,
    I_DONE,
    I_LOG,
    I_ADMISSIONS,
    I_HOST_NS,  # when the thread that hashes prompts is free
    I_OFFLOAD,  # 1: there is a host tier
    I_HELD,  # requests waiting outside the queue: their KV is being loaded, or they wait for a transfer (host tier)
    I_COLS,
) = range(65)

WINDOW_REQUESTS = 1000
WINDOW_ROWS = 1024
"""vLLM's log line looks at the newest updates of about 1,000 requests; each update has at least one."""

(
    HOLD_STORED,  # leading blocks offered to the host tier
    HOLD_RANK,  # number of its first use there, 0 none
    HOLD_FROM,  # blocks it used there
    HOLD_TO,
    HOLD_BUSY_NS,  # when its last store is done
    HOLD_STATE,  # HELD_*
    HOLD_HITS,  # while its KV is loaded: leading blocks from the cache,
    HOLD_LOADED,  # blocks behind them that are loaded,
    HOLD_TAIL,  # the last one,
    HOLD_RUN,
    HOLD_READY_NS,  # when the load is done
    HOLD_OUTPUTS,  # at its end
    HOLD_PARKED,  # three lists of queue positions, which share the array
    HOLD_SKIPPED,
    HOLD_ENDED,
    HOLD_COLS,
) = range(16)
"""With a host tier, holds int64 (Q, HOLD_COLS): what it keeps of each request, by position in the queue."""
HELD_NOT, HELD_LOADING, HELD_LOADED, HELD_ENDED = range(4)

LOG_COLS = 6
"""Golden `steps` rows: instant, scheduled tokens, preempted, running, waiting, free blocks."""

STOP_UNTIL, STOP_IDLE, STOP_AWAITED, STOP_STUCK, STOP_ROOM, STOP_STEP = range(6)
