"""What a run will take, said and checked before it starts: requests, block ids and replicas are known by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prefixsim.machine import free_bytes, gib, require
from prefixsim.pipeline.prepare import Prepared
from prefixsim.report.progress import duration
from prefixsim.scenario.models import Scenario, granularity_of, rule_of

ROW_BYTES, REQUEST_S = 300, 8e-6
"""An engine's rows of results, ledger and queue for a request, and its time: measured (docs/scale.md)."""
CHAIN_BYTES, CHAIN_S = 8, 20e-9
"""Of several replicas each: a distinct block of the workload."""
SAID_BYTES, SAID_S = 1 << 30, 10.0


def check_size(
    scenario: Scenario, chosen: Sequence[Any], prepared: Prepared, replicas: int, tell: Callable[[str], None]
) -> None:
    """Says what a large run takes. Raises DoesNotFitError where the machine lacks the memory."""
    n = prepared.workload.n
    chains = 0
    if replicas > 1:
        chains = replicas * sum(prepared.chains(rule_of(o), granularity_of(o)).n_chains for o in chosen)
    needed = n * len(chosen) * ROW_BYTES + chains * CHAIN_BYTES
    spent = n * len(chosen) * REQUEST_S + chains * CHAIN_S
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
