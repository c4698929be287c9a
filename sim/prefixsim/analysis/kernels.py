# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled walks over segments (see `segments`). Twins: `analysis.reference`."""

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

NIL = -1


@kernel
def _creator(created_end, element):
    """Row that created an element: the first with created_end > element."""
    low, high = 0, created_end.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if created_end[middle] > element:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def visits(run_offset, run_start, run_end, created_end, element_end):
    """Visits of all rows: (offset int64 (n+1,), segment int64 (V,), end depth in tokens int64 (V,)). A run is cut where the
    creator of its elements changes."""
    n = run_offset.shape[0] - 1
    offset = np.zeros(n + 1, np.int64)
    room = run_start.shape[0] + n + 1
    segment = np.empty(room, np.int64)
    end = np.empty(room, np.int64)
    v = 0
    for r in range(n):
        before = 0
        for j in range(run_offset[r], run_offset[r + 1]):
            stop = run_start[j] + run_end[j] - before
            before = run_end[j]
            e = run_start[j]
            c = r if r > 0 and e >= created_end[r - 1] else _creator(created_end, e)
            while True:
                e = min(stop, created_end[c])
                if v == room:
                    room *= 2
                    bigger = np.empty(room, np.int64)
                    bigger[:v] = segment
                    segment = bigger
                    bigger2 = np.empty(room, np.int64)
                    bigger2[:v] = end
                    end = bigger2
                segment[v] = c
                end[v] = element_end[e - 1]
                v += 1
                if e >= stop:
                    break
                c += 1
                while created_end[c] <= e:
                    c += 1
        offset[r + 1] = v
    return offset, segment[:v].copy(), end[:v].copy()


@kernel
def shared_prefix(visit_offset, visit_segment, visit_end, prompt, inserted, order):
    """int64 (n,): longest prefix of each prompt inserted by an earlier row of `order`. O(visits)."""
    n = prompt.shape[0]
    known = np.zeros(n, np.int64)  # depth known on each segment; 0: nothing
    out = np.zeros(n, np.int64)
    for i in range(order.shape[0]):
        r = order[i]
        begin = 0
        found = 0
        whole = True
        for v in range(visit_offset[r], visit_offset[r + 1]):
            s, end = visit_segment[v], visit_end[v]
            if whole:
                found = max(begin, min(end, known[s]))
                whole = known[s] >= end
            if begin >= inserted[r]:
                break
            known[s] = max(known[s], min(end, inserted[r]))
            begin = end
        out[r] = min(found, prompt[r])
    return out


@kernel
def known_prefix(visit_offset, visit_segment, visit_end, prompt, inserted, event, owner):
    """int64 (n,): at each lookup event (r) the longest prefix of r's prompt inserted by rows of another owner; a row inserts
    itself at its arrival event (n + r) or after its lookup, whichever is first. Each segment keeps its deepest owner and the
    depth of the deepest one besides it. owner int64 (n,): the row itself, where every other row counts. O(visits)."""
    n = prompt.shape[0]
    first = np.zeros(n, np.int64)
    first_owner = np.full(n, NIL, np.int64)
    second = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    out = np.zeros(n, np.int64)
    for i in range(event.shape[0]):
        looks = event[i] < n
        r = event[i] if looks else event[i] - n
        if looks:
            begin = 0
            found = 0
            for v in range(visit_offset[r], visit_offset[r + 1]):
                s, end = visit_segment[v], visit_end[v]
                known = second[s] if first_owner[s] == owner[r] else first[s]
                found = max(begin, min(end, known))
                if known < end:
                    break
                begin = end
            out[r] = min(found, prompt[r])
        if done[r]:
            continue
        done[r] = True
        begin = 0
        for v in range(visit_offset[r], visit_offset[r + 1]):
            if begin >= inserted[r]:
                break
            s, end = visit_segment[v], visit_end[v]
            depth = min(end, inserted[r])
            if first_owner[s] == owner[r]:
                first[s] = max(first[s], depth)
            elif depth > first[s]:
                second[s] = first[s]
                first[s] = depth
                first_owner[s] = owner[r]
            elif depth > second[s]:
                second[s] = depth
            begin = end
    return out


@kernel
def committed_prefix(run_offset, run_start, run_end, commit_ns, at_ns):
    """int64 (n,): full blocks of each row committed at or before `at_ns` (-1: not asked, 0 blocks). Commit times do not
    decrease along a row (a block is computed with or after the one before it), so each run needs a binary search only where
    it stops."""
    n = at_ns.shape[0]
    out = np.zeros(n, np.int64)
    for r in range(n):
        if at_ns[r] < 0:
            continue
        before = 0
        for j in range(run_offset[r], run_offset[r + 1]):
            first = run_start[j]
            low, high = 0, run_end[j] - before
            while low < high:  # number of blocks of this run committed by then
                middle = (low + high) // 2
                if commit_ns[first + middle] <= at_ns[r]:
                    low = middle + 1
                else:
                    high = middle
            out[r] = before + low
            if before + low < run_end[j]:
                break
            before = run_end[j]
    return out
