"""Compiled choice of whose prefix is taken over. Twin: `workload.reference.choose_sources`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

LOOK_AROUND = 64


@kernel
def put_feasible_first(order, length, prompts, shared):
    """Changes `order` in place: where a request asks for more than any earlier sequence has, the next one that does not
    takes its place."""
    longest = 0
    n = order.shape[0]
    later = 0
    for r in range(n):
        if min(shared[order[r]], prompts[order[r]]) > longest:
            later = max(later, r + 1)
            while later < n and min(shared[order[later]], prompts[order[later]]) > longest:
                later += 1
            if later == n:
                later = 0
            else:
                keep = order[r]
                order[r] = order[later]
                order[later] = keep
        if length[order[r]] - 1 > longest:
            longest = length[order[r]] - 1
            later = 0


@kernel
def choose_sources(length, prompts, shared, back, source, taken):
    """Whose prefix each request takes: of the earlier requests looked at (around r - back[r], nearest first, up to
    `LOOK_AROUND` away) the first that is long enough (its sequence less its last token) and whose last use of that prefix is
    its own; else the first that is long enough; else the latest one known to be long enough by powers of two; else
    the one before, or the longest of all. Fills source and taken (tokens)."""
    latest = np.full(64, -1, np.int64)  # latest request whose usable length is at least 2^k
    champion = np.int64(0)  # the longest sequence so far
    claimed = np.zeros(length.shape[0], np.int64)  # most tokens taken from a request so far
    for r in range(length.shape[0]):
        source[r] = -1
        taken[r] = 0
        want = min(shared[r], prompts[r])
        if r > 0:
            if length[r - 1] > length[champion]:
                champion = r - 1
            k = 0
            while k < 62 and (np.int64(1) << k) <= length[r - 1] - 1:
                latest[k] = r - 1
                k += 1
        if r == 0 or want == 0:
            continue
        middle = max(0, r - max(1, back[r]))
        best = np.int64(-1)
        longest = r - 1
        for k in range(2 * LOOK_AROUND):
            s = middle + ((k + 1) // 2 if k % 2 == 1 else -(k // 2))
            if s < 0 or s >= r:
                continue
            if length[s] > length[longest]:
                longest = s
            if length[s] - 1 >= want:
                if taken[s] < want and claimed[s] < want:
                    best = s
                    break
                if best < 0:
                    best = s
        if best < 0 and length[r - 1] - 1 < want:
            k = 0
            while (np.int64(1) << k) < want:
                k += 1
            best = latest[k]
        if best < 0:
            best = champion if length[longest] - 1 < want else longest
        source[r] = best
        taken[r] = min(want, length[best] - 1)
        claimed[best] = max(claimed[best], taken[r])


@kernel
def copy_prefixes(first, fresh, source, taken, prompts, outputs, offset, ids, tokens, prompt_atoms):
    """Rows of atoms from row `first` on: the prefix of the source's row, a piece of its own, the output; as long as there is
    room. Returns (next row, next fresh id)."""
    for r in range(first, source.shape[0]):
        k = offset[r]
        s = source[r]
        room = 2 + (offset[s + 1] - offset[s] if s >= 0 else 0)
        if k + room > ids.shape[0]:
            return r, fresh
        rest = taken[r]
        if s >= 0:
            a = offset[s]
            while rest > 0:
                t = min(rest, tokens[a])
                ids[k] = ids[a]
                tokens[k] = t
                rest -= t
                k += 1
                a += 1
        own = prompts[r] - taken[r]
        if own > 0:
            ids[k] = fresh
            tokens[k] = own
            fresh += 1
            k += 1
        prompt_atoms[r] = k - offset[r]
        ids[k] = fresh
        tokens[k] = outputs[r]
        fresh += 1
        offset[r + 1] = k + 1
    return source.shape[0], fresh
