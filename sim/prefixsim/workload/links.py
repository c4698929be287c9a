"""Requests that await others: nominal arrivals, turns, and orders in which nobody comes before the one it awaits."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from prefixsim.workload.table import I32, I64


def resolve(after: I32, delay_ns: I64, arrival_ns: I64, given: np.ndarray) -> tuple[I64, int]:
    """Nominal arrivals int64 (n,): what is `given`, else the awaited one's nominal arrival + delay (as if service took no
    time); and the index of a request on a cycle, or -1. Arrivals saturate at int64's end."""
    from prefixsim.workload.ragged_kernels import nominal_arrivals

    out = arrival_ns.astype(np.int64).copy()
    bad = nominal_arrivals(after.astype(np.int64), delay_ns, out, given.astype(np.int8))
    return out, int(bad)


def parents_first(after: I32) -> I64:
    """A stable order in which each request comes behind the one it awaits: file order where it already does."""
    from prefixsim.workload.ragged_kernels import parents_first_order

    n = after.shape[0]
    if bool((after < np.arange(n)).all()):
        return np.arange(n, dtype=np.int64)
    return np.asarray(parents_first_order(after.astype(np.int64)), dtype=np.int64)


def turns(session: I32) -> I32:
    """Position of each request in its session, from 0, in row order; 0 without a session."""
    n = session.shape[0]
    order = np.argsort(session, kind="stable")
    sorted_session = session[order]
    new = np.ones(n, dtype=np.bool_)
    new[1:] = sorted_session[1:] != sorted_session[:-1]
    first = np.maximum.accumulate(np.where(new, np.arange(n), 0))
    out = np.empty(n, dtype=np.int32)
    out[order] = np.arange(n) - first
    out[session < 0] = 0
    return out
