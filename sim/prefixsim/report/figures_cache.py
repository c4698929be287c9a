"""Figures about the cache: who hits, capacity, replicas."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.errors import InputError, Problem
from prefixsim.report import facts
from prefixsim.report.collect import TURNS, EngineData, Sums
from prefixsim.report.figures import (
    MAX_ENGINES,
    Figure,
    axis,
    capacity_tokens,
    drawn_engines,
    line_of,
    log_axis,
    percent_axis,
    rounded,
)
from prefixsim.report.folder import RunFolder
from prefixsim.report.series import thin

TOP_GROUPS = 25
MOST = 1e15
"""More tokens than any cache or workload has."""
SUM_COLUMNS = ["requests", "prompt_tokens", "cached_tokens"]


# ---- who hits ----------------------------------------------------------------------------------------------------


def who_hits(run: RunFolder, data: dict[str, EngineData]) -> list[Figure]:
    """Hit rate by group, by turn of a session and by prompt length."""
    drawn = drawn_engines(data)
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
                "xaxis": percent_axis("hit rate", side="top"),
                "yaxis": {"type": "category", "autorange": "reversed", "automargin": True}
                | {"tickvals": [_group(g) for g in top], "ticktext": [_cut(_group(g)) for g in top]},
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
                | {"type": "bar", "orientation": "h", "x": _rates(rows), "y": [_group(g) for g in top]}
            )
        figures.append(figure)
    if any(d.has_turns for _, _, d in drawn):
        rest = f"; {TURNS} stands for all later ones" if any(TURNS in d.turns for _, _, d in drawn) else ""
        figure = Figure(
            "hit-rate-by-turn",
            "By turn of a session",
            f"Hit rate of the first request of a session (0), the second (1) and so on{rest}.",
            ["engine", "turn", "hit_rate", *SUM_COLUMNS],
            layout={"xaxis": axis("turn", tickformat="d"), "yaxis": percent_axis("hit rate")},
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
                "xaxis": axis("prompt tokens", type="category", categoryorder="array", categoryarray=labels),
                "yaxis": percent_axis("hit rate"),
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


def _group(name: str) -> str:
    return name or "(no group)"


def _cut(text: str) -> str:
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
        layout={"yaxis": percent_axis("of prompt tokens")},
        height=400,
        wide=True,
    )
    shades: dict[int, int] = {}
    for curve in curves[:24]:
        block, points = facts.number(curve, "granularity"), facts.get(curve, "points")
        pairs = [p for p in points if _is_point(p)] if isinstance(points, list) else []
        if not block or not pairs:
            continue
        top = facts.number(curve, "ceiling_tokens")
        sound = 1 <= block <= MOST and 0 <= (top or 0) <= prompt <= MOST
        if not sound or not all(0 <= size <= MOST and 0 <= hits <= prompt for size, hits in pairs):
            raise InputError(Problem("has a curve that no cache can have", file=str(run.path / "curves.json")))
        policy = facts.clean(facts.get(curve, "policy"), 30)
        x, y = (
            np.array([p[0] * block for p in pairs], dtype=float),
            np.array([p[1] / prompt for p in pairs], dtype=float),
        )
        x, y = thin(x[np.argsort(x, kind="stable")], y[np.argsort(x, kind="stable")], 600)
        shade = shades.setdefault(int(block), len(shades))
        unit = "token" if block == 1 else f"{int(block)}-token block"
        line = line_of(-1 - shade, f"{policy}, {unit}", x, y, dash=None if policy == "lru" else "dash")
        figure.traces.append(line)
        if top is not None and policy == "lru":
            ends = np.array([x[0], x[-1]])
            figure.traces.append(
                line_of(-1 - shade, f"ceiling, {unit}", ends, np.full(2, top / prompt), dash="dot", faint=True)
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
    figure.layout["xaxis"] = log_axis("capacity, tokens", low, high * 1.1, _tokens)
    return [figure]


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
    fleets = [(i, name, d) for i, name, d in drawn_engines(data) if len(d.replicas) > 1]
    if not fleets:
        return []
    figure = Figure(
        "hit-rate-by-replica",
        "Hit rate by replica",
        "Hit rate of each replica's own requests. Large differences mean that the router, not the cache, decides.",
        ["engine", "replica", "hit_rate", *SUM_COLUMNS],
        layout={"xaxis": axis("replica", tickformat="d"), "yaxis": percent_axis("hit rate")},
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
            "The stronger the colour, the more; empty where the timeline has no step"
            + (f"; first {len(rows)} replicas." if len(rows) < len(keys) else "."),
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
                    "zmin": 0,
                    "hovertemplate": "replica %{y}, from %{x} s: %{z:,} tokens<extra></extra>",
                }
            ],
            {"xaxis": axis("simulated time, s"), "yaxis": axis("replica", tickformat="d", autorange="reversed")},
            height=140 + 14 * min(len(rows), 30),
        )
        figures.append(heat)
    return figures
