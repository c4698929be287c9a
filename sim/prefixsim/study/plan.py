"""`prefixsim plan`: the highest rate a fleet sustains, or the cheapest fleet for a rate, under limits, with its cost.

Every shape and engine is searched once a seed, with the same seeds everywhere (common random numbers); the answer is the
mean over seeds with its 95 % interval. A run that is saturated (its queue grows) never passes, whatever its percentiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, PrefixsimError, Problem, ScenarioError, nearest
from prefixsim.scenario.models import Scenario, family
from prefixsim.scenario.study import Limit, PlanSpec
from prefixsim.study.executors import Executor
from prefixsim.study.grid import grid_size, points
from prefixsim.study.load import Study
from prefixsim.study.metrics import lookup, mean_interval
from prefixsim.study.points import Job, make_job, names_nothing, run_jobs
from prefixsim.study.search import FleetSearch, RateSearch
from prefixsim.study.store import PointStore
from prefixsim.workload.load import load_workload

Progress = Callable[[int, int], None]
MAX_SHAPES = 1000
CACHING_OFF = {"vllm": {"enable_prefix_caching": False}, "sglang": {"disable_radix_cache": True}}


@dataclass(slots=True)
class Answer:
    """One shape and engine. per_seed: the value found for each seed (None: none in the bounds). usd_per_hour: of the
    whole fleet; usd_per_million_tokens: prompt + output tokens at the answer. miss: how the best run missed, where none
    passes. at: summary numbers at the answer (first seed). kv_gradient: what one more GiB of KV cache a GPU changes."""

    shape: dict[str, Any]
    engine: str
    caching: bool
    per_seed: list[float | None] = field(default_factory=list)
    capped: bool = False
    usd_per_hour: float | None = None
    usd_per_million_tokens: float | None = None
    miss: str = ""
    error: str = ""
    short: str = ""
    at: dict[str, float] = field(default_factory=dict)
    kv_gradient: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """Mean over seeds; None where a seed found nothing."""
        found = [v for v in self.per_seed if v is not None]
        return mean_interval(found)[0] if found and len(found) == len(self.per_seed) else None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        found = [v for v in self.per_seed if v is not None]
        mean, half = mean_interval(found) if self.value is not None else (None, None)
        return {
            "shape": self.shape, "engine": self.engine, "prefix_caching": self.caching, "value": mean, "ci95": half,
            "per_seed": self.per_seed, "capped": self.capped, "usd_per_hour": self.usd_per_hour,
            "usd_per_million_tokens": self.usd_per_million_tokens, "miss": self.miss, "error": self.error, "not_steady": self.short,
            "at": self.at, "per_extra_gib_of_kv": self.kv_gradient,
        }  # fmt: skip


@dataclass(slots=True)
class _Hunt:
    """The search for one shape, engine, caching and seed."""

    answer: Answer
    repeat: int
    search: RateSearch | FleetSearch
    settings: dict[str, Any]
    trying: float = 0.0
    best_summary: dict[str, Any] | None = None
    last_miss: str = ""


def run_plan(
    study: Study[PlanSpec], executor: Executor, store: PointStore, progress: Progress | None = None
) -> list[Answer]:
    """Searches all shapes, engines and seeds; answers in the order of the file, caching first. Raises ScenarioError, before
    anything runs, for engines, keys and profiles that are not there."""
    spec = study.spec
    base = study.scenario({})
    names = spec.engines or [e.name for e in base.engines]
    unknown = [n for n in names if n not in {e.name for e in base.engines}]
    if unknown:
        message = f"the base has no engine {unknown[0]!r}{nearest(unknown[0], [e.name for e in base.engines])}"
        raise ScenarioError(Problem(message, file=str(study.file), key="engines"))
    if grid_size(spec.over, 1) > MAX_SHAPES:
        many = f"{grid_size(spec.over, 1):,} fleet shapes; a plan compares at most {MAX_SHAPES:,}"
        raise ScenarioError(Problem(many, file=str(study.file), key="over"))
    shapes = [point.axes for point in points(spec.over, (), 1, file=str(study.file))]
    wrong: dict[Problem, None] = {}
    for shape in shapes:
        try:
            study.scenario(shape)
        except InputError as exc:
            if names_nothing(exc):
                wrong.update(dict.fromkeys(exc.problems))
    if wrong:
        raise ScenarioError(list(wrong))
    answers: list[Answer] = []
    hunts: list[_Hunt] = []
    for shape, name, caching in itertools.product(shapes, names, (True, False)):
        if not caching and not spec.compare_without_caching:
            continue
        answer = Answer(shape, name, caching)
        answers.append(answer)
        kind = family(next(e for e in base.engines if e.name == name))
        off = {} if caching else {f"engines.{name}.{k}": v for k, v in CACHING_OFF[kind].items()}
        for repeat in range(spec.repeats):
            hunts.append(_Hunt(answer, repeat, _search(spec), {**shape, **off}))
    store.check()
    _hunt(study, hunts, executor, store, progress)
    for hunt in hunts:
        best = hunt.search.best
        hunt.answer.per_seed.append(None if best is None else float(best))
        hunt.answer.capped |= isinstance(hunt.search, RateSearch) and hunt.search.capped
        if best is None and not hunt.answer.miss:
            hunt.answer.miss = hunt.last_miss
    for hunt in hunts:
        if hunt.repeat == 0 and hunt.best_summary is not None and hunt.answer.value is not None:
            _describe(study, hunt)
    _gradients(study, [h for h in hunts if h.repeat == 0 and h.answer.caching and h.best_summary], executor, store)
    return answers


def _search(spec: PlanSpec) -> RateSearch | FleetSearch:
    if spec.find == "max_rate":
        return RateSearch(spec.rate[0], spec.rate[1], spec.tolerance)
    return FleetSearch(spec.replicas[0], spec.replicas[1])


def _job(study: Study[PlanSpec], hunt: _Hunt, value: float, more: dict[str, Any] | None = None) -> Job:
    spec = study.spec
    key = spec.rate_key if spec.find == "max_rate" else "replicas"
    keys = {**hunt.settings, key: value, **(more or {})}
    if spec.window_s is not None:
        keys["workload.requests"] = requests_in(study, keys, spec.window_s)
    first = study.scenario(keys, hunt.repeat)
    only = [e for e in first.engines if e.name == hunt.answer.engine]
    alone = first.model_copy(update={"engines": only, "expect": []})
    alone._base_dir = first.base_dir
    return make_job(alone)


def requests_in(study: Study[PlanSpec], keys: dict[str, Any], window_s: float) -> int:
    """Requests (all turns) of the sessions that start within `window_s`. Raises PrefixsimError without a rate."""
    arrivals = getattr(study.scenario(keys).workload, "arrivals", None)
    rate = getattr(arrivals, "rate_per_s", None)
    if not rate:
        raise PrefixsimError(f"{study.file}: window_s needs a workload with arrivals.rate_per_s")
    return max(math.ceil(rate * window_s * _requests_per_session(study)), 1)


def _requests_per_session(study: Study[PlanSpec]) -> float:
    """Mean turns of a session, counted in the base's own workload."""
    if study.file not in _TURNS:
        workload = load_workload(study.scenario({}).workload, base_dir=study.base.parent, seed=0)
        _TURNS[study.file] = workload.n / max(int((workload.after < 0).sum()), 1)
    return _TURNS[study.file]


