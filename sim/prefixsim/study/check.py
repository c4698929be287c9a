"""`prefixsim check`: scenarios run, their `expect:` entries and a baseline compared. Several files and seeds in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, PrefixsimError, nearest
from prefixsim.report.checks import CheckResult, FileResult
from prefixsim.report.facts import named
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.expect import Baseline, BaselineScenario
from prefixsim.scenario.load import find_scenario, load_scenario, variants
from prefixsim.scenario.models import Expect, Scenario, rule_of
from prefixsim.scenario.strict_yaml import Path_
from prefixsim.study import metrics
from prefixsim.study.baseline import compare, default_metrics, make_entry, number, reasons, spelt, with_interval
from prefixsim.study.executors import ProcessExecutor, SerialExecutor, default_workers

Say = Callable[[str], None]
Unit = tuple[str, int, Scenario | PrefixsimError, tuple[str, ...]]
"""File, variant, scenario, notes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a scenario file, or one of its variants (by number from 1; 0: the scenario itself), with one seed. points:
    whether divergence points are wanted too."""

    file: str
    variant: int
    overrides: dict[str, Any]
    seed: int
    points: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What a job brings back."""

    summary: dict[str, Any]
    divergence: list[dict[str, Any]]
    wall_s: float


def run_job(job: Job) -> Done:
    """Runs one job, in whatever process."""
    from prefixsim.analysis.divergence import divergence_points
    from prefixsim.pipeline.prepare import Library
    from prefixsim.pipeline.run import run_scenario

    started = time.perf_counter()
    overrides = {**job.overrides, "seed": job.seed}
    scenario = variants(job.file, overrides)[job.variant] if job.variant else load_scenario(job.file, overrides)
    library = Library(keep=1)
    run = run_scenario(scenario, library=library)
    points: list[dict[str, Any]] = []
    if job.points and run.workload.source.content_known:
        rule = rule_of(scenario.engines[0])
        found = divergence_points(run.workload, rule=rule, trie=library.get(scenario).trie(rule))
        points = [p.as_dict() for p in found]
    return Done(run.summary, points, time.perf_counter() - started)


def _of_one_name(units: list[Unit]) -> list[Unit]:
    """The same, with an error for each that has the name of an earlier one from elsewhere."""
    first: dict[str, tuple[str, int]] = {}
    out = []
    for file, variant, s, notes in units:
        if isinstance(s, Scenario) and first.setdefault(s.name, (file, variant)) != (file, variant):
            s = InputError(
                f"{file}: {first[s.name][0]} has a scenario '{s.name}' too, and a baseline keeps one entry for a name"
            )
        out.append((file, variant, s, notes))
    return out


def check(
    files: Sequence[str],
    *,
    baseline: Baseline | None = None,
    by_name: bool = False,
    overrides: Mapping[str, Any] | None = None,
    repeats: int | None = None,
    workers: int | None = None,
    say: Say | None = None,
) -> tuple[list[FileResult], dict[str, BaselineScenario]]:
    """Runs and compares. Returns a result for each file, and each of its variants that has an `expect:`, in order; and a new
    baseline entry for each scenario that ran.

    baseline: None: only `expect:` is tested. by_name: the entries are to be written, and told apart by name:
    two scenarios of one name are a fault of the later one. repeats: seeds each (default: the most any `expect:` entry asks for, or what the
    baseline was made with). Faults of a file are in its result (`error`), not raised.
    """
    tell = say or (lambda _: None)
    units: list[Unit] = []
    for file in files:
        try:
            scenario, *others = variants(file, overrides)
        except PrefixsimError as exc:
            units.append((file, 0, exc, ()))
            continue
        left = [v.name for v in scenario.also if not v.expect]
        note = f"not run, as they have no `expect:` of their own: {', '.join(left)} (under `also:`)"
        units.append((file, 0, scenario, (note,) if left else ()))
        units += [(file, i, other, ()) for i, other in enumerate(others, 1) if other.expect]
    if by_name:
        units = _of_one_name(units)
    jobs: list[Job] = []
    owner: list[int] = []
    for i, (file, variant, s, _) in enumerate(units):
        if isinstance(s, PrefixsimError):
            continue
        entry = baseline.scenarios.get(s.name) if baseline is not None else None
        for k in range(seeds_of(s, entry, repeats)):
            jobs.append(Job(file, variant, dict(overrides or {}), s.seed + k, points=k == 0))
            owner.append(i)
    if jobs:
        tell(f"{len(jobs)} run{'s' * (len(jobs) > 1)} of {len(units)} scenario{'s' * (len(units) > 1)}")
    many = min(workers or default_workers(), len(jobs))
    executor = ProcessExecutor(many) if many > 1 else SerialExecutor()
    done: dict[int, dict[int, Done]] = {}
    errors: dict[int, str] = {}
    for outcome in executor.map(run_job, jobs):
        i = owner[outcome.index]
        if outcome.error is not None:
            errors.setdefault(i, outcome.error)
        else:
            done.setdefault(i, {})[outcome.index] = outcome.value
            tell(f"{units[i][0]}: seed {jobs[outcome.index].seed} done")
    results: list[FileResult] = []
    entries: dict[str, BaselineScenario] = {}
    for i, (file, variant, s, notes) in enumerate(units):
        if isinstance(s, PrefixsimError):
            results.append(_broken(file, Path(file).stem, s))
        elif i in errors:
            results.append(FileResult(file, s.name, error=errors[i]))
        else:
            runs = [done[i][k] for k in sorted(done[i])]
            try:
                result, entry = judge(file, s, runs, baseline, variant=variant)
                result = replace(result, notes=(*result.notes, *notes))
                entries[s.name] = entry
            except PrefixsimError as exc:
                result = _broken(file, s.name, exc)
            results.append(result)
    return results, entries


