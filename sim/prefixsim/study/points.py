"""One point of a study: from a job to its summary. Jobs and results are plain data, so that they travel to any worker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.errors import PrefixsimError
from prefixsim.paths import open_regular
from prefixsim.scenario.identity import resolved
from prefixsim.scenario.models import Scenario, family
from prefixsim.scenario.strict_yaml import Document
from prefixsim.study.executors import Executor, Outcome
from prefixsim.study.store import canonical, point_id

WITHOUT = ("timing_s", "provenance")
"""Parts of a summary that differ from run to run; a study's results leave them out."""


_LOADED: set[tuple[object, ...]] = set()
"""Kinds of runs whose kernels this process has loaded."""


@dataclass(frozen=True, slots=True)
class Job:
    """A resolved scenario as JSON text, the folder its paths start from, and the point's identity."""

    scenario: str
    base_dir: str
    identity: str


def make_job(scenario: Scenario) -> Job:
    """The job of a scenario. Raises what can be told without running it: a profile that is not there, a model that does
    not fit, a number format or split whose times are not known."""
    _check_hardware(scenario)
    data = resolved(scenario)
    return Job(canonical(data), str(scenario.base_dir), point_id(data, contents_of(scenario)))


def names_nothing(exc: PrefixsimError) -> bool:
    """Whether a scenario is refused for a name (key, profile) that is nowhere: a slip that no other point makes right."""
    words = ("unknown key", "names no key", "is no mapping", "unknown profile", "no such profile file")
    return any(w in str(exc) for w in words)


def _check_hardware(scenario: Scenario) -> None:
    from prefixsim.hardware.load import load_hardware
    from prefixsim.pipeline.simulate import capacity_of

    for group in scenario.replica_groups:
        spec = group.hardware or scenario.hardware
        if spec is None:
            continue
        hardware = load_hardware(spec, base_dir=scenario.base_dir)
        for options in scenario.engines:
            capacity_of(options, hardware)
            key = (spec.model_dump_json(), scenario.base_dir, family(options))
            if scenario.clock == "time" and key not in _PRICED:
                hardware.step_costs(family(options))
                _PRICED.add(key)


_PRICED: set[tuple[str, Path, str]] = set()
"""Hardware and engine families whose steps are known to have times."""


def contents_of(scenario: Scenario) -> str:
    """SHA-256 over the files that decide a scenario's result: its trace and its profiles."""
    from prefixsim.hardware.load import load_hardware

    digest = hashlib.sha256()
    trace = getattr(scenario.workload, "trace", None)
    if trace is not None:
        digest.update(file_sha256(str(scenario.base_dir / Path(trace.path).expanduser())).encode())
    for group in scenario.replica_groups:
        spec = group.hardware or scenario.hardware
        if spec is not None:
            profile = load_hardware(spec, base_dir=scenario.base_dir).provenance()
            digest.update(json.dumps(profile, sort_keys=True, default=str).encode())
    return digest.hexdigest()


@cache
def file_sha256(path: str) -> str:
    """SHA-256 of a file, or of all files of a folder by name; "" where it cannot be read (the run then says why)."""
    root = Path(path)
    digest = hashlib.sha256()
    try:
        for file in sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]:
            digest.update(os.fsencode(file.name) + b"\0")
            with open_regular(file) as f:
                while chunk := f.read(1 << 20):
                    digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


@cache
def _library() -> Any:
    """Prepared workloads of this process, shared by its points."""
    from prefixsim.pipeline.prepare import Library

    return Library(keep=2)


def prepare_workload(job: Job) -> None:
    """Reads a job's workload, so that the parsed form lies in the user's cache before workers start."""
    _library().get(_scenario(job))


def run_jobs(executor: Executor, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Runs jobs on an executor; outcomes as they finish."""
    if not jobs:
        return iter(())
    if executor.forks:
        _load_for_workers(jobs[0])
    return executor.map(run_job, jobs)


def _load_for_workers(job: Job) -> None:
    """Reads a job's workload and runs its first request, so that forked workers have workload and compiled kernels
    in memory. What cannot be done is left to the workers, who say why."""
    from prefixsim.pipeline.prepare import Library, Prepared
    from prefixsim.pipeline.run import run_scenario
    from prefixsim.workload.edit import take

    class First(Library):
        def get(self, scenario: Scenario) -> Prepared:
            return Prepared(take(whole.main, np.zeros(1, dtype=np.int64)))

    with contextlib.suppress(Exception):
        scenario = _scenario(job)
        kinds = (*(e.kind for e in scenario.engines), scenario.router.kind, scenario.n_replicas > 1)
        if kinds in _LOADED:
            return
        _LOADED.add(kinds)
        whole = _library().get(scenario)
        run_scenario(scenario.model_copy(update={"prime": None, "warm_up": None}), library=First())


def run_job(job: Job) -> dict[str, Any]:
    """Runs a job and returns its summary, without what differs from run to run."""
    from prefixsim.pipeline.run import run_scenario

    done = run_scenario(_scenario(job), library=_library())
    return without_times(done.summary)


def without_times(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary as plain JSON data, timing and provenance left out."""
    kept = {k: v for k, v in summary.items() if k not in WITHOUT}
    return dict(json.loads(json.dumps(kept, sort_keys=True, default=_plain)))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _scenario(job: Job) -> Scenario:
    from prefixsim.scenario.load import scenario_from

    return scenario_from(Document(json.loads(job.scenario), {}, {}, "point"), Path(job.base_dir))
