"""Checks and decisions that readers share: lengths, times, block sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.scenario.workload import Trace
from prefixsim.units import MAX_TIME_S
from prefixsim.workload.numbering import numbering
from prefixsim.workload.rows import MAX_TOKENS, BadRows, RowTable
from prefixsim.workload.table import I64, Decision

UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_COMMON_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 8, 4, 1)


def whole(
    table: RowTable, key: str, bad: BadRows, keep: npt.NDArray[np.bool_], low: int = 0, high: int = MAX_TOKENS
) -> I64:
    """A column as int64; rows where it isn't a whole number in [low, high] go to `bad` and out of `keep`. Absent: 0."""
    value = table.number[key]
    has = table.has[key]
    wrong = has & ~((value >= low) & (value <= high) & (np.floor(value) == value))
    for r in np.flatnonzero(wrong & keep).tolist():
        bad.add(f"expected a whole number from {low} to {high:,}, found {value[r]:.15g}", int(table.line[r]), key)
    keep &= ~wrong
    return np.where(has & ~wrong, value, 0).astype(np.int64)


def times_ns(
    value: npt.NDArray[np.float64],
    unit: str,
    lines: I64,
    bad: BadRows,
    keep: npt.NDArray[np.bool_],
    key: str,
    rebase: bool = False,
) -> I64:
    """Times in a unit to int64 ns; rows outside what can be held go to `bad`. rebase: the earliest becomes 0 (exactly)."""
    scale = UNIT_NS[unit]
    base = float(np.floor(value[keep].min())) if rebase and keep.any() else 0.0
    shifted = value - base
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(shifted) <= MAX_TIME_S * (1_000_000_000 / scale)) | (value < 0)
    for r in np.flatnonzero(wrong & keep).tolist():
        bad.add(f"not a time from 0 on: {value[r]:.17g} {unit}", int(lines[r]), key)
    keep &= ~wrong
    return np.rint(np.where(wrong, 0.0, shifted) * scale).astype(np.int64)


def time_decision(arrival_ns: I64, unit: str, options: Trace) -> Decision:
    """Which unit was taken, with span and rate as evidence."""
    n = arrival_ns.shape[0]
    span = (int(arrival_ns.max()) - int(arrival_ns.min())) / 1e9 if n else 0.0
    rate = f", {n / span:,.2f} requests/s" if span else ""
    evidence = f"{n:,} rows span {span:,.3f} s in this unit{rate}"
    if n > 1 and span and not 1e-4 < n / span < 1e4:
        evidence += " (an unlikely rate: is the unit right?)"
    return Decision("time_unit", unit, evidence, options.time_unit is not None)


