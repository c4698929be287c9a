"""The Python interface: `import prefixsim as ps`. The names in `__all__` are stable; everything else is private."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError, MissingExtraError, PrefixsimError, nearest
from prefixsim.pipeline.prepare import Library
from prefixsim.pipeline.run import Run as _Run
from prefixsim.pipeline.run import run_scenario
from prefixsim.records import LEDGER_PARTS, REQUEST_COLUMNS, SHOWN_COLUMNS, TIMELINE_COLUMNS
from prefixsim.scenario.load import load_scenario as _load
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.models import Scenario, rule_of
from prefixsim.scenario.strict_yaml import Document
from prefixsim.study import metrics

if TYPE_CHECKING:
    from prefixsim.workload.intern import NamespaceRule
    from prefixsim.workload.table import Workload

__all__ = [
    "EngineResult",
    "PrefixsimError",
    "Run",
    "Scenario",
    "SweepPoint",
    "ceilings",
    "curve",
    "load_scenario",
    "run",
    "sweep",
]
Source = str | Path | Mapping[str, Any] | Scenario
"""A scenario: its file, the name of a shipped one, a mapping in the form of the YAML file, or a finished `Scenario`."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's results. Besides the properties below, every key of the engine in `summary.json` is an attribute.

    >>> import prefixsim as ps
    >>> vllm = ps.run("quickstart", set={"workload.requests": 50}).engines["vllm"]
    >>> vllm.cached_tokens / vllm.prompt_tokens == vllm.hit_rate
    True
    >>> sum(vllm.ledger.values()) == vllm.prompt_tokens
    True
    >>> vllm.ttft_s["p50"] <= vllm.ttft_s["p99"]
    True
    """

    name: str
    """Name in the scenario."""
    kind: str
    """E.g. "vllm@0.33"."""
    summary: Mapping[str, Any] = field(repr=False)
    """The engine's part of summary.json."""

    @property
    def hit_rate(self) -> float:
        """Cached / prompt tokens at first admission, a share."""
        return float(self.summary["hit_rate"])

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of admitted requests."""
        return int(self.summary["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Of these, served from cache, all tiers."""
        return int(self.summary["cached_tokens"])

    @property
    def ledger(self) -> dict[str, int]:
        """Where every prompt token went: tokens by cause, summing to `prompt_tokens`; {} where contents are not known."""
        return {k: int(v) for k, v in self.summary.get("ledger", {}).items()}

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The same numbers by group (template, mix part): {"support": {"hit_rate": ..., "prompt_tokens": ..., ...}, ...}."""
        return dict(self.summary.get("groups", {}))

    @property
    def ttft_s(self) -> dict[str, float]:
        """Time to first token, seconds: "mean", "p50", "p90", "p99"."""
        return dict(self.summary["ttft_s"])

    @property
    def itl_s(self) -> dict[str, float]:
        """Gaps between output tokens, seconds: "mean", "p50", "p90", "p99"."""
        return dict(self.summary["itl_s"])

    @property
    def e2e_s(self) -> dict[str, float]:
        """Release to last token, seconds: "mean", "p50", "p90", "p99"."""
        return dict(self.summary["e2e_s"])

    @property
    def saturated(self) -> bool:
        """The queue grew until the end: latencies then depend on how long the run lasts."""
        return bool(self.summary["saturated"])

    def __getattr__(self, name: str) -> Any:
        try:
            return self.summary[name]
        except KeyError:
            raise AttributeError(f"{name}{nearest(name, self.summary)}") from None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}: {self.hit_rate:.1%} of {self.prompt_tokens:,} prompt tokens cached>"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    >>> import prefixsim as ps
    >>> done = ps.run("quickstart", set={"workload.requests": 50})
    >>> sorted(done.engines)
    ['sglang', 'vllm']
    >>> done.metric("vllm.hit_rate") == done.engines["vllm"].hit_rate <= done.ceiling["16"]
    True
    >>> rows = done.requests("vllm")
    >>> int(rows["cached_tokens"].sum()) == done.engines["vllm"].cached_tokens
    True
    """

    _run: _Run

    @property
    def run_id(self) -> str:
        """SHA-256 (hex) of everything that decides the result."""
        return self._run.run_id

    @property
    def summary(self) -> dict[str, Any]:
        """The same data as summary.json."""
        return self._run.summary

    @property
    def ceiling(self) -> dict[str, float]:
        """Shares an infinite cache could serve, by granularity: "token", "16", ..."""
        return dict(self._run.summary["ceiling"])

    @property
    def folder(self) -> Path | None:
        """The run folder, None where nothing was written."""
        return self._run.folder

    @property
    def engines(self) -> dict[str, EngineResult]:
        """Results by engine name, in the scenario's order."""
        return {
            r.engine: EngineResult(r.engine, r.kind, self._run.summary["engines"][r.engine]) for r in self._run.records
        }

    def metric(self, name: str) -> float:
        """A number by the name it has in `expect:` entries: "vllm.ttft_s.p99", "ceiling.token"; true is 1.

        Raises InputError with the nearest name for an unknown one."""
        value = metrics.lookup(self.summary, name)
        if value is None:
            raise InputError(f"no metric {name!r} in this run{nearest(name, metrics.names(self.summary))}")
        return float(value)

    def _index(self, engine: str) -> int:
        names = [r.engine for r in self._run.records]
        if engine not in names:
            raise InputError(f"no engine {engine!r} in this run{nearest(engine, names)}")
        return names.index(engine)

    def requests(self, engine: str) -> npt.NDArray[np.void]:
        """One row a request, a structured array: `prompt_tokens`, `output_tokens`, the columns of
        `prefixsim.records.SHOWN_COLUMNS` (int64; times in ns, -1: never) and, where contents are known, the ledger's
        parts in tokens. Raises InputError for an unknown engine."""
        i = self._index(engine)
        rows, parts, workload = self._run.records[i].requests, self._run.ledgers[i], self._run.workload
        fields = ["prompt_tokens", "output_tokens", *SHOWN_COLUMNS, *(LEDGER_PARTS if parts is not None else ())]
        out = np.zeros(workload.n, dtype=[(f, np.int64) for f in fields])
        out["prompt_tokens"], out["output_tokens"] = workload.prompt_tokens, workload.output_tokens
        for k, name in enumerate(REQUEST_COLUMNS):
            if name in SHOWN_COLUMNS:
                out[name] = rows[:, k]
        if parts is not None:
            for k, name in enumerate(LEDGER_PARTS):
                out[name] = parts[:, k]
        return out

    def timeline(self, engine: str, *, replica: int = 0) -> npt.NDArray[np.void]:
        """One row an engine step (of long runs, several steps a row), a structured array of int64 with the columns of
        `timeline.csv`: `start_ns`, `end_ns`, `running`, `waiting`, `kv_used_tokens`, cumulative `evicted_tokens`, ...
        Raises InputError for an unknown engine or replica."""
        replicas = self._run.records[self._index(engine)].replicas
        if not 0 <= replica < len(replicas):
            raise InputError(f"no replica {replica} in this run: there are {len(replicas)}, counted from 0")
        rows = np.ascontiguousarray(replicas[replica].timeline, dtype=np.int64)
        out = np.zeros(len(rows), dtype=[(name, np.int64) for name in TIMELINE_COLUMNS])
        for k, name in enumerate(TIMELINE_COLUMNS):
            out[name] = rows[:, k]
        return out

    def __repr__(self) -> str:
        served = ", ".join(f"{name} {e.hit_rate:.1%}" for name, e in self.engines.items())
        ceiling = self.summary.get("ceiling") or {}
        most = f"; ceiling {ceiling['token']:.1%}" if ceiling.get("token") is not None else ""
        return f"<Run {self.summary['name']}: {served}{most}>"

    def frame(self, engine: str) -> Any:
        """`requests` as a pandas DataFrame with request ids as index. Raises MissingExtraError without pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("a DataFrame", "pandas") from None
        ids = [self._run.workload.request_id(i) for i in range(self._run.workload.n)]
        return pd.DataFrame(self.requests(engine), index=pd.Index(ids, name="id"))


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a sweep. axes: the keys that were set, with their values."""

    axes: dict[str, Any]
    run: Run