def all_metrics(file: str, overrides: Mapping[str, Any]) -> dict[str, float | bool]:
    """Every metric that `expect:` may name, with its value in one run. Raises PrefixsimError."""
    summary = run_job(Job(file, 0, dict(overrides), load_scenario(file, overrides).seed, points=False)).summary
    found = {name: named(summary, name) for name in metrics.names(summary)}
    return {k: v if isinstance(v, bool) else float(v) for k, v in found.items() if v is not None}


def seeds_of(scenario: Scenario, entry: BaselineScenario | None, repeats: int | None) -> int:
    """How many seeds a scenario is run with."""
    if repeats is not None:
        return repeats
    return max([1, *(e.repeats for e in scenario.expect), *([entry.repeats] if entry is not None else [])])


def _broken(file: str, name: str, exc: PrefixsimError) -> FileResult:
    problems = tuple((p.file, p.line, p.column, p.message) for p in exc.problems) if isinstance(exc, InputError) else ()
    return FileResult(file, name, error=str(exc), problems=problems)


def judge(
    file: str, scenario: Scenario, runs: Sequence[Done], baseline: Baseline | None, *, variant: int = 0
) -> tuple[FileResult, BaselineScenario]:
    """Compares the runs of one scenario. Raises InputError for metrics that do not exist (each with its line and the
    nearest name) and for a baseline that has no such scenario."""
    path = find_scenario(file)
    document = strict_yaml.read(path)
    summaries = [r.summary for r in runs]
    found: list[CheckResult] = []
    problems = []
    place: Path_ = ("also", variant - 1, "expect") if variant else ("expect",)
    for k, expectation in enumerate(scenario.expect):
        where: Path_ = (*place, k) if place in document.marks else ()
        message = unknown(summaries[0], expectation.metric)
        if message is not None:
            at = (*where, "metric") if where else ()
            problems.append(document.problem(at, message))
            continue
        line, column = document.place(where)
        found.append(expect(expectation, summaries, line, column))
    if problems:
        raise InputError(problems)
    was = None
    if baseline is not None:
        was = baseline.scenarios.get(scenario.name)
        if was is None:
            known = nearest(scenario.name, baseline.scenarios)
            raise InputError(
                f"{file}: the baseline has no scenario '{scenario.name}'{known}; --update-baseline adds it"
            )
    why: list[str] = []
    notes: list[str] = []
    name_line, name_column = document.place(("name",))
    if was is not None:
        for metric, old in was.metrics.items():
            values = values_of(summaries, metric)
            if values is None:
                message = unknown(summaries[0], metric) or "has no value in this run"
                raise InputError(f"{file}: baseline metric '{metric}': {message}; --update-baseline drops it")
            mean, half = metrics.mean_interval(values)
            c = compare(metric, old, mean, half, boolean=metrics.is_boolean(summaries[0], metric))
            found.append(CheckResult(c.metric, c.kind, c.ok, c.found, c.wanted, name_line, name_column, c.values))
        same = was.run_id == summaries[0]["run_id"]
        if not same:
            notes.append(
                "run identity differs from the baseline's: the scenario, its workload or a profile has changed"
            )
        if any(not c.ok for c in found):
            why = reasons(was, summaries[0], runs[0].divergence, same)
    elif any(not c.ok for c in found):
        why = standing_reasons(summaries[0], runs[0].divergence)
    wanted = dict.fromkeys([*(e.metric for e in scenario.expect), *default_metrics(summaries[0])])
    kept = {m: metrics.mean_interval(v) for m in wanted if (v := values_of(summaries, m)) is not None}
    from prefixsim import __version__

    entry = make_entry(summaries[0], kept, runs[0].divergence, len(runs), __version__, was)
    result = FileResult(
        file,
        scenario.name,
        checks=tuple(found),
        reasons=tuple(why),
        notes=tuple(notes),
        wall_s=sum(r.wall_s for r in runs),
    )
    return result, entry


