# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""vLLM's CPU pool (OffloadingConnector, policy "lru"), compiled. Twin: `twin.TwinHostPool`. Arrays: see `layout`.

Blocks are those of a request's chain row: [first, upto) counted from its start.
"""

from __future__ import annotations

from prefixsim.engines.tiers.layout import (
    H_CHAIN,
    H_HEAP,
    H_PLACE,
    H_RANK,
    H_RING_NS,
    H_RING_ROW,
    H_STAMP,
    H_USERS,
    K_CHAIN,
    K_COUNT,
    K_NEXT,
    K_PREV,
    MAX_POSITION,
    PLACE_HOST,
    PLACE_TRACKED,
    RANK_SHIFT,
    T_BELOW,
    T_CAPACITY,
    T_EVICTABLE,
    T_EVICTED,
    T_FAILED,
    T_FREE,
    T_FRESH,
    T_OFFER,
    T_PEAK,
    T_RANK,
    T_RING_AT,
    T_RING_N,
    T_THRESHOLD,
    T_TRACKED,
    T_TRACKER_MAX,
    T_USED,
)
from prefixsim.jit import lean_kernel


@lean_kernel
def _rise(host, i):
    """Moves the heap's entry i towards the root until its parent goes first."""
    row = host[i, H_HEAP]
    rank = host[row, H_RANK]
    while i > 0:
        up = (i - 1) >> 1
        above = host[up, H_HEAP]
        if host[above, H_RANK] <= rank:
            break
        host[i, H_HEAP] = above
        host[above, H_PLACE] = i
        i = up
    host[i, H_HEAP] = row
    host[row, H_PLACE] = i


@lean_kernel
def _sink(host, i, n):
    """Moves the heap's entry i towards the leaves until its children go after it."""
    row = host[i, H_HEAP]
    rank = host[row, H_RANK]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and host[host[child + 1, H_HEAP], H_RANK] < host[host[child, H_HEAP], H_RANK]:
            child += 1
        below = host[child, H_HEAP]
        if host[below, H_RANK] >= rank:
            break
        host[i, H_HEAP] = below
        host[below, H_PLACE] = i
        i = child
    host[i, H_HEAP] = row
    host[row, H_PLACE] = i


@lean_kernel
def make_evictable(tier, host, row):
    """Nobody reads or writes the block any more."""
    n = tier[T_EVICTABLE]
    host[n, H_HEAP] = row
    tier[T_EVICTABLE] = n + 1
    _rise(host, n)


@lean_kernel
def keep(tier, host, row):
    """The block must stay: takes it out of the heap."""
    i = host[row, H_PLACE]
    n = tier[T_EVICTABLE] - 1
    tier[T_EVICTABLE] = n
    host[row, H_PLACE] = -1
    if i < n:
        host[i, H_HEAP] = host[n, H_HEAP]
        moved = host[i, H_HEAP]
        host[moved, H_PLACE] = i
        _rise(host, i)
        _sink(host, host[moved, H_PLACE], n)


@lean_kernel
def set_rank(tier, host, row, rank):
    """A block's place in the eviction order changes."""
    host[row, H_RANK] = rank
    i = host[row, H_PLACE]
    if i >= 0:
        _rise(host, i)
        _sink(host, host[row, H_PLACE], tier[T_EVICTABLE])


@lean_kernel
def new_rank(tier):
    """A use later than all before."""
    tier[T_RANK] += 1
    return tier[T_RANK]


@lean_kernel
def settle_stores(tier, host, now):
    """Stores that are done by `now`: their blocks can be read, and evicted."""
    while tier[T_RING_N] > 0:
        at = tier[T_RING_AT]
        if host[at, H_RING_NS] > now:
            break
        row = host[at, H_RING_ROW]
        host[row, H_USERS] = 0
        make_evictable(tier, host, row)
        tier[T_RING_AT] = at + 1 if at + 1 < host.shape[0] else 0
        tier[T_RING_N] -= 1


@lean_kernel
def find_run(host, places, run_offset, run_start, run_end, request, first, upto):
    """How many blocks of a row from `first` on are in the pool, one after another, before `upto`.

    Returns (blocks, 1 if any of them is being written or read by a load: the lookup must be made again later)."""
    k = first
    wait = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], upto)
        if end <= k:
            continue
        before = run_end[j - 1] if j > run_offset[request] else 0
        chain = run_start[j] + k - before
        while k < end:
            row = places[PLACE_HOST, chain] - 1
            if row < 0:
                return k - first, wait
            if host[row, H_USERS] != 0:
                wait = 1
            chain += 1
            k += 1
        if k >= upto:
            break
    return k - first, wait


