"""The report's figures as plain data: Plotly traces whose colours and theme are set in the browser.

A trace carries `engine` (its colour's number) and raw names; the browser escapes them. `columns` names what a figure's
downloaded CSV holds: of each trace its name, x, y and, where present, the columns of customdata.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixsim.report import facts
from prefixsim.report.collect import METRICS, EngineData
from prefixsim.report.folder import RunFolder
from prefixsim.report.series import BINS_PER_DECADE, envelope
from prefixsim.report.tables import F64

POINT_BUDGET = 60_000
"""Points of all step functions together; bounds the size of a report however long the run and however many engines."""
BAND = "The line is the mean of each slice of time, the band its lowest and highest value."
BAND_OF_SOME = "The band reaches from the lowest to the highest value of each slice of time; the line, the mean of the kept steps, is near the true one."
MAX_ENGINES = 12
MIN_BARS = 24
"""A distribution is drawn in at least as many bins, where bins of 1.2 % allow it."""


@dataclass(slots=True)
class Figure:
    """id: anchor and file name. says: the caption, also what a screen reader reads. columns: CSV names of (trace, x, y,
    customdata...). layout: Plotly layout without colours."""

    id: str
    title: str
    says: str
    columns: list[str]
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 300
    wide: bool = False


def rounded(values: Any, digits: int = 6) -> list[float | None]:
    """Numbers with `digits` significant digits for JSON; NaN and infinities as None."""

    def one(v: float) -> float | None:
        if not math.isfinite(v):
            return None
        return int(v) if v.is_integer() and abs(v) < 1e15 else float(f"{v:.{digits}g}")

    return [one(v) for v in np.asarray(values, dtype=float).tolist()]


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    return axis(title, tickformat="~%", rangemode="tozero", **more)


def log_axis(title: str, low: float, high: float, show: Callable[[float], str], **more: Any) -> dict[str, Any]:
    """A logarithmic axis from `low` to `high` with ticks a person can read: 1-2-5 steps, or decades on a wide range."""
    low, high = max(min(low, 1e18), 1e-12), min(max(high, low * 1.01, 1e-12), 1e19)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [m * 10.0**k for k in range(first, last + 1) for m in steps]
    ticks = [t for t in ticks if low * 0.95 <= t <= high * 1.05]
    span = [math.log10(low) - 0.02, math.log10(high) + 0.02]
    if len(ticks) < 3:  # one tick says no scale
        ticks = _even_ticks(10 ** span[0], 10 ** span[1])
    return axis(title, type="log", tickvals=ticks, ticktext=[show(t) for t in ticks], range=span, **more)


def _even_ticks(low: float, high: float) -> list[float]:
    """Three or more round numbers evenly apart, as few as there are."""
    base = 10.0 ** math.floor(math.log10((high - low) / 3))
    for step in (5 * base, 2 * base, base):
        ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(ticks) >= 3:
            break
    return ticks


def _time(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale * 0.999:
            return f"{value / scale:,.0f} {unit}" if value / scale >= 999.5 else f"{value / scale:.3g} {unit}"
    return f"{value:.3g} s"


def drawn_engines(data: dict[str, EngineData]) -> list[tuple[int, str, EngineData]]:
    return [(i, name, d) for i, (name, d) in enumerate(data.items()) if i < MAX_ENGINES]


# ---- over time ---------------------------------------------------------------------------------------------------


def over_time(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate, KV use, running and waiting, evictions, preemptions; empty without a timeline."""
    timed = [(i, name, d.timeline) for i, name, d in drawn_engines(data) if d.timeline is not None]
    if not timed:
        return []
    engines = facts.engines_of(run.summary)
    slices = max(min(POINT_BUDGET // (9 * len(timed)), 300), 60)
    time = {"xaxis": axis("simulated time, s", range=_time_range([line.edges for _, _, line in timed]))}
    hit = Figure(
        "hit-rate-over-time",
        "Hit rate",
        "Share of prompt tokens served from cache, in slices of time; the thin line is the share since the start.",
        ["series", "time_s", "hit_rate"],
        layout=time | {"yaxis": percent_axis("hit rate")},
    )
    kv = Figure("kv-use-over-time", "KV memory in use", "", ["engine", "time_s", "kv_use"], layout=dict(time))
    running, waiting = (
        Figure(
            f"{key}-over-time",
            title,
            says,
            ["series", "time_s", "requests"],
            layout=time | {"yaxis": axis("requests", rangemode="tozero")},
        )
        for key, title, says in (
            ("running", "Running requests", "Requests in the batch. "),
            ("waiting", "Waiting requests", "Requests in the queue; one that keeps growing means saturation. "),
        )
    )
    evicted = Figure(
        "evictions-over-time",
        "Evictions",
        "Cached tokens evicted a second, in slices of time.",
        ["engine", "time_s", "evicted_tokens_per_s"],
        layout=time | {"yaxis": axis("tokens/s", rangemode="tozero")},
    )
    preempted = Figure(
        "preemptions-over-time",
        "Preemptions",
        "Requests preempted (vLLM) or retracted (SGLang) a second, in slices of time.",
        ["engine", "time_s", "preemptions_per_s"],
        layout=time | {"yaxis": axis("preemptions/s", rangemode="tozero")},
    )
    capacities = {name: capacity_tokens(engines.get(name, {})) for _, name, _ in timed}
    shares = all(capacities.values())
    band = BAND_OF_SOME if any(line.thinned for _, _, line in timed) else BAND
    kv.says = (
        "Memory held by running requests; what is cached but unused is left out."
        + (" Share of the KV pool" if shares else " Tokens; the size of the pool is not in the summary")
        + ". "
    )
    kv.layout["yaxis"] = percent_axis("of the pool") if shares else axis("tokens", rangemode="tozero")
    for i, name, line in timed:
        middle = (line.edges[1:] + line.edges[:-1]) / 2
        slices_hit = line_of(i, name, middle, line.hit_rate)
        hit.traces.append(
            slices_hit | {"mode": "lines+markers", "marker": {"size": 3}}
        )  # a slice alone must be seen too
        hit.traces.append(line_of(i, f"{name}, so far", middle, line.hit_rate_so_far, faint=True))
        used = line.kv[1] / (capacities[name] or 1) if shares else line.kv[1]
        for figure, steps in ((kv, (line.kv[0], used)), (running, line.running), (waiting, line.waiting)):
            drawn = _steps(i, name, *steps, slices)
            figure.traces += drawn
            if len(drawn) > 1 and band not in figure.says:
                figure.says += band
        evicted.traces.append(line_of(i, name, line.edges[:-1], line.evicted_per_s, step=True))
        preempted.traces.append(line_of(i, name, line.edges[:-1], line.preemptions_per_s, step=True))
    quiet = [f for f in (waiting, evicted, preempted) if not any(v for t in f.traces for v in t["y"])]
    figures = [f for f in (hit, kv, running, waiting, evicted, preempted) if f not in quiet]
    if evicted in quiet:
        hit.says += " Nothing was evicted in this run."
    if waiting in quiet:
        running.says = running.says.rstrip() + " No request had to wait for a place in the batch."
    return figures


def _time_range(edges: list[F64]) -> list[float]:
    """One range for all figures over time; from 0 where the run begins near it."""
    first, last = min(float(e[0]) for e in edges), max(float(e[-1]) for e in edges)
    return [0.0 if 0 <= first < last / 10 else first, last]


def kept_steps(data: dict[str, EngineData]) -> str:
    """A sentence where the run's timeline leaves steps out, else ""."""
    lines = [(name, d.timeline) for _, name, d in drawn_engines(data) if d.timeline is not None and d.timeline.thinned]
    if not lines:
        return ""
    words = ", ".join(f"{line.kept:,} of {facts.clean(name, 40)}'s {line.steps:,}" for name, line in lines)
    return f"The timeline keeps some steps only, those with least and most in each stretch of time among them: {words}."


def line_of(
    engine: int, name: str, x: F64, y: F64, *, step: bool = False, faint: bool = False, dash: str | None = None
) -> dict[str, Any]:
    line: dict[str, Any] = {"width": 1 if faint else 1.75}
    if step:
        line["shape"] = "hv"
    if dash:
        line["dash"] = dash
    return {"type": "scatter", "mode": "lines", "engine": engine, "name": name, "x": rounded(x, 7), "y": rounded(y, 5), "line": line, "faint": faint}  # fmt: skip


def _steps(engine: int, name: str, time: F64, value: F64, slices: int) -> list[dict[str, Any]]:
    """A step function as it is where it is short, else its mean within a band from lowest to highest."""
    if len(time) <= 2 * slices:
        return [line_of(engine, name, time, value, step=True)]
    start, low, mean, high = envelope(time, value, slices)
    none = {"line": {"width": 0, "shape": "hv"}, "showlegend": False, "hoverinfo": "skip"}
    return [
        line_of(engine, f"{name}, lowest", start, low) | none,
        line_of(engine, f"{name}, highest", start, high) | none | {"fill": "tonexty"},
        line_of(engine, name, start, mean, step=True),
    ]


def capacity_tokens(engine: Any) -> float | None:
    """KV pool of all replicas of an engine in tokens, where the summary says it."""
    replicas = engine.get("replicas")
    if isinstance(replicas, list) and replicas:
        each = [facts.number(r, "capacity_tokens") for r in replicas]
        return sum(v for v in each if v is not None) if all(each) else None
    return facts.number(engine, "capacity_tokens")


# ---- latency -----------------------------------------------------------------------------------------------------

LATENCY = {
    "ttft": ("Time to first token", "From release to the first output token", "requests"),
    "itl": ("Inter-token latency", "Gaps between output tokens, all requests pooled", "gaps"),
    "e2e": ("End-to-end latency", "From release to the last output token", "requests"),
}


def latency(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """For each metric the distribution above its CDF, both on one logarithmic axis."""
    figures = []
    for metric in METRICS:
        title, what, unit = LATENCY[metric]
        filled = [(i, name, d.latency[metric]) for i, name, d in drawn_engines(data) if d.latency[metric].total]
        if not filled:
            continue
        ends = [histogram.extent() for _, _, histogram in filled]
        low, high = min(x[0] for x in ends), max(x[1] for x in ends)
        fine = BINS_PER_DECADE * math.log10(high / low)
        merge = next((m for m in (10, 5, 2) if fine >= MIN_BARS * m), 1)
        figure = Figure(
            f"{metric}-distribution",
            title,
            f"{what}: how often each value occurs (above), and the share of {unit} at or below it (below).",
            ["series", f"{metric}_s", "share"],
            layout={
                "xaxis": log_axis("", low, high, _time, anchor="y"),
                "yaxis": axis(f"share of {unit}", domain=[0, 0.58], range=[0, 1.02], tickformat="~%"),
                "yaxis2": axis("", domain=[0.66, 1], showticklabels=False, rangemode="tozero", zeroline=False),
            },
            height=380,
        )
        for i, name, histogram in filled:
            x, y = histogram.cdf()
            figure.traces.append(line_of(i, name, x, y))
            x, y = histogram.density(merge)
            hill = line_of(i, f"{name}, distribution", x, y, step=True)
            figure.traces.append(hill | {"yaxis": "y2", "fill": "tozeroy", "showlegend": False})
        figures.append(figure)
    return figures
