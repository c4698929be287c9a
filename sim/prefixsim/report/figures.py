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
from prefixsim.report.collect import METRICS, TURNS, EngineData, Sums
from prefixsim.report.folder import RunFolder
from prefixsim.report.series import envelope, thin
from prefixsim.report.tables import F64

POINT_BUDGET = 60_000
"""Points of all step functions together; bounds the size of a report however long the run and however many engines."""
BAND = "The line is the mean of each slice of time, the band its lowest and highest value."
MAX_ENGINES = 12
TOP_GROUPS = 25
SUM_COLUMNS = ["requests", "prompt_tokens", "cached_tokens"]


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


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def _percent_axis(title: str, **more: Any) -> dict[str, Any]:
    return _axis(title, tickformat=".0%", rangemode="tozero", **more)


def _log_axis(title: str, low: float, high: float, show: Callable[[float], str], **more: Any) -> dict[str, Any]:
    """A logarithmic axis from `low` to `high` with ticks a person can read: 1-2-5 steps, or decades on a wide range."""
    low, high = max(low, 1e-12), max(high, low * 1.01, 1e-12)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [m * 10.0**k for k in range(first, last + 1) for m in steps]
    ticks = [t for t in ticks if low * 0.95 <= t <= high * 1.05]
    span = [math.log10(low) - 0.02, math.log10(high) + 0.02]
    return _axis(title, type="log", tickvals=ticks, ticktext=[show(t) for t in ticks], range=span, **more)


def _drawn(data: dict[str, EngineData]) -> list[tuple[int, str, EngineData]]:
    return [(i, name, d) for i, (name, d) in enumerate(data.items()) if i < MAX_ENGINES]


# ---- over time ---------------------------------------------------------------------------------------------------