_TURNS: dict[Path, float] = {}


def _run(jobs: list[Job], executor: Executor, store: PointStore) -> list[dict[str, Any] | str]:
    """Summaries (or error sentences) of jobs, those on disk reused."""
    out: dict[str, dict[str, Any] | str] = {}
    for job in jobs:
        kept = store.get(job.identity)
        if kept is not None:
            out[job.identity] = kept["summary"]
    todo = list({j.identity: j for j in jobs if j.identity not in out}.values())
    for outcome in run_jobs(executor, todo):
        identity = todo[outcome.index].identity
        if outcome.error is None:
            store.put(identity, outcome.value)
        out[identity] = outcome.value if outcome.error is None else outcome.error
    return [out[job.identity] for job in jobs]


def _hunt(
    study: Study[PlanSpec], hunts: list[_Hunt], executor: Executor, store: PointStore, progress: Progress | None
) -> None:
    """Rounds of evaluations, one for every search that is not done yet."""
    done = 0
    while True:
        active: list[_Hunt] = []
        jobs: list[Job] = []
        for hunt in hunts:
            value = None if hunt.answer.error else hunt.search.next_value()
            if value is None:
                continue
            try:
                jobs.append(_job(study, hunt, value))
            except PrefixsimError as exc:
                hunt.answer.error = str(exc)
                continue
            hunt.trying = value
            active.append(hunt)
        if not active:
            return
        for hunt, found in zip(active, _run(jobs, executor, store), strict=True):
            done += 1
            if isinstance(found, str):
                hunt.answer.error = hunt.answer.error or found
                continue
            missed = misses(study.spec.limits, hunt.answer.engine, found)
            if missed:
                hunt.last_miss = f"at {hunt.trying:.4g}: {missed}"
            else:
                hunt.best_summary = found
            if isinstance(hunt.search, RateSearch):
                hunt.search.tell(hunt.trying, not missed)
            else:
                hunt.search.tell(int(hunt.trying), not missed)
        if progress:
            progress(done, done + len(active))


