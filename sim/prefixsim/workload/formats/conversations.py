"""What traces of conversations without times share: when conversations start."""

from __future__ import annotations

import numpy as np

from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.workload import Trace
from prefixsim.workload.formats.registry import ReadContext
from prefixsim.workload.table import I64, Decision


def conversation_starts(options: Trace, n: int, context: ReadContext) -> tuple[I64, Decision]:
    """Start of each of n conversations (ns), and how that was decided: the scenario's `arrivals`, else one a second."""
    from prefixsim.errors import TraceError
    from prefixsim.workload.generators.arrivals import session_starts
    from prefixsim.workload.generators.registry import GenerateContext

    given = options.arrivals
    arrivals = given or Arrivals(process="constant", rate_per_s=1.0)
    if arrivals.process == "closed_loop":
        raise TraceError(
            f"{context.path}: trace.arrivals cannot be closed_loop; use all_at_once, poisson, constant, ..."
        )
    starts = session_starts(arrivals, n, GenerateContext(context.seed, context.path.parent), "trace/arrivals").start_ns
    words = ", ".join(f"{k} {v}" for k, v in arrivals.model_dump(exclude_none=True).items() if k != "process")
    evidence = "as given" if given else "not in the file: an assumption, `arrivals:` sets it"
    return np.asarray(starts), Decision(
        "conversation starts", f"{arrivals.process} {words}".strip(), evidence, given is not None
    )
