"""Compiled copies of ranges. Twin: `reference.copy_ranges`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel


@kernel
def copy_ranges(flat, start, count, out):
    """out = the ranges [start[i], start[i] + count[i]) of flat, one after another."""
    k = 0
    for i in range(start.shape[0]):
        a = start[i]
        for j in range(count[i]):
            out[k + j] = flat[a + j]
        k += count[i]


@kernel
def check_chained(ids, offset, top):
    """Counts uses of an id behind another id than at its first use, immediate repetitions, and distinct ids."""
    before = np.full(top, -2, np.int64)
    moved = 0
    repeated = 0
    distinct = 0
    for r in range(offset.shape[0] - 1):
        previous = np.int64(-1)
        for a in range(offset[r], offset[r + 1]):
            i = np.int64(ids[a])
            if before[i] == -2:
                before[i] = previous
                distinct += 1
            elif before[i] != previous:
                moved += 1
            if i == previous:
                repeated += 1
            previous = i
    return moved, repeated, distinct


@kernel
def nominal_arrivals(after, delay, arrival, given):
    """Fills arrival where it isn't given: the awaited request's + delay. Returns a request on a cycle, or -1."""
    n = after.shape[0]
    state = np.zeros(n, np.int8)  # 0 new, 1 on the path, 2 done
    path = np.empty(n, np.int64)
    top = np.int64(9_000_000_000_000_000_000)
    for first in range(n):
        depth = 0
        r = first
        while r >= 0 and state[r] == 0:
            state[r] = 1
            path[depth] = r
            depth += 1
            r = after[r]
        if r >= 0 and state[r] == 1:
            return r
        while depth > 0:
            depth -= 1
            r = path[depth]
            state[r] = 2
            if after[r] >= 0 and given[r] == 0:
                base = arrival[after[r]]
                arrival[r] = top if base > top - delay[r] else base + delay[r]
    return -1


@kernel
def parents_first_order(after):
    """Depth-first numbering that keeps file order where it can: a request is put out when its awaited one has been."""
    n = after.shape[0]
    out = np.empty(n, np.int64)
    done = np.zeros(n, np.int8)
    path = np.empty(n, np.int64)
    k = 0
    for first in range(n):
        depth = 0
        r = first
        while r >= 0 and done[r] == 0:
            done[r] = 1
            path[depth] = r
            depth += 1
            r = after[r]
        while depth > 0:
            depth -= 1
            out[k] = path[depth]
            k += 1
    return out
