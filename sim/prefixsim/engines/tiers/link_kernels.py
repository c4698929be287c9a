# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The link between a replica's GPUs and host memory, compiled. Two directions that do not disturb each other; in each one
transfer after another, in order of submission. Twin: `twin.TwinLink`."""

from __future__ import annotations

from prefixsim.engines.tiers.layout import (
    T_IN_BLOCKS,
    T_IN_BUSY,
    T_IN_FREE,
    T_IN_JOBS,
    T_IN_PS,
    T_IN_WAIT,
    T_LATENCY_PS,
    T_OUT_BLOCKS,
    T_OUT_BUSY,
    T_OUT_FREE,
    T_OUT_JOBS,
    T_OUT_PS,
    T_OUT_WAIT,
)
from prefixsim.jit import lean_kernel


@lean_kernel
def duration_ns(blocks, per_block_ps, latency_ps):
    """Time of one transfer on a free link, ns, rounded up."""
    return (latency_ps + blocks * per_block_ps + 999) // 1000


@lean_kernel
def transfer_in(tier, ready, blocks):
    """Queues a load of `blocks` that can start at `ready` (ns); returns when it is done."""
    start = max(ready, tier[T_IN_FREE])
    took = duration_ns(blocks, tier[T_IN_PS], tier[T_LATENCY_PS])
    tier[T_IN_WAIT] += start - ready
    tier[T_IN_BUSY] += took
    tier[T_IN_BLOCKS] += blocks
    tier[T_IN_JOBS] += 1
    tier[T_IN_FREE] = start + took
    return start + took


@lean_kernel
def transfer_out(tier, ready, blocks):
    """Queues a store of `blocks` that can start at `ready` (ns); returns when it is done."""
    start = max(ready, tier[T_OUT_FREE])
    took = duration_ns(blocks, tier[T_OUT_PS], tier[T_LATENCY_PS])
    tier[T_OUT_WAIT] += start - ready
    tier[T_OUT_BUSY] += took
    tier[T_OUT_BLOCKS] += blocks
    tier[T_OUT_JOBS] += 1
    tier[T_OUT_FREE] = start + took
    return start + took
