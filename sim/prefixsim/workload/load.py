"""From a `workload:` section to a `Workload`: reads or generates, then applies what the section asks for, in this order:
reader, order of arrival, max_requests, time_scale, spread_arrivals, delay cap, reuse_outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prefixsim.errors import Problem, TraceError
from prefixsim.scenario.workload import Trace, TraceWorkload, WorkloadSpec
from prefixsim.workload import edit
from prefixsim.workload.table import Decision, Workload


def load_workload(spec: WorkloadSpec, *, base_dir: Path, seed: int) -> Workload:
    """The workload a section describes. `base_dir`: what relative trace paths are relative to.

    Raises TraceError (file, line, key) for a trace that can't be read as asked, ScenarioError for impossible knobs.
    """
    if isinstance(spec, TraceWorkload):
        return load_trace(spec.trace, base_dir=base_dir, seed=seed)
    from prefixsim.workload.generators.registry import generate

    return generate(spec, base_dir=base_dir, seed=seed)


def load_trace(options: Trace, *, base_dir: Path = Path(), seed: int = 0) -> Workload:
    """Reads a trace as its section says. Raises TraceError."""
    from prefixsim.workload.formats.registry import ReadContext, detect, get

    path = Path(options.path)
    path = path if path.is_absolute() else base_dir / path
    if not path.exists():
        raise TraceError(Problem("no such file or folder", file=str(path)))
    if options.format is None:
        found, decision = detect(path)
    else:
        found, decision = get(options.format), Decision("format", options.format, "as given", True)
    w = found.read(ReadContext(options, path, seed))
    w = replace(w, source=replace(w.source, decisions=(decision, *w.source.decisions)))
    try:
        return _apply(w, options, seed)
    except OverflowError as exc:
        raise TraceError(Problem(str(exc), file=str(path))) from None


def _apply(w: Workload, options: Trace, seed: int) -> Workload:
    w = edit.sort_by_arrival(w)
    if options.max_requests is not None:
        w = edit.head(w, options.max_requests)
    w = edit.scale_arrivals(w, options.time_scale)
    if options.spread_arrivals == "uniform":
        w = edit.spread_arrivals(w, seed)
    if options.max_delay_s is not None:
        w = edit.cap_delays(w, options.max_delay_s)
    if not options.reuse_outputs:
        w = edit.forget_outputs(w)
    return w
