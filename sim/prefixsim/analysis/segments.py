# mypy: disable-error-code="no-untyped-call"
"""Rows as walks over *segments*: what makes every analysis cost O(branches) instead of O(tokens) or O(blocks).

The elements that a row adds to the trie form one unbranched path, its *segment*. So each row is a short list of visits
`(segment, depth in tokens at which the row leaves it)`, and a row enters a segment only at its beginning. "How far is this
segment known / cached / last used" is then one number or a short list of intervals per segment, for any granularity at once:
block k of a row is the full block that ends at depth (k+1)*g, and two rows share it exactly when they share that depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.kernels import known_prefix, shared_prefix, visits
from prefixsim.workload.intern import Trie
from prefixsim.workload.table import I64, Workload


@dataclass(frozen=True, slots=True)
class Segments:
    """visit_offset int64 (n+1,): row r's visits are [visit_offset[r], visit_offset[r+1]); visit_segment int64 (V,): the row
    that created the segment; visit_end int64 (V,): depth in tokens at which the visit ends (the next one begins there)."""

    visit_offset: I64
    visit_segment: I64
    visit_end: I64


def build_segments(trie: Trie) -> Segments:
    """Segments of an interned workload. O(runs x log rows)."""
    offset, segment, end = visits(trie.run_offset, trie.run_start, trie.run_end, trie.created_end, trie.element_end)
    return Segments(offset, segment, end)


def outputs_known(workload: Workload) -> np.ndarray:
    """bool (n,): the content of the output is known (it has atoms)."""
    return (workload.atom_offset[1:] - workload.atom_offset[:-1]) > workload.prompt_atoms


def inserted_tokens(workload: Workload, reuse_outputs: bool = True) -> I64:
    """int64 (n,): tokens of each sequence whose KV can be reused: prompt + outputs[:-1] (the last output token has no KV,
    except of requests that end by a stop token: an engine that schedules ahead has computed it)
    where the output's content is known and `reuse_outputs`, else the prompt."""
    extra = np.maximum(workload.output_tokens - np.where(workload.stop, 0, 1), 0)
    if not reuse_outputs:
        return workload.prompt_tokens
    return workload.prompt_tokens + np.where(outputs_known(workload), extra, 0)


def lookup_order(workload: Workload) -> I64:
    """int64 (n,): request indices in arrival order, ties in file order. A request that awaits another (`after`) counts as
    arriving at that one's arrival plus its own delay, since service times are no property of a workload."""
    arrival = workload.arrival_ns
    if (workload.after >= 0).any():
        arrival = arrival.copy()
        waiting = np.flatnonzero(workload.after >= 0)
        for r in waiting:  # predecessors have smaller indices, so one pass settles chains
            arrival[r] = arrival[workload.after[r]] + workload.delay_ns[r]
    if not workload.step.any() and bool((arrival[1:] >= arrival[:-1]).all()):
        return np.arange(workload.n, dtype=np.int64)
    return np.lexsort((workload.step, arrival)).astype(np.int64)


def shared_tokens(segments: Segments, prompt: I64, inserted: I64, order: I64) -> I64:
    """int64 (n,): longest prefix of each prompt that an earlier row (in `order`) has inserted."""
    return shared_prefix(segments.visit_offset, segments.visit_segment, segments.visit_end, prompt, inserted, order)


def known_tokens(
    segments: Segments, prompt: I64, inserted: I64, arrived_ns: I64, lookup_ns: I64, ties_known: bool = False
) -> I64:
    """int64 (n,): longest prefix of each prompt known to *another* request that arrived before this one's lookup, or was
    itself looked up before it (same instant: smaller index first). Times -1: never. `ties_known`: every request that
    arrives at the very instant of a lookup counts as known to it. Rows never looked up get 0."""
    n = prompt.shape[0]
    looked, came = np.flatnonzero(lookup_ns >= 0), np.flatnonzero(arrived_ns >= 0)
    time = np.concatenate([lookup_ns[looked], arrived_ns[came]])
    kind = np.concatenate([np.full(looked.shape[0], int(ties_known)), np.full(came.shape[0], int(not ties_known))])
    row = np.concatenate([looked, came])
    by = np.lexsort((row, kind, time))
    event = np.where(kind[by] == int(ties_known), row[by], row[by] + n)  # a lookup is r, an arrival n + r
    walk = (segments.visit_offset, segments.visit_segment, segments.visit_end)
    return known_prefix(*walk, prompt, inserted, event, np.arange(n))


def shared_with_others(segments: Segments, prompt: I64, inserted: I64, owner: I64) -> I64:
    """int64 (n,): longest prefix of each prompt that any row of another owner has, earlier or later. owner int64 (n,) >= 0."""
    n = prompt.shape[0]
    walk = (segments.visit_offset, segments.visit_segment, segments.visit_end)
    return known_prefix(*walk, prompt, inserted, np.concatenate([np.arange(n) + n, np.arange(n)]), owner)
