"""Mutation testing of the memory modules: `python tests/mutation/lane.py`. See docs/testing.md.

The tests of a target are collected once; each mutant is a forked child that puts one mutated function into place and runs
them until the first failure. Which mutants are run, and in what order, depends on the seed and the names alone. Results are
kept under build/mutation while the target's sources and tests stay as they are, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import resource
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from types import CodeType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "sim" / "prefixsim"
RESULTS = ROOT / "build" / "mutation" / "results.jsonl"
MEMORY_BYTES = 8 << 30
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"

os.environ |= {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "mutation"}
sys.path[:0] = [str(HERE), str(ROOT / "sim")]

import pytest  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402
from mutants import Mutant, mutants  # noqa: E402


def targets() -> list[dict[str, Any]]:
    """Targets in their order: name, modules, tests."""
    return tomllib.loads((HERE / "targets.toml").read_text())["target"]


def explained() -> dict[str, dict[str, str]]:
    """Why survivors cannot be told from the original, by module and name; `*` as the function stands for any."""
    return tomllib.loads((HERE / "explained.toml").read_text())


def reason(reasons: dict[str, dict[str, str]], module: str, mutant: Mutant) -> str:
    """The explanation of a survivor, or nothing."""
    mine = reasons.get(module, {})
    return mine.get(mutant.name) or mine.get("*" + mutant.name.removeprefix(mutant.function), "")


def sample(target: dict[str, Any], module: str, seed: int, most: int) -> list[Mutant]:
    """Mutants of a module in the seed's order, `most` of them (0: all); none of the lines that the target skips."""
    found = mutants((PACKAGE / module).read_text())
    found = [m for m in found if not m.name.startswith(tuple(target.get("skip", ())))]
    found.sort(key=lambda m: hashlib.sha256(f"{seed}|{module}|{m.name}".encode()).digest())
    return found[: most or None]


def digest(target: dict[str, Any]) -> str:
    """Of everything that decides a target's results: its modules, its tests and what lies beside them."""
    paths = {PACKAGE / m for m in target["modules"]} | {HERE / "mutants.py", ROOT / "tests" / "conftest.py"}
    for test in target["tests"]:
        paths |= set((ROOT / test.split("::")[0]).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in sorted(paths))).hexdigest()[:16]


def function_of(module: str, qualified: str) -> Any:
    """The function object whose code is to be exchanged."""
    found: Any = importlib.import_module("prefixsim." + module.removesuffix(".py").replace("/", "."))
    for part in qualified.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    return getattr(found, "__wrapped__", found)


class Lane:
    """Pytest plugin: in place of running the collected tests once, runs them for every mutant."""

    def __init__(self, work: list[tuple[str, Mutant]], keep: Any, deadline: float) -> None:
        self.work = work
        self.keep = keep
        self.deadline = deadline
        self.broken = "pytest did not start"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            self.broken = "the tests cannot be collected"
            return True
        outcome, usual_s = self.child(session.items, None, [600.0] * len(session.items))
        if outcome != SURVIVED:
            self.broken = "the tests fail without any mutant"
            return True
        self.broken = ""
        tests = dict(zip(session.items, [2 + 4 * seconds for seconds in usual_s], strict=True))
        killer: dict[tuple[str, str], pytest.Item] = {}  # the test that noticed last is tried first
        for module, mutant in self.work:
            if time.monotonic() > self.deadline:
                break
            where = (module, mutant.function)
            order = sorted(tests, key=lambda test: test is not killer.get(where))
            outcome, took_s = self.child(order, (function_of(*where), mutant.code()), [tests[t] for t in order])
            if outcome != SURVIVED:
                killer[where] = order[len(took_s)]
            self.keep(module, mutant, outcome)
        return True

    @staticmethod
    def child(
        items: list[pytest.Item], fault: tuple[Any, CodeType] | None, limits_s: list[float]
    ) -> tuple[str, list[float]]:
        """Outcome of tests with a fault in place, and the CPU seconds of those that passed. Limits are CPU time, so a busy
        machine changes nothing."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 1)
                os.dup2(null, 2)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                if fault is not None:
                    fault[0].__code__ = fault[1]
                for item, following, limit_s in zip(items, [*items[1:], None], limits_s, strict=True):
                    before = time.process_time()
                    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(before + limit_s), resource.RLIM_INFINITY))
                    if any(r.failed for r in runtestprotocol(item, log=False, nextitem=following)):
                        break
                    os.write(write, f"{time.process_time() - before}\n".encode())
                else:
                    status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read) as lines:
            passed_s = [float(line) for line in lines]
        _, status = os.waitpid(pid, 0)
        outcome = TIMED_OUT if os.WIFSIGNALED(status) else KILLED if status else SURVIVED
        return outcome, passed_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=60, help="mutants of each module, 0: all (default 60)")
    parser.add_argument("--minutes", type=float, default=60, help="start no mutant after so long (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="which sample (default 0)")
    parser.add_argument("--only", default="", help="targets or modules whose name contains this")
    parser.add_argument("--match", default="", help="of these, faults whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    reasons = explained()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    known: dict[str, str] = {}
    if RESULTS.exists():
        known = dict(json.loads(line) for line in RESULTS.read_text().splitlines())
    os.chdir(ROOT)
    counts: Counter[str] = Counter()
    surprises: dict[str, list[str]] = {}
    with RESULTS.open("a") as file:
        for target in targets():
            stamp = digest(target)
            chosen = [
                (module, m)
                for module in target["modules"]
                if options.only in target["name"] or options.only in module
                for m in sample(target, module, options.seed, options.sample)
                if options.match in m.name
            ]

            def keep(module: str, mutant: Mutant, outcome: str, stamp: str = stamp) -> None:
                known[f"{stamp} {module} {mutant.name}"] = outcome
                file.write(json.dumps([f"{stamp} {module} {mutant.name}", outcome]) + "\n")
                file.flush()
                if outcome == SURVIVED and not reason(reasons, module, mutant):
                    print(f"SURVIVED {module} {mutant.name}", flush=True)

            work = [(module, m) for module, m in chosen if f"{stamp} {module} {m.name}" not in known]
            if work and time.monotonic() < deadline:
                lane = Lane(work, keep, deadline)
                pytest.main(["--no-header", "-m", "not slow and not shared", *target["tests"]], plugins=[lane])
                if lane.broken:
                    print(f"{target['name']}: {lane.broken}", file=sys.stderr)
                    return 2
            for module, m in chosen:
                outcome = known.get(f"{stamp} {module} {m.name}", "not run")
                if outcome == SURVIVED and reason(reasons, module, m):
                    outcome = "survived, explained"
                elif outcome == SURVIVED:
                    outcome = "survived, new"
                    surprises.setdefault(module, []).append(m.name)
                counts[outcome] += 1
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    if surprises:
        print("New survivors: write a test that fails with each, or say in explained.toml why none can:")
        for module, names in surprises.items():
            print(f'["{module}"]', *(f'{json.dumps(name)} = ""' for name in names), sep="\n")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
