"""What generators share: content ids, heads of shared and unique parts, and the way from pieces to a workload."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.arrivals import Arrivals
from prefixsim.workload import links
from prefixsim.workload.edit import order_quietly
from prefixsim.workload.generators.arrivals import session_starts
from prefixsim.workload.generators.assemble import Pieces, assemble
from prefixsim.workload.generators.registry import GenerateContext, synthetic_source
from prefixsim.workload.numbering import numbering
from prefixsim.workload.ragged import offsets
from prefixsim.workload.table import I64, Workload, make_workload

MAX_PARTS = 400_000_000


class Ids:
    """Hands out content ids: one for each (shared name, variant), fresh ones for unique parts."""

    def __init__(self) -> None:
        self.next = 0
        self.bases: dict[str, int] = {}
        self.common = numbering()

    def fresh(self, n: int) -> I64:
        """n new ids."""
        if self.common is not None:
            return self.common.reserve(n) + np.arange(n, dtype=np.int64)
        self.next += n
        if self.next >= 1 << 31:
            raise ScenarioError("more than 2^31 distinct parts of prompts")
        return np.arange(self.next - n, self.next, dtype=np.int64)

    def shared(self, name: str, n: int) -> int:
        """First id of the n variants of a shared name."""
        if self.common is not None:
            return self.common.shared(name, n)
        if name not in self.bases:
            self.bases[name] = int(self.fresh(n)[0])
        return self.bases[name]


def limit_parts(requests: int, parts: int) -> None:
    """Raises ScenarioError where a table of requests x parts would be too large to make."""
    if requests * parts > MAX_PARTS:
        raise ScenarioError(f"prompts would have {requests * parts:,} parts in all (at most {MAX_PARTS:,})")


class Parts:
    """Ragged lists of (content id, tokens), one list a request, put together column by column.

    `add(ids, tokens, where)` appends one part to the lists of the requests in `where` (bool (n,); default: all).
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.columns: list[tuple[I64, I64, np.ndarray]] = []

    def add(self, ids: Any, tokens: Any, where: np.ndarray | None = None) -> None:
        """ids and tokens int64 (n,) or scalars; where a request is not in `where`, its entry is not used."""
        mask = np.ones(self.n, dtype=np.bool_) if where is None else where
        shape = (self.n,)
        self.columns.append(
            (np.broadcast_to(ids, shape), np.broadcast_to(tokens, shape), mask & (np.broadcast_to(tokens, shape) > 0))
        )

    def flat(self) -> tuple[I64, I64, I64]:
        """(count int64 (n,), ids, tokens int64 flat)."""
        count = np.zeros(self.n, dtype=np.int64)
        for _, _, mask in self.columns:
            count += mask
        offset = offsets(count)
        ids, tokens = np.empty(int(offset[-1]), np.int64), np.empty(int(offset[-1]), np.int64)
        at = offset[:-1].copy()
        for column_ids, column_tokens, mask in self.columns:
            ids[at[mask]] = column_ids[mask]
            tokens[at[mask]] = column_tokens[mask]
            at += mask
        return count, ids, tokens


def pieces(
    n: int, ids: Ids, heads: Parts, outputs: I64, *, parent: I64 | None = None, tails: Parts | None = None
) -> Pieces:
    """Pieces of n requests with unique outputs and no thinking."""
    zero = np.zeros(n, np.int64)
    head_count, head_id, head_tokens = heads.flat()
    tail_count, tail_id, tail_tokens = (tails or Parts(n)).flat()
    return Pieces(
        parent=np.full(n, -1, dtype=np.int64) if parent is None else parent,
        head_count=head_count,
        head_id=head_id,
        head_tokens=head_tokens,
        tail_count=tail_count,
        tail_id=tail_id,
        tail_tokens=tail_tokens,
        skip=zero,
        skip_tokens=zero,
        output_id=ids.fresh(n),
        output_tokens=outputs,
        thinking_id=zero,
        thinking_tokens=zero,
        keep_thinking=True,
    )


def independent(kind: str, arrivals: Arrivals, made: Pieces, context: GenerateContext, **columns: Any) -> Workload:
    """A workload of requests that each are a session of their own."""
    n = made.parent.shape[0]
    return linked(kind, arrivals, made, np.arange(n, dtype=np.int64), None, None, context, sessions=False, **columns)


def linked(
    kind: str, arrivals: Arrivals, made: Pieces, session: I64, after: I64 | None, delay_ns: I64 | None,
    context: GenerateContext, name: str = "arrivals", sessions: bool = True, **columns: Any,
) -> Workload:  # fmt: skip
    """A workload of sessions (int64 (n,), numbered from 0, rows in order within a session) with links between requests.

    In a closed loop a session's first request awaits the last one of its user's session before.
    """
    n = session.shape[0]
    count = int(session.max()) + 1
    starts = session_starts(arrivals, count, context, name)
    after = np.full(n, -1, dtype=np.int64) if after is None else after.copy()
    delay = np.zeros(n, dtype=np.int64) if delay_ns is None else np.where(after >= 0, delay_ns, 0)
    if starts.previous is not None and starts.pause_ns is not None:
        last = np.zeros(count, dtype=np.int64)
        last[session] = np.arange(n)
        opens = (after < 0) & (starts.previous[session] >= 0)
        after[opens] = last[starts.previous[session[opens]]]
        delay[opens] = starts.pause_ns[session[opens]]
    arrival, cycle = links.resolve(after.astype(np.int32), delay, starts.start_ns[session], after < 0)
    if cycle >= 0:
        raise ScenarioError("requests await each other in a circle")
    w = make_workload(
        source=synthetic_source(kind, counts={"sessions": count} if sessions else {}),
        **assemble(made),
        arrival_ns=arrival,
        after=after,
        delay_ns=delay,
        session=session if sessions else None,
        turn=links.turns(session.astype(np.int32)) if sessions else None,
        **columns,
    )
    return order_quietly(w)
