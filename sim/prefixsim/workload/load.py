"""From a `workload:` section to a `Workload`: reads or generates, then applies what the section asks for, in this order:
reader, order of arrival, max_requests, time_scale, spread_arrivals, delay cap, reuse_outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefixsim.errors import InputError, Problem, TraceError, nearest
from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.load import parse_override
from prefixsim.scenario.workload import Sharing, Trace, TraceWorkload, WorkloadSpec
from prefixsim.workload import edit
from prefixsim.workload.table import Decision, Workload, owned


def load_workload(spec: WorkloadSpec, *, base_dir: Path, seed: int) -> Workload:
    """The workload a section describes. `base_dir`: what relative trace paths are relative to.

    Raises TraceError (file, line, key) for a trace that can't be read as asked, ScenarioError for impossible knobs.
    """
    if isinstance(spec, TraceWorkload):
        return load_trace(spec.trace, base_dir=base_dir, seed=seed)
    from prefixsim.workload.generators.registry import generate

    return owned(generate(spec, base_dir=base_dir, seed=seed))


def load_trace(options: Trace, *, base_dir: Path = Path(), seed: int = 0) -> Workload:
    """Reads a trace as its section says. Raises TraceError."""
    from prefixsim.workload.cache import cached_read
    from prefixsim.workload.formats.registry import ReadContext, detect, get, unheeded

    path = Path(options.path)
    path = path if path.is_absolute() else base_dir / path
    if not path.exists():
        raise TraceError(Problem("no such file or folder", file=str(path)))
    if options.format is None:
        found, decision = detect(path)
    else:
        found, decision = get(options.format), Decision("format", options.format, "as given", True)
    w = cached_read(found, ReadContext(options, path, seed))
    lost = unheeded(found, options)
    notes = (*w.source.notes, lost) if lost else w.source.notes
    w = replace(w, source=replace(w.source, decisions=(decision, *w.source.decisions), notes=notes))
    try:
        return owned(_apply(w, options, seed))
    except OverflowError as exc:
        raise TraceError(Problem(str(exc), file=str(path))) from None


def trace_options(
    path: str, *, format: str | None = None, block_size: int | None = None, settings: Sequence[str] = ()
) -> Trace:
    """A `Trace` section from command-line words; `settings` are KEY=VALUE with keys of the section ("sharing.families=8").

    Raises InputError naming the key, what was found, and the nearest key.
    """
    data: dict[str, Any] = {"path": path}
    if format is not None:
        data["format"] = format
    if block_size is not None:
        data["block_size"] = block_size
    for setting in settings:
        key, value = parse_override(setting)
        place = data
        *above, last = key.split(".")
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {key}: {part} is not a group of keys")
        place[last] = value
    try:
        return Trace.model_validate(data)
    except ValidationError as exc:
        lines = []
        for fault in exc.errors(include_url=False):
            key = ".".join(str(p) for p in fault["loc"])
            if fault["type"] == "extra_forbidden":
                lines.append(
                    f"--set {key}: unknown key{nearest(str(fault['loc'][-1]), {**Trace.model_fields, **Sharing.model_fields, **Arrivals.model_fields})}"
                )
            else:
                lines.append(
                    f"--set {key}: {fault['msg'].removeprefix('Value error, ')}, found {fault.get('input')!r:.60}"
                )
        raise InputError("\n".join(lines)) from None


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
