"""`prefixsim sweep`: every point of a grid, resumable, on any executor, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, PrefixsimError, Problem, ScenarioError
from prefixsim.scenario.study import StudySpec
from prefixsim.study import grid
from prefixsim.study.executors import Executor
from prefixsim.study.load import Study
from prefixsim.study.points import Job, make_job, names_nothing, prepare_workload, run_jobs
from prefixsim.study.store import PointStore

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Row:
    """One point with its result: summary, or the error that kept it from having one."""

    axes: dict[str, Any]
    repeat: int
    point_id: str = ""
    summary: dict[str, Any] | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What `sweep --json` prints."""
        out: dict[str, Any] = {"axes": self.axes, "repeat": self.repeat}
        if self.summary is not None:
            return {**out, "run_id": self.summary.get("run_id"), "summary": self.summary}
        return {**out, "run_id": None, "error": self.error}


@dataclass(slots=True)
class SweepResult:
    """Rows in axis order. reused: points that were already on disk; workloads: distinct workloads read."""

    study: Study[StudySpec]
    rows: list[Row]
    reused: int = 0
    workloads: int = 0
    keys: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        """Rows without a result."""
        return [row for row in self.rows if row.summary is None]


def run_sweep(
    study: Study[StudySpec],
    executor: Executor,
    out: Path,
    *,
    max_points: int = grid.MAX_POINTS,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> SweepResult:
    """Runs what is not on disk yet and returns all rows in axis order.

    A point that cannot run becomes a row with its error; the others go on. What can be told without running is told
    before anything runs: points that do not fit go to `warn`; for a study that cannot be expanded (unknown keys of an
    axis, unknown profiles) ScenarioError is raised, with all of it.
    """
    spec = study.spec
    points = grid.points(spec.axes, spec.exclude, spec.repeats, limit=max_points, file=str(study.file))
    store = PointStore(out)
    rows = [Row(p.axes, p.repeat) for p in points]
    jobs: dict[str, Job] = {}
    wrong: dict[Problem, None] = {}
    for row in rows:
        try:
            job = make_job(study.scenario(row.axes, row.repeat))
        except PrefixsimError as exc:
            if isinstance(exc, InputError) and (row is rows[0] or names_nothing(exc)):
                wrong.update(dict.fromkeys(exc.problems))
            row.error = str(exc)
            continue
        row.point_id = job.identity
        row.summary = store.get(job.identity)
        row.error = row.error if row.summary is None else None
        row.summary = row.summary["summary"] if row.summary else None
        if row.summary is None:
            jobs.setdefault(job.identity, job)
    if wrong:
        raise ScenarioError(list(wrong))
    cannot = [row for row in rows if row.error is not None]
    if cannot and warn:
        warn(f"{len(cannot)} of {len(rows)} points cannot run; the first, {cannot[0].axes}: {cannot[0].error}")
    reused = sum(row.summary is not None for row in rows)
    done, total = reused, len([r for r in rows if r.error is None])
    if progress:
        progress(done, total)
    store.check()
    workloads = _read_workloads(list(jobs.values()))
    by_id: dict[str, list[Row]] = {}
    for row in rows:
        by_id.setdefault(row.point_id, []).append(row)
    todo = list(jobs.values())
    for outcome in run_jobs(executor, todo):
        identity = todo[outcome.index].identity
        if outcome.error is None:
            store.put(identity, outcome.value)
        for row in by_id[identity]:
            row.summary, row.error = outcome.value, outcome.error
            done += 1
        if progress:
            progress(done, total)
    _check_columns(study, [row.summary for row in rows if row.summary is not None])
    return SweepResult(study, rows, reused, workloads, list(rows[0].axes))


def _check_columns(study: Study[StudySpec], summaries: list[dict[str, Any]]) -> None:
    """Refuses metrics to show that no point has, with the nearest name. Finished points are on disk by then."""
    from prefixsim.scenario import strict_yaml
    from prefixsim.study.check import unknown

    spec = study.spec
    named: list[tuple[tuple[str | int, ...], str | None]] = [
        (("columns", i), name) for i, name in enumerate(spec.columns)
    ]
    named += [(("cost",), spec.cost), (("latency",), spec.latency)]
    problems = []
    for path, name in named:
        if name is not None and summaries and all(unknown(s, name) for s in summaries):
            message = f"{unknown(summaries[0], name)}; finished points are kept, nothing is run again"
            problems.append(strict_yaml.read(study.file).problem(path, message))
    if problems:
        raise ScenarioError(problems)


def _read_workloads(jobs: list[Job]) -> int:
    """Reads each distinct trace once in this process, so that the workers find it parsed; returns their number."""
    import json

    seen: set[str] = set()
    for job in jobs:
        data = json.loads(job.scenario)
        key = json.dumps([data["workload"], data.get("seed")], sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        if "trace" in data["workload"]:
            try:
                prepare_workload(job)
            except PrefixsimError:
                continue  # the point itself reports it
    return len(seen)


def flat_rows(result: SweepResult) -> Iterator[dict[str, Any]]:
    """Tidy rows: axes, repeat, run id, error, then every number of the summary by its dotted name."""
    from prefixsim.study.metrics import lookup, names

    for row in result.rows:
        out: dict[str, Any] = {**row.axes, "repeat": row.repeat, "run_id": None, "error": row.error}
        if row.summary is not None:
            out["run_id"] = row.summary.get("run_id")
            out.update({name: lookup(row.summary, name) for name in names(_numbers(row.summary))})
        yield out


def _numbers(summary: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in summary.items() if k in ("engines", "ceiling", "ceiling_tokens", "prompt_tokens")}