@lean_kernel
def use_blocks(tier, host, places, run_offset, run_start, run_end, request, first, upto, rank, users):
    """A load begins (users 1, rank of its request) or ends (-1): blocks [first, upto) of a row, all in the pool."""
    k = first
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], upto)
        if end <= k:
            continue
        before = run_end[j - 1] if j > run_offset[request] else 0
        chain = run_start[j] + k - before
        while k < end:
            row = places[PLACE_HOST, chain] - 1
            chain += 1
            k += 1
            if users > 0:
                if host[row, H_USERS] == 0:
                    keep(tier, host, row)
                host[row, H_USERS] += 1
                host[row, H_RANK] = max(host[row, H_RANK], (rank << RANK_SHIFT) - min(k, MAX_POSITION))
            else:
                host[row, H_USERS] -= 1
                if host[row, H_USERS] == 0:
                    make_evictable(tier, host, row)
        if k >= upto:
            break


@lean_kernel
def offer(tier, host, places, tracker, run_offset, run_start, run_end, request, first, upto, rank):
    """Blocks [first, upto) of a row are on the GPU and could be stored. Those that are not in the pool, and were offered
    often enough, get a place (being written). Returns how many; -1 where there is no room for all of them, and then
    nothing is stored."""
    tier[T_OFFER] += 1
    stamp = tier[T_OFFER]
    limit = tier[T_THRESHOLD]
    if limit >= 2:
        _track(tier, places, tracker, run_offset, run_start, run_end, request, first, upto)
    wanted = 0
    idle = 0  # of those already in the pool, how many could be evicted otherwise
    k = first
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], upto)
        if end <= k:
            continue
        before = run_end[j - 1] if j > run_offset[request] else 0
        chain = run_start[j] + k - before
        while k < end:
            row = places[PLACE_HOST, chain] - 1
            k += 1
            if row < 0:
                if limit >= 2 and offers_of(places, tracker, chain) < limit:
                    tier[T_BELOW] += 1
                else:
                    wanted += 1
            else:
                host[row, H_STAMP] = stamp
                if host[row, H_USERS] >= 0:
                    place = (rank << RANK_SHIFT) - min(k, MAX_POSITION)
                    if place > host[row, H_RANK]:
                        set_rank(tier, host, row, place)
                    if host[row, H_USERS] == 0:
                        idle += 1
            chain += 1
        if k >= upto:
            break
    if wanted == 0:
        return 0
    need = wanted - (tier[T_CAPACITY] - tier[T_USED])
    if need > 0:
        if need > tier[T_EVICTABLE] - idle:
            tier[T_FAILED] += 1
            return -1
        evict(tier, host, places, need, stamp)
    k = first
    for j in range(run_offset[request], run_offset[request + 1]):
        end = min(run_end[j], upto)
        if end <= k:
            continue
        before = run_end[j - 1] if j > run_offset[request] else 0
        chain = run_start[j] + k - before
        while k < end:
            k += 1
            if places[PLACE_HOST, chain] == 0 and (limit < 2 or offers_of(places, tracker, chain) >= limit):
                place_block(tier, host, places, chain, (rank << RANK_SHIFT) - min(k, MAX_POSITION), stamp)
            chain += 1
        if k >= upto:
            break
    return wanted


@lean_kernel
def place_block(tier, host, places, chain, rank, stamp):
    """A free row becomes a chain's block, being written: last in the ring, its time not known yet."""
    row = tier[T_FREE] - 1
    if row >= 0:
        tier[T_FREE] = host[row, H_CHAIN]
    else:
        row = tier[T_FRESH]
        tier[T_FRESH] = row + 1
    tier[T_USED] += 1
    tier[T_PEAK] = max(tier[T_PEAK], tier[T_USED])
    places[PLACE_HOST, chain] = row + 1
    host[row, H_CHAIN] = chain
    host[row, H_RANK] = rank
    host[row, H_USERS] = -1
    host[row, H_PLACE] = -1
    host[row, H_STAMP] = stamp
    at = (tier[T_RING_AT] + tier[T_RING_N]) % host.shape[0]
    host[at, H_RING_ROW] = row
    tier[T_RING_N] += 1