def load_scenario(source: Source, *, set: Mapping[str, Any] | None = None) -> Scenario:
    """A validated scenario from a file, a shipped name or a mapping in the form of the YAML file.

    set: keys to override, e.g. {"engines.vllm.block_size": 32}. Raises ScenarioError naming file, line and key.

    >>> import prefixsim as ps
    >>> ps.load_scenario("quickstart", set={"engines.vllm.block_size": 32}).engines[0].block_size
    32
    """
    if isinstance(source, Scenario):
        if set:
            raise InputError("set: a finished Scenario is not changed; give the file, name or mapping it was made from")
        return source
    if isinstance(source, Mapping):
        return scenario_from(Document(_plain(source), {}, {}, "scenario"), Path.cwd(), _plain(set))
    return _load(source, _plain(set))


def _plain(value: Any) -> Any:
    """Mappings, sequences and NumPy numbers as plain dicts, lists and numbers; nothing of the caller's is changed later."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def run(
    source: Source,
    *,
    set: Mapping[str, Any] | None = None,
    engines: str | Sequence[str] | None = None,
    out: str | Path | None = None,
) -> Run:
    """Runs a scenario and returns its results; writes a run folder (report.html and all) only where `out` says so.

    source: file, shipped name, mapping or `Scenario`. set: keys to override. engines: only these. Raises PrefixsimError.

    >>> import prefixsim as ps
    >>> done = ps.run("quickstart", set={"workload.requests": 50}, engines=["vllm"])
    >>> 0 < done.engines["vllm"].hit_rate <= done.ceiling["16"]
    True
    """
    folder = Path(out) if out is not None else None
    ready = load_scenario(source, set=set)
    return Run(run_scenario(ready, engines=_names(engines), out=folder, write=folder is not None))


def _names(engines: str | Sequence[str] | None) -> list[str] | None:
    return [engines] if isinstance(engines, str) else None if engines is None else list(engines)


def sweep(
    source: Source,
    axes: Mapping[str, Sequence[Any]],
    *,
    set: Mapping[str, Any] | None = None,
    engines: str | Sequence[str] | None = None,
) -> list[SweepPoint]:
    """Runs every combination of the axes' values in this process, the last axis fastest; keeps all runs in memory.

    axes: key -> values, e.g. {"engines.vllm.block_size": [16, 64]}. A workload that points share is read once. `prefixsim sweep`
    is for large grids: several processes, results on disk, resumable. Raises PrefixsimError at the first point that cannot run.

    >>> import prefixsim as ps
    >>> sizes = {"engines.vllm.block_size": [16, 64]}
    >>> points = ps.sweep("quickstart", sizes, set={"workload.requests": 50}, engines="vllm")
    >>> [p.axes for p in points]
    [{'engines.vllm.block_size': 16}, {'engines.vllm.block_size': 64}]
    >>> points[0].run.metric("vllm.hit_rate") > points[1].run.metric("vllm.hit_rate")
    True
    """
    if isinstance(source, Scenario):
        raise InputError("sweep: a finished Scenario is not changed; give the file, name or mapping it was made from")
    for key, values in axes.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise InputError(f"sweep: {key}: found {values!r:.80}, expected a list of values")
    library, points = Library(keep=2), []
    for values in itertools.product(*axes.values()):
        chosen = _plain(dict(zip(axes, values, strict=True)))
        ready = load_scenario(source, set={**(set or {}), **chosen})
        points.append(SweepPoint(chosen, Run(run_scenario(ready, engines=_names(engines), library=library))))
    return points


def _workload(source: Source, set: Mapping[str, Any] | None, format: str | None) -> tuple[Workload, NamespaceRule]:
    """The workload of a scenario or trace, from an empty cache, and whose namespaces count."""
    from prefixsim.analysis.inputs import is_scenario, load_input
    from prefixsim.workload.load import load_workload

    if isinstance(source, Mapping | Scenario) or is_scenario(str(source)):
        if format is not None:
            raise InputError("format: for a trace file; a scenario says it in workload.trace.format")
        scenario = load_scenario(source, set=set)
        workload = load_workload(scenario.workload, base_dir=scenario.base_dir, seed=scenario.seed)
        return workload, rule_of(scenario.engines[0])
    if set:
        raise InputError("set: for a scenario; this is a trace")
    loaded = load_input(str(source), format=format)
    return loaded.workload, loaded.rule


def _whole(name: str, values: Sequence[int]) -> None:
    for value in values:
        if not isinstance(value, int | np.integer) or not 1 <= value <= 1 << 20:
            raise InputError(f"{name}: tokens of a block, 1 to {1 << 20:,}; found {value!r}")


def ceilings(
    source: Source,
    *,
    granularities: Sequence[int] = (1, 16),
    set: Mapping[str, Any] | None = None,
    format: str | None = None,
) -> dict[int, float]:
    """Share of prompt tokens that an infinite cache could serve, by granularity in tokens, of a scenario or trace file.

    set: keys of the scenario to override. format: of a trace; default: by evidence. Raises NotModelledError for a trace without
    contents, InputError for a granularity below 1.

    >>> import prefixsim as ps
    >>> shares = ps.ceilings("quickstart", granularities=(1, 256))
    >>> 1 > shares[1] >= shares[256] > 0
    True
    """
    from prefixsim.analysis.ceilings import ceilings as compute

    _whole("granularities", granularities)
    workload, rule = _workload(source, set, format)
    found = compute(workload, tuple(granularities), rule=rule)
    shares = {}
    for g in granularities:
        hit, prompt = found.total(g)
        shares[g] = hit / prompt
    return shares


def curve(
    source: Source,
    *,
    granularity: int = 16,
    policy: Literal["lru", "optimal"] = "lru",
    set: Mapping[str, Any] | None = None,
    format: str | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Hit tokens of an ideal cache by capacity: (capacities in blocks, hit tokens), int64, ascending.

    policy: "lru" (exact, all capacities) or "optimal" (an upper bound for any prefix cache of that granularity). set, format, errors:
    as `ceilings`.

    >>> import prefixsim as ps
    >>> blocks, hits = ps.curve("quickstart", granularity=64)
    >>> bool((hits[1:] >= hits[:-1]).all())
    True
    """
    from prefixsim.analysis.curve_report import curve_entry
    from prefixsim.analysis.curves import curves

    _whole("granularity", [granularity])
    if policy not in ("lru", "optimal"):
        raise InputError(f"policy: unknown {policy!r}{nearest(str(policy), ['lru', 'optimal'])}")
    workload, rule = _workload(source, set, format)
    (found,) = curves(workload, (granularity,), policies=(policy,), rule=rule)
    points = np.array(curve_entry(found, None)["points"], dtype=np.int64).reshape(-1, 2)
    return points[:, 0].copy(), points[:, 1].copy()
