"""One scenario from file to records: the only way in. The command line, studies, checks and the Python interface call this."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prefixsim.analysis.run_files import run_files
from prefixsim.hardware.load import Hardware
from prefixsim.jit import compile_seconds
from prefixsim.output.folder import check_target
from prefixsim.output.run_folder import write_run
from prefixsim.pipeline import warm_start
from prefixsim.pipeline.prepare import (
    Library,
    Prepared,
    granularity_of,
    pick_engines,
    prepare,
    replica_hardware,
    rule_of,
)
from prefixsim.pipeline.save_cache import check_saving, write_cache
from prefixsim.pipeline.simulate import simulate
from prefixsim.pipeline.summarise import provenance, summarise
from prefixsim.records import I64, RunRecord
from prefixsim.scenario.identity import resolved_yaml, run_identity
from prefixsim.scenario.models import Scenario
from prefixsim.workload.table import Workload

Say = Callable[[str], None]
Share = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. summary: as in summary.json. records and ledgers (int64 (n, 11), None for lengths-only traces): one
    an engine. folder: None where nothing was written."""

    scenario: Scenario
    run_id: str
    summary: dict[str, Any]
    records: tuple[RunRecord, ...]
    ledgers: tuple[I64 | None, ...]
    workload: Workload
    folder: Path | None = None


def run_scenario(
    scenario: Scenario,
    *,
    engines: Sequence[str] | None = None,
    library: Library | None = None,
    out: Path | None = None,
    write: bool = False,
    say: Say | None = None,
    share: Share | None = None,
    save_cache: Path | None = None,
) -> Run:
    """Runs a scenario's engines, one after another, over its whole workload.

    engines: names of those to run (default: all). library: shares read and interned workloads between runs. write: write
    the run folder, to `out` or runs/<name>-<run id>. say: told what is going on; share: how many
    of how many requests have arrived. save_cache: file for what the engine's caches hold at the end (one engine only).
    Raises PrefixsimError.
    """
    tell = say or (lambda _: None)
    library = library or Library(keep=1)
    with compile_seconds() as compiled:
        if out is not None and write:
            check_target(out)
        chosen = pick_engines(scenario, list(engines or []))
        hardware = replica_hardware(scenario)
        tell(f"{scenario.name}: reading the workload")
        if save_cache is not None:
            check_saving(scenario, chosen, save_cache)
        prepared = library.get(scenario) if save_cache is None else prepare(scenario, named=True)
        warm_start.check_replicas(prepared, scenario.n_replicas)
        clock = _Clock(prepared, compiled)
        run_id = identity(scenario, prepared.workload, hardware)
        if len(chosen) < len(scenario.engines):
            run_id = hashlib.sha256(f"{run_id} {[e.name for e in chosen]}".encode()).hexdigest()
        report = None if share is None else partial(share, total=prepared.workload.n)
        save = None if save_cache is None else partial(write_cache, save_cache)

        def run_one(engine: Any, from_ns: int) -> RunRecord:
            with clock.phase("run"):
                return simulate(scenario, engine, prepared, hardware, report, from_ns=from_ns, save=save)

        records, counted = warm_start.run_all(scenario, prepared, chosen, run_one, tell)
        tell(f"{scenario.name}: analysis")
        with clock.phase("analysis"):
            summary, ledgers = summarise(scenario, chosen, records, prepared, hardware, run_id, counted)
            if counted is not None:
                records = [warm_start.cut(r, counted, prepared) for r in records]
        summary["timing_s"] = clock.seconds()
        summary["provenance"] = provenance({r.engine: r.events for r in records})
    workload = prepared.workload if counted is None else counted.workload
    run = Run(scenario, run_id, summary, tuple(records), tuple(ledgers), workload)
    if not write:
        return run
    folder = out or Path("runs") / f"{scenario.name}-{run_id[:12]}"
    tell(f"{scenario.name}: writing {folder}")
    files = {}
    if scenario.output.report:
        rule = rule_of(chosen[0])
        sizes = [granularity_of(o) for o in chosen]
        shown = prepared if counted is None else Prepared(workload)
        files = run_files(workload, sizes, rule, trie=shown.trie(rule), segments=shown.segments(rule))
    write_run(folder, run, resolved_yaml(scenario), files)
    return Run(scenario, run_id, summary, run.records, run.ledgers, run.workload, folder)


def identity(scenario: Scenario, workload: Workload, hardware: Sequence[Hardware | None]) -> str:
    """The run identity, SHA-256 hex: scenario, workload content, content of the profiles."""
    profiles = [hw.provenance() for hw in dict.fromkeys(h for h in hardware if h is not None)]
    digest = hashlib.sha256(json.dumps(profiles, sort_keys=True, default=str).encode()).hexdigest() if profiles else ""
    return run_identity(scenario, workload.source.sha256, digest)


class _Clock:
    """Wall seconds by phase; compiling and interning, wherever they fall, are taken out and reported apart."""

    def __init__(self, prepared: Prepared, compiled: Callable[[], float]) -> None:
        self.prepared, self.compiled = prepared, compiled
        self.spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to a phase."""
        since, before = time.perf_counter(), self._elsewhere()
        yield
        took = time.perf_counter() - since - (self._elsewhere() - before)
        self.spent[name] = self.spent.get(name, 0.0) + max(took, 0.0)

    def _elsewhere(self) -> float:
        return self.compiled() + self.prepared.seconds["intern"]

    def seconds(self) -> dict[str, float]:
        """read, intern, compile, run, analysis."""
        return {**self.prepared.seconds, "compile": self.compiled(), **self.spent}
