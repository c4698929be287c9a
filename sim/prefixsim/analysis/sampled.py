# mypy: disable-error-code="no-untyped-call"
"""LRU curves from a sample of the chain ids (SHARDS: spatial sampling), with a stated error. For traces too long to be exact.

A chain id is in the sample when its hash is; all its references are then kept and all others dropped. Stack positions within
the sample, divided by the rate, estimate those of the whole. What is estimated is not the hits but what a finite capacity
takes from the ceiling, which is exact: few blocks (a shared system prompt) may carry most hits, and whether they fall into the
sample would decide the hit rate, but a cache of any useful size does not evict them.
The error is measured, not assumed: the sample is made of `PARTS` disjoint sub-samples, each estimates the curve by itself,
and their scatter gives the standard error of the mean. Rows without a sampled id cost nothing but two binary searches a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefixsim.analysis.ceilings import ceilings, require_content
from prefixsim.analysis.curve_kernels import sampled_positions
from prefixsim.analysis.segments import build_segments, inserted_tokens, lookup_order
from prefixsim.workload.intern import ChainIndex, NamespaceRule, build_chains, build_trie
from prefixsim.workload.table import I64, Workload

PARTS = 8


@dataclass(frozen=True, slots=True)
class SampledCurve:
    """Estimated LRU hit tokens. capacity int64 (m,) blocks; hit_tokens float64 (m,); standard_error_tokens float64 (m,), of
    the mean over disjoint sub-samples; sampled_ids of n_chains, sampled_lookups of all block lookups."""

    granularity: int
    prompt_tokens: int
    rate: float
    capacity: I64
    hit_tokens: npt.NDArray[np.float64]
    standard_error_tokens: npt.NDArray[np.float64]
    sampled_ids: int
    n_chains: int
    sampled_lookups: int


def sampled_curve(
    workload: Workload,
    granularity: int,
    capacities: Sequence[int] | I64,
    *,
    rate: float,
    seed: int = 1,
    reuse_outputs: bool = True,
    rule: NamespaceRule = "vllm",
) -> SampledCurve:
    """Estimates the LRU curve at `capacities` (blocks) from a share `rate` (0 < rate <= 1) of the chain ids. Raises
    NotModelledError for lengths-only traces, ValueError for a rate outside (0, 1]."""
    if not 0 < rate <= 1:
        raise ValueError(f"a sampling rate is above 0 and at most 1, found {rate}")
    require_content(workload, "a curve")
    trie = build_trie(workload, rule)
    chains, segments = build_chains(trie, granularity), build_segments(trie)
    order = lookup_order(workload)
    asked = (workload.prompt_tokens // granularity)[order]
    stop = (inserted_tokens(workload, reuse_outputs) // granularity)[order]
    capacity = np.asarray(capacities, dtype=np.int64)
    ids = _sampled_ids(chains.n_chains, rate, seed)
    part = np.arange(ids.shape[0]) % PARTS  # ids were picked by hash, so position modulo PARTS is a random split
    rows = _sampled_rows(chains, order, asked, stop, ids)
    found = ceilings(workload, (granularity,), reuse_outputs=reuse_outputs, rule=rule, segments=segments)
    ceiling = int(found.hit_tokens(granularity)[order].sum())
    parts = [_evicted(rows, ids.shape[0], part == p, capacity, rate / PARTS) for p in range(PARTS)]
    evicted = _evicted(rows, ids.shape[0], np.ones(ids.shape[0], dtype=bool), capacity, rate)
    error = np.full(capacity.shape[0], np.nan)
    if ids.shape[0] >= PARTS:
        error = np.std(parts, axis=0, ddof=1) / np.sqrt(PARTS) * granularity
    return SampledCurve(
        granularity=granularity,
        prompt_tokens=int(workload.prompt_tokens[order].sum()),
        rate=rate,
        capacity=capacity,
        hit_tokens=np.clip(ceiling - evicted * granularity, 0, ceiling),
        standard_error_tokens=error,
        sampled_ids=int(ids.shape[0]),
        n_chains=chains.n_chains,
        sampled_lookups=int(rows[2].sum()),
    )


def _sampled_ids(n_chains: int, rate: float, seed: int) -> I64:
    """Ascending ids in the sample, found without touching the others: gaps between sampled ids are geometric."""
    if rate >= 1:
        return np.arange(n_chains, dtype=np.int64)
    rng = np.random.Generator(np.random.PCG64(seed))
    picked: list[I64] = []
    at = -1
    while at < n_chains:
        step = rng.geometric(rate, size=max(1024, int((n_chains - at) * rate * 1.1))).astype(np.int64)
        here = at + np.cumsum(step)
        picked.append(here)
        at = int(here[-1])
    ids = np.concatenate(picked)
    return ids[ids < n_chains]


def _sampled_rows(chains: ChainIndex, order: I64, asked: I64, stop: I64, ids: I64) -> tuple[I64, I64, I64]:
    """(offset, index into ids, how many of each row are looked up): rows of sampled blocks in path order, empty rows left
    out."""
    first_run, last_run = chains.run_offset[order], chains.run_offset[order + 1]
    count = last_run - first_run
    row = np.repeat(np.arange(order.shape[0]), count)
    run = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first_run, count)
    before = np.where(run == np.repeat(first_run, count), 0, chains.run_end[np.maximum(run - 1, 0)])
    start = chains.run_start[run]
    length = chains.run_end[run] - before

    def ranks(upto: I64) -> tuple[I64, I64]:
        taken = np.clip(upto[row] - before, 0, length)
        return np.searchsorted(ids, start), np.searchsorted(ids, start + taken)

    low, high = ranks(stop)
    _, looked = ranks(asked)
    size = high - low
    index = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)
    per_row = np.zeros(order.shape[0], dtype=np.int64)
    asked_per_row = np.zeros(order.shape[0], dtype=np.int64)
    np.add.at(per_row, row, size)
    np.add.at(asked_per_row, row, looked - low)
    keep = per_row > 0
    offset = np.zeros(int(keep.sum()) + 1, dtype=np.int64)
    np.cumsum(per_row[keep], out=offset[1:])
    return offset, index, asked_per_row[keep]


def _evicted(
    rows: tuple[I64, I64, I64], n_ids: int, chosen: npt.NDArray[np.bool_], capacity: I64, rate: float
) -> npt.NDArray[np.float64]:
    """Lookups of blocks seen before that a cache of each capacity no longer holds, of the whole, from the chosen ids."""
    offset, index, asked = rows
    keep = chosen[index]
    cumulative = np.concatenate([[0], np.cumsum(keep)])
    looked = cumulative[offset[:-1] + asked] - cumulative[offset[:-1]]
    positions = sampled_positions(cumulative[offset], index[keep], looked, n_ids)[:, 1]
    positions.sort()
    # A block at position d of the sample is at about (d - 1) / rate + 1 of the whole
    held = np.searchsorted((positions - 1) / rate + 1, capacity, side="right")
    evicted: npt.NDArray[np.float64] = (positions.shape[0] - held) / rate
    return evicted
