"""Layout of SGLang's arenas: named columns of the few arrays that kernels share. No code.

scalars int64 (N_SCALARS,); floats float64 (N_FLOATS,); nodes int64 (capacity, NODE_COLUMNS), node 0 is the root;
table int64 (2^k, 2): open addressing, (chain id of a node's first page, node), -1 free; heap int64
(4 * capacity,): unlocked leaves as a 4-ary heap of (key, access, node), entry i at 3i, and from 3 * capacity on the place
of each node in it; slots int64 (capacity, SLOT_COLUMNS): requests in the engine;
lists int64 (5, capacity): queues of slots; static int64 (n, STATIC_COLUMNS): what the workload says of each request.
"""

from __future__ import annotations

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
LRU, LFU, FIFO, MRU, FILO, PRIORITY, SLRU, TLRU = range(8)

SCHEDULES = ("fcfs", "lof", "random", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
FCFS, LOF, RANDOM, LPM, DFS_WEIGHT, HRRN, SHORTEST = range(7)
FIRST_AWARE = LPM
"""Schedule policies from here on look every waiting request up."""

TICK = 100_000
NIL = -1
ROOT = 0

(
    # options
    S_PAGE,
    S_POLICY,
    S_PROTECTED_THRESHOLD,
    S_TLRU_THRESHOLD,
    S_TLRU_ESTIMATE,
    S_MERGE,
    S_DISABLED,
    S_SCHEDULE,
    S_MAX_RUNNING,
    S_CHUNK,  # 0: no chunked prefill
    S_MAX_PREFILL,
    S_OVERLAP,
    S_STEP_CLOCK,  # > 0: golden loop, every iteration lasts this many ns
    S_MAX_INPUT,  # prompts of this many tokens or more are refused on arrival; 0: none
    S_STRIP_THINKING,
    S_REPLICA,
    S_KEEP_COMMITS,
    S_TIMELINE_STRIDE,
    S_SINGLE_STEP,
    S_HOST_COSTS,
    # pool and tree
    S_PAGES,
    S_AVAILABLE,
    S_EVICTABLE,
    S_PROTECTED,
    S_EVICTED,  # pages evicted so far
    S_NODES,
    S_PEAK_NODES,
    S_CLOCK,
    S_FREE_NODE,
    S_NEXT_NODE,
    S_LEAVES,
    S_W_MATCH,  # nodes touched, by kind of work
    S_W_INSERT,
    S_W_SPLIT,
    S_W_EVICT,
    S_W_MERGE,
    S_W_EVICT_CALLS,
    S_W_EVICT_LEAVES,  # leaves there were, summed over evict calls: the real trees go through all of them at each call
    # requests
    S_FREE_SLOT,
    S_NEXT_SLOT,
    S_WAIT_HEAD,
    S_WAIT_TAIL,
    S_RUNNING,
    S_LAST,
    S_PENDING,
    S_PENDING_PREFILL,
    S_PENDING_END,
    S_CHUNKED,  # slot or NIL
    S_FULL,
    S_ADMITTED,  # admitted and not finished
    S_REFRESHES,
    S_PROCESSED_TOKENS,
    # loop
    S_NOW,
    S_GPU_FREE,
    S_LAST_END,
    S_ARRIVED,
    S_ARRIVALS,
    S_STEPS,  # loop iterations
    S_BATCHES,  # steps with work
    S_RETRACTIONS,
    S_ABORTED,
    S_REJECTED,
    S_REFUSED,
    S_FINISHED,
    S_COMPLETED,
    S_TIMELINE,
    S_GAPS,
    S_COMMITS,
    S_LOOKUP_TOKENS,
    S_CACHED_TOKENS,
    S_PREFILL_INPUT,
    S_PREFILL_HIT,
    S_PREFILL_INPUT_AGAIN,  # of these, of retracted requests
    S_PREFILL_HIT_AGAIN,
    S_LAST_PREFILL_INPUT,
    S_LAST_PREFILL_HIT,
    S_DECODE_TOKENS,
    S_PEAK_USED,
    S_HOST_NS,
    S_HOST_EXTRA_NS,  # what the host added to step time
    S_PREFILL_BATCHES,
    S_OOM_NEED,
    S_OOM_HAVE,
    S_MAX_RUNS,  # most runs a row has
    S_PASSES,  # prefill passes that sorted the waiting queue
    S_DIRTY,  # 1: a running request may have finished
    S_SEEN_AT,  # when the newest results came; load as it was before they did:
    S_SEEN_ADMITTED,
    S_SEEN_WAITING,
    S_SEEN_USED,
    S_STEADY,  # 1: the last iteration decoded exactly the running batch and nobody ended
    S_INSERT_NS,  # when inserts now happen
    # host tier
    S_TIER,
    S_HOST_PAGES,
    S_HOST_AVAILABLE,
    S_HOST_PEAK,
    S_HOST_LEAVES,
    S_HOST_EVICTED,
    S_HOST_FAILED,  # backups that found no room
    S_HOST_PINNED,  # node that must stay: it is about to be loaded
    S_BACKUP_USES,  # uses of a node after which it is written to host memory
    S_LOAD_FLOOR,  # tokens below which nothing is loaded
    S_LOADING,  # pages to be loaded with the batch being built
    S_LOAD_WAIT,  # ns by which loads made steps longer
    S_LOAD_SKIPPED,  # pages found in host memory and not loaded
    S_HOST_CACHED,  # tokens served from host memory at first admissions
    S_RING_AT,
    S_RING_N,
    S_WRITE_BACK,  # 1: copies are made when nodes are evicted
    S_STALL_NS,  # until when the scheduler waits for such copies
    S_STALLED,  # ns it waited
    S_HELD,  # 1: nothing runs, and the first waiting request needs pages that are still being copied
    S_LINK,  # the link's scalars (`engines.tiers.layout`) begin here
    N_SCALARS,
) = range(114)
LINK_SCALARS = 13

(
    F_RATIO,
    F_RATIO_MIN,
    F_RATIO_DECAY,
    F_MATCH_NS,
    F_INSERT_NS,
    F_SPLIT_NS,
    F_EVICT_NS,
    F_HOST_MARK,  # host ns already charged
    N_FLOATS,
) = range(9)

(
    N_PARENT,  # in the free list: the next free node
    N_END,  # depth in pages, itself included
    N_REP,  # a request whose row holds this segment
    N_RUN,  # run of that row, counted from its first, that holds the segment's last page
    N_LAST_START,  # chain id that run begins with
    N_FIRST,  # chain id of the segment's first page
    N_ACCESS,
    N_CREATED,
    N_HITS,
    N_PRIORITY,
    N_LOCKS,
    N_CHILDREN,
    N_CHILD_SUM,  # sum of the children's numbers: names the child when there is one
    N_HEAP,  # 1: in the heap, as unlocked leaves are; NIL: not
    N_HISTORY,
    N_ORDER,
    NODE_COLUMNS,
) = range(17)

(
    # with a host tier, nodes have more columns; N_CHILDREN and N_CHILD_SUM then count children on the device only
    N_DEVICE,  # 1: its KV is on the GPU; what is above it is, too
    N_HOST,  # 1: its KV is in host memory; what is above it is, too
    N_ALL,  # children
    N_HOST_PLACE,  # place among the host leaves, NIL when not one
    N_TWICE_PREV,  # list of nodes that are both on the GPU and in host memory, oldest first (write_back); NIL: not in it
    N_TWICE_NEXT,
    N_HOST_HEAP,  # the last three columns are lists that share the array: host leaves as a heap of nodes,
    N_RING,  # nodes being written to host memory, in order of submission,
    N_RING_NS,  # and when they are
    TIER_COLUMNS,
) = range(16, 26)

(
    R_MADE,  # output tokens known
    R_OUTPUTS,
    R_COMMITTED,  # tokens with KV
    R_LAST_NS,  # when the last token was known
    R_SKIP,  # 1: retracted, results in flight are dropped
    R_MIDDLE,  # middle chunks whose results are in flight
    R_STAMP,  # batch number it was last part of
    R_REQUEST,
    R_PROMPT,
    R_MAX_NEW,
    R_PREFIX,
    R_EXTEND_END,
    R_PROTECTED,  # pages
    R_INSERTED,  # pages
    R_MATCHED,
    R_NODE,
    R_LOCK,
    R_HIGH,  # KV it had when it was retracted
    R_AGAIN,  # 1: was retracted before
    R_ADMITTED,  # 1: was admitted before
    R_GONE,  # 1: left the running batch while its last token was in flight
    R_ENTRY,  # when it joined the waiting queue
    R_ARRIVED_TOKENS,  # prefill tokens processed by then
    R_CHUNKS,  # prefills, those after retractions too
    R_HOST,  # pages of its prefix that are in host memory only; after its admission: that came from there
    SLOT_COLUMNS,
) = range(26)

L_WAITING, L_RUNNING, L_LAST, L_PENDING, L_BATCH, L_ORDER, L_TEMP, L_KEY1, L_KEY2, N_LISTS = range(10)

(
    W_PROMPT,
    W_OUTPUTS,
    W_MAX_NEW,
    W_PRIORITY,
    W_STOP,
    W_RANK,
    W_HEAD,
    W_AWAITED,
    STATIC_COLUMNS,
) = range(9)

X_CHUNKS, X_EVICTED, EXTRA_COLUMNS = range(3)
"""Columns of the per-request extras that only golden cases ask for."""

(
    DONE,  # next schedule instant is not before the horizon, or nothing is left
    COMPLETED,  # an awaited request is done
    GROW_NODES,
    GROW_SLOTS,
    GROW_TIMELINE,
    GROW_GAPS,
    GROW_COMMITS,
    OUT_OF_MEMORY,
) = range(8)

NO_TOKEN, OTHER, CONTINUE = range(3)
CLIP_NEW_TOKENS = 4096
WAITING_MATCH_MAX = 128
REFRESH_INTERVAL = 32
IN_BATCH_TOKENS = 32
RETRACT_TOKENS = 20
