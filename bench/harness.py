"""What every bench shares: functions timed in turn, rows with medians, spread and ratios, the workload, the peers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
Timed = Callable[[], Any]


def interleaved(functions: dict[str, Timed], rounds: int, *, warm: int = 1) -> dict[str, list[float]]:
    """Wall seconds of each function, one after another in every round, so that a slow spell of the machine meets all of
    them. A function that returns a float has measured itself (a peer's own process); None leaves the sample out."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for k in range(warm + rounds):
        for name, function in functions.items():
            started = time.perf_counter()
            own = function()
            spent = time.perf_counter() - started
            if k >= warm:
                times[name].append(own if isinstance(own, float) else spent)
    return times


def row(
    workload: str,
    work: str,
    times: list[float],
    *,
    requests: int | None = None,
    against: list[float] | None = None,
    peer: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "",
    as_long: bool = False,
) -> dict[str, Any]:
    """One line. ratio: `against` / own, median of the rounds' own ratios (how many times faster than the peer), or with
    `as_long` own / against (how many times as long). at_least, at_most: the target, on `unit`: "x" the ratio,
    "requests/s", "s"."""
    mid = median(times)
    out: dict[str, Any] = {
        "workload": workload,
        "work": work,
        "median_ms": round(1e3 * mid, 3),
        "min_ms": round(1e3 * min(times), 3),
        "max_ms": round(1e3 * max(times), 3),
    }
    if requests is not None:
        out["requests_per_s"] = round(requests / mid)
    if against:
        pairs = [a / b if as_long else b / a for a, b in zip(times, against, strict=False)]
        out["peer"] = peer
        out["peer_median_ms"] = round(1e3 * median(against), 3)
        out["ratio"] = round(median(pairs), 3)
        if as_long:
            out["as_long"] = True
    value = {"x": out.get("ratio"), "requests/s": out.get("requests_per_s"), "s": mid}.get(unit)
    if value is not None and (at_least is not None or at_most is not None):
        out["target"] = (f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}") + f" {unit}"
        out["met"] = bool(value >= at_least) if at_least is not None else bool(at_most is not None and value <= at_most)
    return out


def ratio_text(r: dict[str, Any]) -> str:
    """A row's ratio in words."""
    if "ratio" not in r:
        return ""
    return f"{r['ratio']:.2f}x as long as {r['peer']}" if r.get("as_long") else f"{r['ratio']:.2f}x {r['peer']}"


def show(rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table."""
    for r in rows:
        rate = f"{r['requests_per_s']:,}/s" if "requests_per_s" in r else ""
        ratio = ratio_text(r)
        target = f"{r['target']} {'met' if r['met'] else 'MISSED'}" if "target" in r else ""
        spread = f"({r['min_ms']:.1f}-{r['max_ms']:.1f})"
        print(
            f"{r['workload']:<10} {r['work']:<48}{r['median_ms']:>11.2f} ms {spread:<20}{rate:>14}  {ratio:<36}{target}"
        )


@contextmanager
def w10k(given: Path | None = None, requests: int = 10_000) -> Iterator[Path | None]:
    """Folder with mooncake16.jsonl and tokens.jsonl of the speed workload; None where ../shared is absent."""
    if given is not None:
        yield given
        return
    maker = SHARED / "bench" / "w10k.py"
    if not maker.exists():
        yield None
        return
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(
            [sys.executable, str(maker), str(requests), made],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.DEVNULL,
        )
        yield Path(made)


def dynosim(
    trace: Path,
    block: int,
    blocks: int,
    backend: str,
    workers: int = 1,
    router: str = "round_robin",
    speedup: float = 1.0,
) -> Timed | None:
    """The fastest full simulator known, in its own process; its own wall time, reading included (start-up and imports left
    out). None where PREFIXSIM_BENCH_DYNOSIM does not name a Python that has it (bench/README.md)."""
    python = os.environ.get("PREFIXSIM_BENCH_DYNOSIM")
    script = SHARED / "bench" / "dynosim.py"
    if not python or not script.exists():
        return None
    command = [python, str(script), str(trace), str(block), str(blocks), backend, str(workers), router, str(speedup)]

    def run() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"wall ([0-9.]+) s", done.stdout)
        if found is None:
            raise RuntimeError(f"the peer printed no wall time: {done.stdout[-200:]} {done.stderr[-200:]}")
        return float(found.group(1))

    return run


def finish(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Prints rows as JSON or as a table."""
    if as_json:
        print(json.dumps({"rows": rows}))
    else:
        show(rows)