@lean_kernel
def stored_by(tier, host, count, when):
    """The last `count` blocks of the ring are written at `when` (ns)."""
    n = host.shape[0]
    at = (tier[T_RING_AT] + tier[T_RING_N] - count) % n
    for _ in range(count):
        host[at, H_RING_NS] = when
        at = at + 1 if at + 1 < n else 0


@lean_kernel
def evict(tier, host, places, count, stamp):
    """Drops the first `count` blocks of the heap that are not part of offer `stamp`; there are so many."""
    spared = 0  # linked through H_STAMP, as row + 1
    while count > 0:
        row = host[0, H_HEAP]
        keep(tier, host, row)
        if host[row, H_STAMP] == stamp:
            host[row, H_STAMP] = -1 - spared
            spared = row + 1
            continue
        places[PLACE_HOST, host[row, H_CHAIN]] = 0
        host[row, H_CHAIN] = tier[T_FREE]
        tier[T_FREE] = row + 1
        tier[T_USED] -= 1
        tier[T_EVICTED] += 1
        count -= 1
    while spared > 0:
        row = spared - 1
        spared = -1 - host[row, H_STAMP]
        host[row, H_STAMP] = stamp
        make_evictable(tier, host, row)


@lean_kernel
def refresh(tier, host, places, run_offset, run_start, run_end, request, first, upto):
    """A request ended: the blocks it used become the most recent ones, the last of them the first to go."""
    j = run_offset[request]
    last = run_offset[request + 1]
    while j < last and run_end[j] < upto:
        j += 1
    j = min(j, last - 1)
    k = upto
    while k > first and j >= run_offset[request]:
        before = run_end[j - 1] if j > run_offset[request] else 0
        k = min(k, run_end[j])
        chain = run_start[j] + k - before - 1
        while k > max(before, first):
            row = places[PLACE_HOST, chain] - 1
            if row >= 0:
                set_rank(tier, host, row, new_rank(tier) << RANK_SHIFT)
            chain -= 1
            k -= 1
        j -= 1


@lean_kernel
def offers_of(places, tracker, chain):
    """How often a chain was offered, as far as the tracker remembers."""
    at = places[PLACE_TRACKED, chain]
    return tracker[at, K_COUNT] if at > 0 else 0


@lean_kernel
def _unlink(tracker, at):
    tracker[tracker[at, K_PREV], K_NEXT] = tracker[at, K_NEXT]
    tracker[tracker[at, K_NEXT], K_PREV] = tracker[at, K_PREV]


@lean_kernel
def _append(tracker, at):
    last = tracker[0, K_PREV]
    tracker[at, K_PREV] = last
    tracker[at, K_NEXT] = 0
    tracker[last, K_NEXT] = at
    tracker[0, K_PREV] = at


@lean_kernel
def _track(tier, places, tracker, run_offset, run_start, run_end, request, first, upto):
    """Counts an offer of each block. Where the tracker is full, the one offered longest ago that is not part of this offer
    is forgotten; where there is none, the new one is not counted."""
    known = 0
    for again in range(2):
        k = first
        for j in range(run_offset[request], run_offset[request + 1]):
            end = min(run_end[j], upto)
            if end <= k:
                continue
            before = run_end[j - 1] if j > run_offset[request] else 0
            chain = run_start[j] + k - before
            while k < end:
                at = places[PLACE_TRACKED, chain]
                if again == 0:
                    if at > 0:
                        _unlink(tracker, at)
                        _append(tracker, at)
                        tracker[at, K_COUNT] = -1 - tracker[at, K_COUNT]  # seen in this offer
                        known += 1
                elif at > 0:
                    tracker[at, K_COUNT] = -tracker[at, K_COUNT]
                else:
                    if tier[T_TRACKED] < tier[T_TRACKER_MAX]:
                        tier[T_TRACKED] += 1
                        at = tier[T_TRACKED]
                        known += 1
                    elif known < tier[T_TRACKED]:
                        at = tracker[0, K_NEXT]
                        places[PLACE_TRACKED, tracker[at, K_CHAIN]] = 0
                        _unlink(tracker, at)
                        known += 1
                    else:
                        at = 0
                    if at > 0:
                        _append(tracker, at)
                        tracker[at, K_COUNT] = 1
                        tracker[at, K_CHAIN] = chain
                        places[PLACE_TRACKED, chain] = at
                chain += 1
                k += 1
            if k >= upto:
                break