def over_time(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate, KV use, running and waiting, evictions, preemptions; empty without a timeline."""
    timed = [(i, name, d.timeline) for i, name, d in _drawn(data) if d.timeline is not None]
    if not timed:
        return []
    engines = facts.engines_of(run.summary)
    slices = max(min(POINT_BUDGET // (9 * len(timed)), 300), 60)
    time = {"xaxis": _axis("simulated time, s")}
    hit = Figure(
        "hit-rate-over-time",
        "Hit rate",
        "Share of prompt tokens served from cache, in slices of time; the thin line is the share since the start.",
        ["series", "time_s", "hit_rate"],
        layout=time | {"yaxis": _percent_axis("hit rate")},
    )
    kv = Figure("kv-use-over-time", "KV memory in use", "", ["engine", "time_s", "kv_use"], layout=dict(time))
    running, waiting = (
        Figure(
            f"{key}-over-time",
            title,
            says,
            ["series", "time_s", "requests"],
            layout=time | {"yaxis": _axis("requests", rangemode="tozero")},
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
        layout=time | {"yaxis": _axis("tokens/s", rangemode="tozero")},
    )
    preempted = Figure(
        "preemptions-over-time",
        "Preemptions",
        "Requests preempted (vLLM) or retracted (SGLang), in slices of time.",
        ["engine", "time_s", "preemptions"],
        layout=time | {"yaxis": _axis("preemptions a slice", rangemode="tozero")},
    )
    capacities = {name: capacity_tokens(engines.get(name, {})) for _, name, _ in timed}
    shares = all(capacities.values())
    kv.says = (
        "Memory held by running requests; what is cached but unused is left out."
        + (" Share of the KV pool" if shares else " Tokens; the size of the pool is not in the summary")
        + ". "
    )
    kv.layout["yaxis"] = _percent_axis("of the pool") if shares else _axis("tokens", rangemode="tozero")
    for i, name, line in timed:
        middle = (line.edges[1:] + line.edges[:-1]) / 2
        hit.traces.append(_line(i, name, middle, line.hit_rate))
        hit.traces.append(_line(i, f"{name}, so far", middle, line.hit_rate_so_far, faint=True))
        used = line.kv[1] / (capacities[name] or 1) if shares else line.kv[1]
        for figure, steps in ((kv, (line.kv[0], used)), (running, line.running), (waiting, line.waiting)):
            drawn = _steps(i, name, *steps, slices)
            figure.traces += drawn
            if len(drawn) > 1 and BAND not in figure.says:
                figure.says += BAND
        evicted.traces.append(_line(i, name, line.edges[:-1], line.evicted_per_s, step=True))
        preempted.traces.append(_line(i, name, line.edges[:-1], line.preemptions, step=True))
    quiet = [f for f in (waiting, evicted, preempted) if not any(v for t in f.traces for v in t["y"])]
    figures = [f for f in (hit, kv, running, waiting, evicted, preempted) if f not in quiet]
    if evicted in quiet:
        hit.says += " Nothing was evicted in this run."
    if waiting in quiet:
        running.says = running.says.rstrip() + " No request had to wait for a place in the batch."
    return figures


def kept_steps(data: dict[str, EngineData]) -> str:
    """A sentence where the run's timeline leaves steps out, else ""."""
    lines = [(name, d.timeline) for _, name, d in _drawn(data) if d.timeline is not None and d.timeline.thinned]
    if not lines:
        return ""
    words = ", ".join(f"{line.kept:,} of {facts.clean(name, 40)}'s {line.steps:,}" for name, line in lines)
    return f"The timeline keeps some steps only, those with least and most in each stretch of time among them: {words}."


def _line(
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
        return [_line(engine, name, time, value, step=True)]
    start, low, mean, high = envelope(time, value, slices)
    none = {"line": {"width": 0, "shape": "hv"}, "showlegend": False, "hoverinfo": "skip"}
    return [
        _line(engine, f"{name}, lowest", start, low) | none,
        _line(engine, f"{name}, highest", start, high) | none | {"fill": "tonexty"},
        _line(engine, name, start, mean, step=True),
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
        filled = [(i, name, d.latency[metric]) for i, name, d in _drawn(data) if d.latency[metric].total]
        if not filled:
            continue
        ends = [histogram.extent() for _, _, histogram in filled]
        figure = Figure(
            f"{metric}-distribution",
            title,
            f"{what}: how often each value occurs (above), and the share of {unit} at or below it (below).",
            ["series", f"{metric}_s", "share"],
            layout={
                "xaxis": _log_axis("", min(x[0] for x in ends), max(x[1] for x in ends), _time, anchor="y"),
                "yaxis": _axis(f"share of {unit}", domain=[0, 0.58], range=[0, 1.02], tickformat=".0%"),
                "yaxis2": _axis("", domain=[0.66, 1], showticklabels=False, rangemode="tozero", zeroline=False),
            },
            height=380,
        )
        for i, name, histogram in filled:
            x, y = histogram.cdf()
            figure.traces.append(_line(i, name, x, y))
            x, y = histogram.density()
            hill = _line(i, f"{name}, distribution", x, y, step=True)
            figure.traces.append(hill | {"yaxis": "y2", "fill": "tozeroy", "showlegend": False})
        figures.append(figure)
    return figures


# ---- who hits ----------------------------------------------------------------------------------------------------


def who_hits(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate by group, by turn of a session and by prompt length."""
    drawn = _drawn(data)
    figures = []
    weight: dict[str, float] = {}
    for _, _, d in drawn:
        for label, sums in d.groups.items():
            weight[label] = weight.get(label, 0) + sums.prompt
    if len(weight) > 1:
        top = sorted(weight, key=lambda g: (-weight[g], g))[:TOP_GROUPS]
        more = len(weight) - len(top)
        figure = Figure(
            "hit-rate-by-group",
            "By group",
            "Hit rate of each group, the one with most prompt tokens first"
            + (f"; {more} smaller groups are not drawn." if more > 0 else "."),
            ["engine", "hit_rate", "group", *SUM_COLUMNS],
            layout={
                "xaxis": _percent_axis("hit rate", side="top"),
                "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
                "barmode": "group",
                "bargap": 0.3,
            },
            wide=True,
            height=110 + len(top) * (14 + 14 * len(drawn)),
        )
        for i, name, d in drawn:
            rows = [d.groups.get(label, Sums()) for label in top]
            figure.traces.append(
                _sums(i, name, rows)
                | {"type": "bar", "orientation": "h", "x": _rates(rows), "y": [_label(g) for g in top]}
            )
        figures.append(figure)
    if any(d.has_turns for _, _, d in drawn):
        figure = Figure(
            "hit-rate-by-turn",
            "By turn of a session",
            f"Hit rate of the first request of a session (0), the second (1) and so on; {TURNS} stands for all later ones.",
            ["engine", "turn", "hit_rate", *SUM_COLUMNS],
            layout={"xaxis": _axis("turn", tickformat="d"), "yaxis": _percent_axis("hit rate")},
        )
        for i, name, d in drawn:
            turns = sorted(d.turns)
            rows = [d.turns[k] for k in turns]
            figure.traces.append(
                _sums(i, name, rows) | {"type": "scatter", "mode": "lines+markers", "x": turns, "y": _rates(rows)}
            )
        figures.append(figure)
    keys = sorted({k for _, _, d in drawn for k in d.lengths})
    if keys:
        labels = [f"{_short(2**k)}–{_short(2 ** (k + 1))}" for k in keys]
        figure = Figure(
            "hit-rate-by-length",
            "By prompt length",
            "Hit rate of prompts of similar length, in tokens; each class is twice as long as the one before.",
            ["engine", "prompt_tokens_class", "hit_rate", *SUM_COLUMNS],
            layout={
                "xaxis": _axis("prompt tokens", type="category", categoryorder="array", categoryarray=labels),
                "yaxis": _percent_axis("hit rate"),
            },
        )
        for i, name, d in drawn:
            rows = [d.lengths.get(k, Sums()) for k in keys]
            figure.traces.append(
                _sums(i, name, rows) | {"type": "scatter", "mode": "lines+markers", "x": labels, "y": _rates(rows)}
            )
        figures.append(figure)
    return figures


def _short(n: int) -> str:
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}k" if n >= 1 << 10 else str(n)


def _label(group: str) -> str:
    text = group or "(no group)"
    return text if len(text) <= 28 else text[:25] + "..."


def _rates(sums: list[Sums]) -> list[float | None]:
    return [None if s.rate is None else float(f"{s.rate:.5g}") for s in sums]


def _sums(engine: int, name: str, sums: list[Sums]) -> dict[str, Any]:
    table = [[int(s.requests), int(s.prompt), int(s.cached)] for s in sums]
    hover = "%{x} · %{y}<br>%{customdata[2]:,} of %{customdata[1]:,} tokens<br>%{customdata[0]:,} requests"
    return {"engine": engine, "name": name, "customdata": table, "hovertemplate": hover}


# ---- capacity ----------------------------------------------------------------------------------------------------


def capacity(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate against cache capacity: the curves of curves.json, the ceilings, and where the engines are."""
    curves = run.curves.get("curves") if run.curves else None
    prompt = facts.number(run.curves, "prompt_tokens") if run.curves else None
    if not isinstance(curves, list) or not prompt:
        return []
    figure = Figure(
        "capacity-curves",
        "Hit rate against capacity",
        "What an ideal cache of each size would reach, lookups in order of arrival: solid LRU, dashed the best any cache "
        "could do, dotted the ceiling. Dots are the engines of this run.",
        ["series", "capacity_tokens", "hit_rate"],
        layout={"yaxis": _percent_axis("of prompt tokens")},
        height=400,
        wide=True,
    )
    shades: dict[int, int] = {}
    for curve in curves[:24]:
        block, points = facts.number(curve, "granularity"), facts.get(curve, "points")
        pairs = [p for p in points if _is_point(p)] if isinstance(points, list) else []
        if not block or not pairs:
            continue
        policy = facts.clean(facts.get(curve, "policy"), 30)
        x, y = (
            np.array([p[0] * block for p in pairs], dtype=float),
            np.array([p[1] / prompt for p in pairs], dtype=float),
        )
        x, y = thin(x[np.argsort(x, kind="stable")], y[np.argsort(x, kind="stable")], 600)
        shade = shades.setdefault(int(block), len(shades))
        unit = "token" if block == 1 else f"{int(block)}-token block"
        line = _line(-1 - shade, f"{policy}, {unit}", x, y, dash=None if policy == "lru" else "dash")
        figure.traces.append(line)
        top = facts.number(curve, "ceiling_tokens")
        if top is not None and policy == "lru":
            ends = np.array([x[0], x[-1]])
            figure.traces.append(
                _line(-1 - shade, f"ceiling, {unit}", ends, np.full(2, top / prompt), dash="dot", faint=True)
            )
    if not figure.traces:
        return []
    marks = []
    for i, (name, engine) in enumerate(list(facts.engines_of(run.summary).items())[:MAX_ENGINES]):
        size, rate = capacity_tokens(engine), facts.number(engine, "hit_rate")
        if size and rate is not None:
            marks.append(size)
            marker = {"size": 11, "symbol": "diamond", "line": {"width": 1}}
            figure.traces.append(
                {"type": "scatter", "mode": "markers", "engine": i, "name": name, "x": [size], "y": rounded([rate], 5)}
                | {"marker": marker}
            )
    low = min([t["x"][0] for t in figure.traces] + marks)
    high = max([t["x"][-1] for t in figure.traces] + marks)
    figure.layout["xaxis"] = _log_axis("capacity, tokens", low, high, _tokens)
    return [figure]


def _time(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale * 0.999:
            return f"{value / scale:,.0f} {unit}" if value / scale >= 999.5 else f"{value / scale:.3g} {unit}"
    return f"{value:.3g} s"


def _tokens(value: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def _is_point(p: Any) -> bool:
    return isinstance(p, list) and len(p) == 2 and all(facts.number({"v": v}, "v") is not None for v in p) and p[0] > 0


# ---- replicas ----------------------------------------------------------------------------------------------------


def replicas(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate of each replica, and each replica's KV use over time; empty where every engine has one replica."""
    fleets = [(i, name, d) for i, name, d in _drawn(data) if len(d.replicas) > 1]
    if not fleets:
        return []
    figure = Figure(
        "hit-rate-by-replica",
        "Hit rate by replica",
        "Hit rate of each replica's own requests. Large differences mean that the router, not the cache, decides.",
        ["engine", "replica", "hit_rate", *SUM_COLUMNS],
        layout={"xaxis": _axis("replica", tickformat="d"), "yaxis": _percent_axis("hit rate")},
    )
    figures = [figure]
    for i, name, d in fleets:
        keys = sorted(d.replicas)[:2000]
        sums = [d.replicas[k] for k in keys]
        figure.traces.append(
            _sums(i, name, sums) | {"type": "scatter", "mode": "markers", "x": keys, "y": _rates(sums)}
        )
        line = d.timeline
        if line is None or not line.kv_by_replica or len(figures) > 4:
            continue
        rows = sorted(line.kv_by_replica)
        heat = Figure(
            f"kv-by-replica-{i}",
            f"KV tokens in use by replica: {facts.clean(name, 40)}",
            f"The darker, the more; first {len(rows)} replicas." if len(rows) < len(keys) else "The darker, the more.",
            ["engine", "time_s", "replica", "kv_used_tokens"],
            [
                {
                    "type": "heatmap",
                    "engine": i,
                    "name": name,
                    "x": rounded(line.edges[:-1], 6),
                    "y": rows,
                    "z": [rounded(line.kv_by_replica[r], 4) for r in rows],
                    "showscale": True,
                    "hovertemplate": "replica %{y}, from %{x} s: %{z:,} tokens<extra></extra>",
                }
            ],
            {"xaxis": _axis("simulated time, s"), "yaxis": _axis("replica", tickformat="d", autorange="reversed")},
            height=140 + 14 * min(len(rows), 30),
        )
        figures.append(heat)
    return figures
