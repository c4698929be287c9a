"""Compiled choice of whose prefix is taken over. Twin: `workload.reference.choose_sources`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from prefixsim.jit import kernel

LOOK_AROUND = 64


@kernel
def choose_sources(length, prompts, shared, back, source, taken):
    """For each request r the earlier request nearest to r - back[r] (within `LOOK_AROUND`) whose sequence, less its last
    token, is at least shared[r] long; else the longest of those looked at. Fills source and taken (tokens)."""
    for r in range(length.shape[0]):
        source[r] = -1
        taken[r] = 0
        want = min(shared[r], prompts[r])
        if r == 0 or want == 0:
            continue
        middle = max(0, r - max(1, back[r]))
        best = -1
        best_length = 0
        for k in range(2 * LOOK_AROUND):
            s = middle + ((k + 1) // 2 if k % 2 == 1 else -(k // 2))
            if s < 0 or s >= r:
                continue
            usable = length[s] - 1  # the last token of an output never has KV
            if usable > best_length:
                best = s
                best_length = usable
            if usable >= want:
                best = s
                break
        source[r] = best
        taken[r] = min(want, length[best] - 1)


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
