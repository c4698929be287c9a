"""One scenario from file to records: the only way in. The command line, studies, checks and the Python interface call this."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prefixsim.analysis.run_files import run_files
from prefixsim.hardware.load import Hardware
from prefixsim.jit import compile_seconds
from prefixsim.output.folder import check_target
from prefixsim.output.run_folder import write_run
from prefixsim.pipeline import warm_start
from prefixsim.pipeline.prepare import Library, Prepared, pick_engines, prepare, replica_hardware
from prefixsim.pipeline.save_cache import check_one_prefix, check_saving, write_cache
from prefixsim.pipeline.simulate import check_engines, simulate
from prefixsim.pipeline.size import check_size
from prefixsim.pipeline.summarise import provenance, summarise
from prefixsim.records import I64, RunRecord
from prefixsim.scenario.identity import resolved_yaml, run_identity
from prefixsim.scenario.models import Scenario, granularity_of, rule_of
from prefixsim.scenario.warm import SavedCache
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
        if write:
            check_target(out or Path("runs") / scenario.name, replaced=out is not None)
        chosen = pick_engines(scenario, engines)
        hardware = replica_hardware(scenario)
        if save_cache is not None or isinstance(scenario.prime, SavedCache):
            check_one_prefix(chosen, hardware)
        tell(f"{scenario.name}: reading the workload")
        if save_cache is not None:
            check_saving(scenario, chosen, save_cache)
        prepared = library.get(scenario) if save_cache is None else prepare(scenario, named=True)
        warm_start.check_replicas(prepared, scenario.n_replicas)
        check_size(scenario, chosen, prepared, len(hardware), tell)
        check_engines(scenario, chosen, prepared, hardware)
        clock = _Clock(prepared, compiled)
        report = None if share is None else partial(share, total=prepared.workload.n)
        save = None if save_cache is None else partial(write_cache, save_cache)
        finished: list[RunRecord] = []

        def run_one(engine: Any, from_ns: int) -> RunRecord:
            with clock.phase("run"):
                finished.append(simulate(scenario, engine, prepared, hardware, report, from_ns=from_ns, save=save))
            return finished[-1]

        job = _Job(scenario, prepared, hardware, clock, tell)
        try:
            records, counted = warm_start.run_all(scenario, prepared, chosen, run_one, tell)
        except BaseException:
            if write and finished and scenario.warm_up is None and prepared.primed is None:
                job.keep(chosen[: len(finished)], finished, out)
            raise
        run = job.conclude(chosen, records, counted)
    return job.write(run, chosen, counted, out) if write else run


@dataclass(frozen=True, slots=True)
class _Job:
    """What becomes of the records of a scenario's engines, of all or of some."""

    scenario: Scenario
    prepared: Prepared
    hardware: Sequence[Hardware | None]
    clock: _Clock
    tell: Say

    def conclude(self, chosen: Sequence[Any], records: list[RunRecord], counted: Any) -> Run:
        """The analysis."""
        scenario, prepared = self.scenario, self.prepared
        run_id = identity(scenario, prepared.workload, self.hardware)
        if len(chosen) < len(scenario.engines):
            run_id = hashlib.sha256(f"{run_id} {[e.name for e in chosen]}".encode()).hexdigest()
        self.tell(f"{scenario.name}: analysis")
        with self.clock.phase("analysis"):
            summary, ledgers = summarise(scenario, chosen, records, prepared, self.hardware, run_id, counted)
            if counted is not None:
                records = [warm_start.cut(r, counted, prepared) for r in records]
        summary["timing_s"] = self.clock.seconds()
        summary["provenance"] = provenance({r.engine: r.events for r in records})
        workload = prepared.workload if counted is None else counted.workload
        return Run(scenario, run_id, summary, tuple(records), tuple(ledgers), workload)

    def write(self, run: Run, chosen: Sequence[Any], counted: Any, out: Path | None) -> Run:
        """Writes the run folder; gives the run with its place."""
        folder = out or Path("runs") / f"{run.scenario.name}-{run.run_id[:12]}"
        self.tell(f"{run.scenario.name}: writing {folder}")
        files = {}
        if run.scenario.output.report:
            rule = rule_of(chosen[0])
            sizes = [granularity_of(o) for o in chosen]
            shown = self.prepared if counted is None else Prepared(run.workload)
            files = run_files(run.workload, sizes, rule, trie=shown.trie(rule), segments=shown.segments(rule))
        write_run(folder, run, resolved_yaml(run.scenario), files)
        return replace(run, folder=folder)

    def keep(self, chosen: Sequence[Any], records: list[RunRecord], out: Path | None) -> None:
        """What engines that had finished have found, where a later one was cut short or failed: as `--engine` would have
        it, beside `out`, never in its place."""
        names = [e.name for e in chosen]
        try:
            if out is not None:
                out = out.with_name(f"{out.name}-only-{'-'.join(names)}")
                check_target(out)
            run = self.write(self.conclude(chosen, records, None), chosen, None, out)
            self.tell(f"{run.scenario.name}: cut short; {', '.join(names)} had finished: {run.folder}")
        except Exception as exc:
            self.tell(f"{self.scenario.name}: what {', '.join(names)} had found could not be kept: {exc}")


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