def misses(limits: list[Limit], engine: str, summary: dict[str, Any]) -> str:
    """Why a run does not pass, "" when it does. A limit's metric is the engine's ("ttft_s.p99") or any of the summary."""
    said = []
    part = summary["engines"][engine]
    if part.get("saturated"):
        said.append(f"the queue grows ({part.get('saturation_note') or 'saturated'})")
    if part.get("rejected"):
        said.append(f"{part['rejected']} requests are rejected")
    for limit in limits:
        value = lookup(summary, f"{engine}.{limit.metric}")
        if value is None:
            value = lookup(summary, limit.metric)
        if value is None:
            raise PrefixsimError(f"limits: there is no metric {limit.metric!r} in the results of {engine}")
        if limit.at_most is not None and value > limit.at_most:
            said.append(f"{limit.metric} is {value:.4g}, {value - limit.at_most:.3g} above {limit.at_most:g}")
        if limit.at_least is not None and value < limit.at_least:
            said.append(f"{limit.metric} is {value:.4g}, {limit.at_least - value:.3g} below {limit.at_least:g}")
    return "; ".join(said)


def _describe(study: Study[PlanSpec], hunt: _Hunt) -> None:
    """Numbers at the answer, and money where a price is known."""
    summary, answer, spec = hunt.best_summary, hunt.answer, study.spec
    assert summary is not None
    for metric in (
        "hit_rate",
        "ttft_s.p99",
        "itl_s.p99",
        "output_tokens_per_s",
        "prompt_tokens_per_s",
        "kv_usage_peak",
    ):
        value = lookup(summary, f"{answer.engine}.{metric}")
        if value is not None:
            answer.at[metric] = value
    answer.short = short_window(study, hunt, summary)
    price = replica_price(spec, summary)
    if price is None:
        return
    answer.usd_per_hour = price * float(summary.get("replicas") or 1)
    tokens = sustained_tokens_per_s(study, hunt, summary)
    if tokens > 0:
        answer.at["tokens_per_s"] = tokens
        answer.usd_per_million_tokens = answer.usd_per_hour / 3600.0 / tokens * 1e6


def sustained_tokens_per_s(study: Study[PlanSpec], hunt: _Hunt, summary: dict[str, Any]) -> float:
    """Prompt + output tokens a second in steady state: sessions that start a second x tokens of a session. A run's own
    throughput counts the time in which its last sessions run out, which says nothing about a fleet that goes on."""
    rate, workload = _rate(study, hunt, hunt.answer.value), summary["workload"]
    if rate and workload.get("sessions"):
        return float(rate) * (workload["prompt_tokens"] + workload["output_tokens"]) / workload["sessions"]
    part = summary["engines"][hunt.answer.engine]
    return float(part["prompt_tokens_per_s"] or 0) + float(part["output_tokens_per_s"] or 0)