@dataclass(frozen=True, slots=True)
class BlockRule:
    """Tokens of an id and the tail rule."""

    block: int
    tail: str

    def ids(self, tokens: I64) -> I64:
        """Ids a prompt of so many tokens has."""
        return -(-tokens // self.block) if self.tail == "ceil" else tokens // self.block


def feasible(tokens: I64, ids: I64, tail: str) -> tuple[float, float]:
    """Smallest and largest block size for which every row has ids == ceil (or floor) of tokens / block."""
    some = tokens > 0
    t, k = tokens[some], ids[some]
    if tail == "ceil":
        if bool((k == 0).any()):
            return (1, 0)
        low = int((-(-t // k)).max()) if t.shape[0] else 1
        many = k > 1
        high = int((-(-t[many] // (k[many] - 1)) - 1).min()) if many.any() else math.inf
        return (low, high)
    low = int((t // (k + 1) + 1).max()) if t.shape[0] else 1
    many = k > 0
    high = int((t[many] // k[many]).min()) if many.any() else math.inf
    return (low, high)


def most_fitting(tokens: I64, ids: I64, tail: str) -> int | None:
    """The one block size for which most rows have ids == ceil (or floor) of tokens / block; None if several do."""
    some = (tokens > 0) & (ids > 0)
    t, k = tokens[some], ids[some]
    top = np.int64(1 << 40)
    if tail == "ceil":
        low, high = -(-t // k), np.where(k > 1, -(-t // np.maximum(k - 1, 1)) - 1, top)
    else:
        low, high = t // (k + 1) + 1, t // k
    good = low <= high
    if not good.any():
        return None
    places = np.concatenate([low[good], high[good] + 1])
    change = np.concatenate([np.ones(int(good.sum()), np.int64), -np.ones(int(good.sum()), np.int64)])
    order = np.lexsort((-change, places))
    places, fits = places[order], np.cumsum(change[order])
    at = int(np.argmax(fits))
    alone = at + 1 < places.shape[0] and places[at + 1] == places[at] + 1 and int((fits == fits[at]).sum()) == 1
    return int(places[at]) if alone and places[at] <= 1 << 20 else None


def decide_blocks(
    tokens: I64, ids: I64, options: Trace, default: int, tail: str
) -> tuple[BlockRule, tuple[Decision, ...]]:
    """Block size and tail rule: the user's; else the format's if all rows fit it; else what fits all rows (or most)."""
    n = tokens.shape[0]
    tails = [options.tail] if options.tail else [tail, "floor" if tail == "ceil" else "ceil"]
    span = {t: feasible(tokens, ids, t) for t in tails}

    def fits(rule: BlockRule) -> int:
        return int((rule.ids(tokens) == ids).sum())

    if options.block_size:
        rule = max((BlockRule(options.block_size, t) for t in tails), key=lambda r: (fits(r), r.tail == tail))
    else:
        candidates = [BlockRule(default, tails[0])]
        for t in tails:
            low, high = span[t]
            if low <= high:
                candidates += [BlockRule(b, t) for b in _COMMON_BLOCKS if low <= b <= high]
                if low == high:
                    candidates.append(BlockRule(int(low), t))
        candidates += [BlockRule(b, t) for t in tails for b in _COMMON_BLOCKS]
        candidates += [BlockRule(b, t) for t in tails if (b := most_fitting(tokens, ids, t)) is not None]
        best = max(fits(r) for r in candidates)
        rule = next(r for r in candidates if fits(r) == best)
    good = fits(rule)
    low, high = span[rule.tail]
    possible = f"; sizes that fit all rows: {low:g} to {high:g}" if low <= high else "; no size fits all rows"
    formula = f"{rule.tail}(input_length / {rule.block})"
    evidence = f"{good:,} of {n:,} rows have {formula} ids{possible}"
    return rule, (
        Decision("block_size", str(rule.block), evidence, options.block_size is not None),
        Decision("tail", rule.tail, _tail_words(tokens, rule), options.tail is not None),
    )


def _tail_words(tokens: I64, rule: BlockRule) -> str:
    partial = int((tokens % rule.block != 0).sum())
    what = "have an id for it" if rule.tail == "ceil" else "have none; those tokens are unique"
    return f"{partial:,} of {tokens.shape[0]:,} prompts end in a partial block and {what}"


def dense_ids(values: Any) -> npt.NDArray[np.int32]:
    """Opaque 64-bit ids to int32 >= 0: as they are where they are small, else numbered by first appearance. Under a `Numbering` in
    force its ids, equal for equal values in all workloads read under it."""
    if values.shape[0] == 0:
        return np.zeros(0, np.int32)
    if (common := numbering()) is not None:
        return common.ints(values)
    if values.dtype == np.int32:
        low, high = int(values.min()), int(values.max())
    else:
        low, high = int(values.min()), int(values.max())
    if low >= 0 and high < min(1 << 31, 4 * values.shape[0] + 65_536):
        return np.ascontiguousarray(values, dtype=np.int32)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(first.shape[0], np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(first.shape[0], dtype=np.int32)
    return rank[inverse.reshape(-1)]
