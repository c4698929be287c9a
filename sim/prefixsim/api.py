"""The Python interface: `import prefixsim as ps`. The names in `__all__` are stable; everything else is private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from prefixsim.errors import InputError, MissingExtraError, nearest
from prefixsim.pipeline.run import Run as _Run
from prefixsim.pipeline.run import run_scenario
from prefixsim.records import LEDGER_PARTS, REQUEST_COLUMNS
from prefixsim.scenario.load import load_scenario as _load
from prefixsim.scenario.load import scenario_from
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.strict_yaml import Document

__all__ = ["EngineResult", "Run", "Scenario", "ceilings", "curve", "load_scenario", "run"]


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's results.

    name, kind: as in the scenario. hit_rate: cached / prompt tokens at first admission, a share. prompt_tokens,
    cached_tokens, evicted_tokens: tokens. requests, rejected, preemptions: counts. ttft_s, itl_s, e2e_s: {"p50", "p90",
    "p99", "mean"} in seconds. ledger: tokens by cause, summing to prompt_tokens; {} where contents are not known.
    """

    name: str
    kind: str
    summary: Mapping[str, Any]

    @property
    def hit_rate(self) -> float:
        """Cached / prompt tokens at first admission."""
        return float(self.summary["hit_rate"])

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of admitted requests."""
        return int(self.summary["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Of these, served from cache."""
        return int(self.summary["cached_tokens"])

    @property
    def ledger(self) -> dict[str, int]:
        """Tokens by cause."""
        return {k: int(v) for k, v in self.summary.get("ledger", {}).items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.summary[name]
        except KeyError:
            raise AttributeError(f"{name}{nearest(name, self.summary)}") from None


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    >>> import prefixsim as ps
    >>> done = ps.run("quickstart", set={"workload.requests": 50})
    >>> sorted(done.engines)
    ['sglang', 'vllm']
    >>> vllm = done.engines["vllm"]
    >>> sum(vllm.ledger.values()) == vllm.prompt_tokens
    True
    >>> int(done.requests("vllm")["cached_tokens"].sum()) == vllm.cached_tokens
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

    def requests(self, engine: str) -> npt.NDArray[np.void]:
        """One row a request, a structured array: `prompt_tokens`, `output_tokens`, the columns of
        `prefixsim.records.REQUEST_COLUMNS` (int64; times in ns, -1: never) and, where contents are known, the ledger's
        parts in tokens. Raises InputError for an unknown engine."""
        names = [r.engine for r in self._run.records]
        if engine not in names:
            raise InputError(f"no engine {engine!r} in this run{nearest(engine, names)}")
        i = names.index(engine)
        rows, parts, workload = self._run.records[i].requests, self._run.ledgers[i], self._run.workload
        columns = [c for c in REQUEST_COLUMNS if c != "spare"]
        fields = ["prompt_tokens", "output_tokens", *columns, *(LEDGER_PARTS if parts is not None else ())]
        out = np.zeros(workload.n, dtype=[(f, np.int64) for f in fields])
        out["prompt_tokens"], out["output_tokens"] = workload.prompt_tokens, workload.output_tokens
        for k, name in enumerate(REQUEST_COLUMNS):
            if name in columns:
                out[name] = rows[:, k]
        if parts is not None:
            for k, name in enumerate(LEDGER_PARTS):
                out[name] = parts[:, k]
        return out

    def frame(self, engine: str) -> Any:
        """`requests` as a pandas DataFrame with request ids as index. Raises MissingExtraError without pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("a DataFrame", "pandas") from None
        ids = [self._run.workload.request_id(i) for i in range(self._run.workload.n)]
        return pd.DataFrame(self.requests(engine), index=pd.Index(ids, name="id"))


def load_scenario(source: str | Path | Mapping[str, Any], *, set: Mapping[str, Any] | None = None) -> Scenario:
    """A validated scenario from a file, a shipped name or a mapping in the form of the YAML file.

    set: keys to override, e.g. {"engines.vllm.block_size": 32}. Raises ScenarioError naming file, line and key.

    >>> import prefixsim as ps
    >>> ps.load_scenario("quickstart", set={"engines.vllm.block_size": 32}).engines[0].block_size
    32
    """
    if isinstance(source, Mapping):
        return scenario_from(Document(dict(source), {}, {}, "scenario"), Path.cwd(), set)
    return _load(source, set)


def run(
    source: str | Path | Mapping[str, Any] | Scenario,
    *,
    set: Mapping[str, Any] | None = None,
    engines: Sequence[str] | None = None,
    out: str | Path | None = None,
) -> Run:
    """Runs a scenario and returns its results; writes a run folder only where `out` says so.

    source: file, shipped name, mapping or `Scenario`. set: keys to override. engines: only these. Raises PrefixsimError.

    >>> import prefixsim as ps
    >>> done = ps.run("quickstart", set={"workload.requests": 50}, engines=["vllm"])
    >>> 0 < done.engines["vllm"].hit_rate <= done.ceiling["16"]
    True
    """
    if isinstance(source, Scenario):
        if set:
            raise InputError("set: overrides go to `load_scenario()`, this one is finished")
        ready = source
    else:
        ready = load_scenario(source, set=set)
    folder = Path(out) if out is not None else None
    return Run(run_scenario(ready, engines=engines, out=folder, write=folder is not None))


def ceilings(
    source: str | Path, *, granularities: Sequence[int] = (1, 16), format: str | None = None
) -> dict[int, float]:
    """Share of prompt tokens that an infinite cache could serve, by granularity in tokens, of a scenario or trace file.

    Raises NotModelledError for a trace without contents.

    >>> import prefixsim as ps
    >>> shares = ps.ceilings("quickstart", granularities=(1, 256))
    >>> 1 > shares[1] >= shares[256] > 0
    True
    """
    from prefixsim.analysis.ceilings import ceilings as compute
    from prefixsim.analysis.inputs import load_input

    loaded = load_input(str(source), format=format)
    found = compute(loaded.workload, tuple(granularities), rule=loaded.rule)
    shares = {}
    for g in granularities:
        hit, prompt = found.total(g)
        shares[g] = hit / prompt
    return shares


def curve(
    source: str | Path, *, granularity: int = 16, policy: Literal["lru", "optimal"] = "lru", format: str | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Hit tokens of an ideal cache by capacity: (capacities in blocks, hit tokens), int64, ascending.

    policy: "lru" (exact, all capacities) or "optimal" (an upper bound for any prefix cache of that granularity).

    >>> import prefixsim as ps
    >>> blocks, hits = ps.curve("quickstart", granularity=64)
    >>> bool((hits[1:] >= hits[:-1]).all())
    True
    """
    from prefixsim.analysis.curve_report import curve_entry
    from prefixsim.analysis.curves import curves
    from prefixsim.analysis.inputs import load_input

    loaded = load_input(str(source), format=format)
    (found,) = curves(loaded.workload, (granularity,), policies=(policy,), rule=loaded.rule)
    points = np.array(curve_entry(found, None)["points"], dtype=np.int64).reshape(-1, 2)
    return points[:, 0].copy(), points[:, 1].copy()
