"""What a run will take, said and checked before it starts: requests, block ids and replicas are known by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prefixsim.machine import free_bytes, gib, require
from prefixsim.pipeline.prepare import Prepared, granularity_of, rule_of
from prefixsim.report.progress import duration
from prefixsim.scenario.models import Scenario

ROW_BYTES = 300
"""A request's row of results, ledger and queue, an engine (docs/performance.md)."""
CHAIN_BYTES = 8
"""When a block was first committed, a replica of several."""
SECONDS_A_REQUEST = 6e-6
"""Of one engine, measured with a million requests of 330 tokens (docs/performance.md)."""
SAID_BYTES, SAID_S = 1 << 30, 10.0


def check_size(
    scenario: Scenario, chosen: Sequence[Any], prepared: Prepared, replicas: int, tell: Callable[[str], None]
) -> None:
    """Says what a large run takes. Raises DoesNotFitError where the machine lacks the memory."""
    n = prepared.workload.n
    needed = n * ROW_BYTES * len(chosen)
    if replicas > 1:
        needed += CHAIN_BYTES * replicas * sum(
            prepared.chains(rule_of(o), granularity_of(o)).n_chains for o in chosen
        )  # fmt: skip
    spent = n * SECONDS_A_REQUEST * len(chosen)
    what = f"{n:,} requests"
    if replicas > 1:
        what = f"{replicas:,} replicas and {what}"
    if needed > SAID_BYTES or spent > SAID_S:
        free = free_bytes()
        room = "" if free is None else f" ({gib(free)} are free)"
        tell(
            f"{scenario.name}: {what}: at least {gib(needed)} more memory{room}; some {duration(spent)}, longer with long "
            "outputs"
        )
    require(needed, what)
