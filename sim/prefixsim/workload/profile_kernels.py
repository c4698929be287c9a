"""Compiled reuse profile of a trie. Twin: `workload.reference.reuse_profile`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel


@kernel
def reuse_profile(
    run_offset, run_start, run_end, element_end, element_tokens, prompt_tokens, output_tokens, shared, back
):
    """For each request: tokens of its prompt that earlier requests have inserted (prompt and all but the last output token),
    and how many requests ago the last of them was used (0: nothing shared). Infinite cache, row order."""
    n_elements = element_end.shape[0]
    whole = np.full(n_elements, -1, np.int64)  # last request that inserted all of the element
    part = np.zeros(n_elements, np.int32)  # most tokens of it inserted by requests that end inside
    part_by = np.full(n_elements, -1, np.int64)
    for r in range(prompt_tokens.shape[0]):
        known = np.int64(0)
        by = np.int64(-1)
        open_ = True
        end = prompt_tokens[r] + output_tokens[r] - 1
        done = 0
        for j in range(run_offset[r], run_offset[r + 1]):
            for e in range(run_start[j], run_start[j] + run_end[j] - done):
                depth = element_end[e] - element_tokens[e]
                if open_:
                    if whole[e] >= 0:
                        known = element_end[e]
                        by = whole[e]
                    else:
                        if part[e] > 0:
                            known = depth + part[e]
                            by = part_by[e]
                        open_ = False
                    if known >= prompt_tokens[r]:
                        known = prompt_tokens[r]
                        open_ = False
                if element_end[e] <= end:
                    whole[e] = r
                elif end > depth and end - depth >= part[e]:
                    part[e] = end - depth
                    part_by[e] = r
            done = run_end[j]
        shared[r] = known
        back[r] = r - by if known > 0 else 0
