"""Where everything lies in the arrays of a host tier. `prefixsim.jit` hashes this file with the kernels' sources.

tier int64 (T_COLS,): scalars. host int64 (n, HOST_COLS): one row a host block; columns 5 to 7 are two lists that share the
array: the heap of blocks that may be evicted, and the ring of blocks being written. Host blocks are named by their row.
places int32 (2, n_chains): PLACE_HOST row + 1 of a chain's host block (0: none), PLACE_TRACKED the same in `tracker`.
tracker int64 (m, 4): how often chains were offered, least recently offered first; row 0 is the list's sentinel.
"""

# prefixsim.jit
from __future__ import annotations

(
    # link: durations in picoseconds, times in ns
    T_IN_PS,  # host to device, one block
    T_OUT_PS,  # device to host, one block
    T_LATENCY_PS,  # one transfer, either way
    T_IN_FREE,  # when the link's direction is free
    T_OUT_FREE,
    T_IN_BUSY,  # ns of transfers
    T_OUT_BUSY,
    T_IN_BLOCKS,
    T_OUT_BLOCKS,
    T_IN_JOBS,
    T_OUT_JOBS,
    T_IN_WAIT,  # ns that transfers waited for others on the link
    T_OUT_WAIT,
    # pool
    T_CAPACITY,
    T_USED,
    T_PEAK,
    T_FRESH,  # rows never used yet
    T_FREE,  # first of the freed rows + 1, linked by H_CHAIN
    T_EVICTABLE,  # blocks in the heap
    T_RING_AT,
    T_RING_N,
    T_RANK,
    T_OFFER,
    T_THRESHOLD,  # offers after which a block is stored; below 2: at once
    T_TRACKER_MAX,
    T_TRACKED,
    T_EVICTED,
    T_FAILED,  # offers that found no room
    T_BELOW,  # blocks offered too seldom yet
    # engine
    T_PARKED,  # requests whose KV is being loaded, or was and they wait for a place
    T_SKIPPED,  # requests that wait for a transfer before they are looked up
    T_ENDED,  # requests that ended since the last schedule
    T_LOADS,  # of the parked ones, first whose load is not finished
    T_LOAD_WAIT,  # ns between lookup and the end of the load, summed over requests
    T_ASIDE,  # of the skipped ones, those of the last schedule
    T_DEFERRED,  # lookups put off
    T_QUERIES,
    T_HITS,
    T_AGAIN_QUERIES,
    T_AGAIN_HITS,
    T_FIRST_CACHED,
    T_COLS,
) = range(42)

(
    H_CHAIN,
    H_RANK,  # eviction order: smallest first
    H_USERS,  # loads that read it; -1: being written
    H_PLACE,  # place in the heap, -1: not there
    H_STAMP,  # last offer it was part of
    H_HEAP,
    H_RING_ROW,
    H_RING_NS,
    HOST_COLS,
) = range(9)

K_PREV, K_NEXT, K_COUNT, K_CHAIN, TRACKER_COLS = range(5)
PLACE_HOST, PLACE_TRACKED = range(2)

RANK_SHIFT = 24
"""A rank is (use number << RANK_SHIFT) - position: blocks further back in a request are evicted first."""
MAX_POSITION = (1 << RANK_SHIFT) - 1