def _rate(study: Study[PlanSpec], hunt: _Hunt, highest: float | None) -> float | None:
    """Sessions a second at the answer, `highest` being the rate that a search for one found; None without a rate."""
    key = study.spec.rate_key if study.spec.find == "max_rate" else "replicas"
    value = highest if study.spec.find == "max_rate" else hunt.search.best
    arrivals = getattr(study.scenario({**hunt.settings, key: value}, hunt.repeat).workload, "arrivals", None)
    return getattr(arrivals, "rate_per_s", None)


def short_window(study: Study[PlanSpec], hunt: _Hunt, summary: dict[str, Any]) -> str:
    """A warning where sessions arrive for less than half of the simulated time: no steady state was reached."""
    rate = _rate(study, hunt, hunt.search.best)  # of this very run: the answer is a mean over seeds
    sessions, lasts = summary["workload"].get("sessions"), summary["engines"][hunt.answer.engine].get("duration_s")
    if not rate or not sessions or not lasts or sessions / rate >= lasts / 2:
        return ""
    return (
        f"sessions arrive for {sessions / rate:.0f} s of the {lasts:.0f} s simulated: that is no steady state, and the true "
        "limit is lower; give the plan a longer window_s"
    )


def replica_price(spec: PlanSpec, summary: dict[str, Any]) -> float | None:
    """US dollars an hour of one replica: the study's price for its GPU, else the profile's; None where none is known."""
    hardware = summary.get("hardware") or {}
    gpu = hardware.get("gpu")
    gpu_name = gpu.get("name") if isinstance(gpu, dict) else gpu
    if gpu_name in spec.prices:
        return spec.prices[gpu_name].usd_per_hour * int(hardware.get("tensor_parallel_size") or 1)
    price = hardware.get("usd_per_replica_hour")
    return float(price) if isinstance(price, int | float) else None


def kv_bytes_per_token(scenario: Scenario) -> float | None:
    """Bytes of KV cache a token takes on each GPU of a replica; None without hardware."""
    from prefixsim.hardware.load import load_hardware

    spec = scenario.replica_groups[0].hardware or scenario.hardware
    return None if spec is None else float(load_hardware(spec, base_dir=scenario.base_dir).kv_bytes_per_token)


def _gradients(study: Study[PlanSpec], hunts: list[_Hunt], executor: Executor, store: PointStore) -> None:
    """What one more GiB of KV cache a GPU is worth at the answer: finite difference of one re-run."""
    jobs, meant = [], []
    for hunt in hunts:
        summary, answer = hunt.best_summary, hunt.answer
        assert summary is not None
        replica = summary["engines"][answer.engine]["replicas"][0]
        per_token = kv_bytes_per_token(study.scenario(hunt.settings, hunt.repeat))
        if per_token is None or hunt.search.best is None:
            continue
        more = int((1 << 30) // per_token)
        capacity = int(replica["capacity_tokens"]) + more
        kind = family(summary["engines"][answer.engine])
        granularity = int(replica["granularity"])
        key = "num_gpu_blocks_override" if kind == "vllm" else "max_total_tokens"
        size = capacity // granularity + 1 if kind == "vllm" else capacity
        try:
            jobs.append(_job(study, hunt, hunt.search.best, {f"engines.{answer.engine}.{key}": size}))
        except PrefixsimError:
            continue
        meant.append(hunt)
    for hunt, found in zip(meant, _run(jobs, executor, store), strict=True):
        if isinstance(found, str):
            continue
        for metric in ("hit_rate", "ttft_s.p99", "cached_tokens"):
            before = lookup(hunt.best_summary or {}, f"{hunt.answer.engine}.{metric}")
            after = lookup(found, f"{hunt.answer.engine}.{metric}")
            if before is not None and after is not None:
                hunt.answer.kv_gradient[metric] = after - before
