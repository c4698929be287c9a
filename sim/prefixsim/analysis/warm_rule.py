"""Which requests of a workload are warm-up: a mask, and the words for it.

All engines of a run leave the same requests out, so that they stay comparable: a request is warm-up if it is for any of them.
The automatic rule is MSER-5 on the hit rate. Requests in order of first admission are put in batches of five; the rate of a
batch is cached over prompt tokens. Cutting the first d of b batches leaves a mean whose estimated squared standard error is
    sum of (rate - mean of the rest)^2 over the rest / (b - d)^2,
and the d that makes it least is taken. If that is beyond the first half, the rate has not settled and nothing is cut.
(K. P. White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_RELEASED_NS,
    REQ_STATUS,
    STATUS_REJECTED,
)
from prefixsim.units import NS_PER_S
from prefixsim.workload.table import BOOL, I64

BATCH = 5
LEAST_BATCHES = 20
"""Fewer than 100 requests: no automatic rule can tell a trend from chance."""


@dataclass(frozen=True, slots=True)
class WarmPart:
    """excluded bool (n,). rule: what was asked for. words: what came of it, for each engine where they differ."""

    excluded: BOOL
    rule: str
    words: tuple[str, ...]


def warm_part(rule: object, rows: Sequence[tuple[str, I64]], prompt_tokens: I64) -> WarmPart:
    """The warm-up of a workload. rule: "auto", or with `requests` or `seconds`. rows: (engine, request table int64 (n, 16))
    of each engine, times counted from the workload's start. Raises ScenarioError where nothing would be left."""
    n = prompt_tokens.shape[0]
    excluded = np.zeros(n, dtype=np.bool_)
    words: list[str] = []
    if rule == "auto":
        name = "auto: MSER-5 on the hit rate"
        for engine, table in rows:
            mine, text = settled(table, prompt_tokens)
            excluded |= mine
            words.append(f"{engine}: {text}")
    elif getattr(rule, "requests", None) is not None:
        count = int(rule.requests)  # type: ignore[attr-defined]
        excluded[:count] = True
        name = f"the first {count:,} requests"
    else:
        seconds = float(rule.seconds)  # type: ignore[attr-defined]
        name = f"requests that arrive before {seconds:g} s"
        for _, table in rows:
            came = table[:, REQ_RELEASED_NS]
            excluded |= (came >= 0) & (came < seconds * NS_PER_S)
    if n and excluded.all():
        raise ScenarioError(f"warm_up ({name}) leaves none of the {n:,} requests to count")
    return WarmPart(excluded, name, tuple(words))


def settled(rows: I64, prompt_tokens: I64) -> tuple[BOOL, str]:
    """(bool (n,): requests before the hit rate has settled, by MSER-5; what was found)."""
    n = rows.shape[0]
    none = np.zeros(n, dtype=np.bool_)
    inside = np.flatnonzero((rows[:, REQ_ADMITTED_NS] >= 0) & (rows[:, REQ_STATUS] != STATUS_REJECTED))
    order = inside[np.lexsort((inside, rows[inside, REQ_ADMITTED_NS]))]
    batches = order.shape[0] // BATCH
    if batches < LEAST_BATCHES:
        return none, (
            f"{order.shape[0]:,} requests are too few to tell (at least {BATCH * LEAST_BATCHES}): nothing is left out"
        )
    cut = mser(batch_rates(rows[order, REQ_CACHED_TOKENS], prompt_tokens[order]))
    if cut > batches // 2:
        return none, (
            "the hit rate has not settled within the first half of the requests: nothing is left out; a longer workload is "
            "needed"
        )
    if cut == 0:
        return none, "the hit rate is settled from the start: nothing is left out"
    none[order[: cut * BATCH]] = True
    return none, f"the hit rate has settled after {cut * BATCH:,} of {order.shape[0]:,} requests"


def batch_rates(cached: I64, prompt: I64) -> np.ndarray:
    """Hit rate of each whole batch of five, float64."""
    b = cached.shape[0] // BATCH
    hit = cached[: b * BATCH].reshape(b, BATCH).sum(axis=1)
    return hit / np.maximum(prompt[: b * BATCH].reshape(b, BATCH).sum(axis=1), 1)


def mser(values: np.ndarray) -> int:
    """How many leading values to cut: the least estimated squared standard error of the mean of the rest, the smallest such
    number; the last five values are never judged alone (a few equal ones would always win)."""
    b = values.shape[0]
    left = np.arange(b, 0, -1, dtype=np.float64)
    total = np.cumsum(values[::-1])[::-1]
    squares = np.cumsum((values * values)[::-1])[::-1]
    error = np.maximum(squares - total * total / left, 0.0) / (left * left)
    judged = max(b - BATCH, 1)
    return int(np.argmin(np.round(error[:judged], 15)))