def standing_reasons(summary: Mapping[str, Any], divergence: Sequence[Mapping[str, Any]]) -> list[str]:
    """Without a baseline to compare with: where most is lost now."""
    prompt = max(int(summary["prompt_tokens"]), 1)
    out = [p["sentence"] for p in divergence if p["lost_tokens"] * 1000 >= prompt][:3]
    for name, part in summary["engines"].items():
        ledger = part.get("ledger")
        if ledger:
            lost = sorted(
                ((v, k) for k, v in ledger.items() if not k.startswith("hit_") and k != "new" and v), reverse=True
            )
            if lost and lost[0][0] * 1000 >= prompt:
                words = ", ".join(f"`{k}` {v:,} tokens ({100 * v / prompt:.1f} %)" for v, k in lost[:3])
                out.append(f"{name} loses most to {words}")
    return out


def values_of(summaries: Sequence[Mapping[str, Any]], metric: str) -> list[float] | None:
    """The metric in every run; None where a run has no value for it."""
    values = [metrics.lookup(s, metric) for s in summaries]
    return None if any(v is None for v in values) else [float(v) for v in values if v is not None]


def unknown(summary: Mapping[str, Any], metric: str) -> str | None:
    """Why a metric does not exist, with the nearest names; None where it does (with or without a value in this run)."""
    for root in (summary.get("engines", {}), summary):
        node: Any = root
        for part in metric.split("."):
            if not isinstance(node, Mapping) or part not in node:
                break
            node = node[part]
        else:
            if node is None or isinstance(node, bool | int | float):
                return None
            if isinstance(node, Mapping):
                inside = [f"{metric}.{n}" for n in metrics.names(node)]
                return f"'{metric}' is a group of metrics, not one{nearest(metric + '.', inside)}"
    return f"unknown metric '{metric}'{nearest(metric, metrics.names(summary))}; `prefixsim check --metrics` lists all"


def expect(
    e: Expect, summaries: Sequence[Mapping[str, Any]], line: int | None = None, column: int | None = None
) -> CheckResult:
    """Tests one entry on the mean over the runs. With several runs it fails only where the whole 95 % confidence interval is
    on the wrong side, so that chance does not fail a gate."""
    values = values_of(summaries, e.metric)
    wanted = wanted_text(e)
    if values is None:
        return CheckResult(e.metric, "expect", False, "without a value in this run", wanted, line, column)
    mean, half = metrics.mean_interval(values)
    ok = all(low - half <= mean <= high + half for low, high in bounds(e))
    return CheckResult(
        metric=e.metric,
        kind="expect",
        ok=ok,
        found=spelt(mean) if isinstance(e.equals, bool) and mean in (0, 1) else with_interval(mean, half),
        wanted=wanted,
        line=line,
        column=column,
        values={"value": mean, "half_width": half, "runs": len(values)},
    )


def bounds(e: Expect) -> list[tuple[float, float]]:
    """Intervals the value must lie in, all of them."""
    out: list[tuple[float, float]] = []
    inf = float("inf")
    if e.at_least is not None:
        out.append((e.at_least, inf))
    if e.at_most is not None:
        out.append((-inf, e.at_most))
    if e.equals is not None:
        room = e.within if isinstance(e.within, float) else 0.0
        out.append((float(e.equals) - room, float(e.equals) + room))
    if isinstance(e.within, list):
        out.append((e.within[0], e.within[1]))
    return out


def wanted_text(e: Expect) -> str:
    """The condition in words."""
    words = []
    if e.at_least is not None:
        words.append(f"at least {number(e.at_least)}")
    if e.at_most is not None:
        words.append(f"at most {number(e.at_most)}")
    if e.equals is not None:
        value = str(e.equals).lower() if isinstance(e.equals, bool) else number(e.equals)
        words.append(value + (f" +- {number(e.within)}" if isinstance(e.within, float) else ""))
    if isinstance(e.within, list):
        words.append(f"from {number(e.within[0])} to {number(e.within[1])}")
    return " and ".join(words)
