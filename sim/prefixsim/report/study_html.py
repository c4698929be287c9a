"""`report.html` of a sweep: its answer, its table, heat maps or lines by axis, and the Pareto front. From points.jsonl alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefixsim.errors import InputError, Problem
from prefixsim.paths import open_regular, read_regular, write_whole
from prefixsim.report import sections as html
from prefixsim.report.facts import value_of
from prefixsim.report.figures import Figure, axis, percent_axis
from prefixsim.report.html import page_of

STUDY_LIMIT = 4 << 20
MAX_FIGURES = 24
MAX_TABLE_ROWS = 400


def write_study_report(folder: Path) -> Path:
    """Renders `folder`/points.jsonl and study.json to report.html and returns its path.

    Raises InputError when the files are missing or damaged, OutputError when the page cannot be written.
    """
    about, rows = _read(folder)
    target = folder / "report.html"
    write_whole(target, render(about, rows))
    return target


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """study.json and points.jsonl, as `write_tables` leaves them. Raises InputError with file and line."""
    file, line = folder / "study.json", None

    def must(fine: bool, what: str) -> None:
        if not fine:
            raise ValueError(f"expected {what}")

    try:
        about = json.loads(read_regular(file, STUDY_LIMIT))
        must(isinstance(about, dict), "a mapping")
        for key in ("axes", "columns"):
            value = about.get(key) or []
            must(isinstance(value, list) and all(isinstance(v, str) for v in value), f"a list of names under '{key}'")
        for key in ("cost", "latency"):
            must(isinstance(about.get(key), str | None), f"the name of a metric under '{key}'")
        file, rows = folder / "points.jsonl", []
        with open_regular(file) as f:
            for line, text in enumerate(f, 1):  # noqa: B007 (a fault is at it)
                if text.strip():
                    row = json.loads(text)
                    must(isinstance(row, dict) and isinstance(row.get("axes"), dict), "a point with its 'axes'")
                    rows.append(row)
    except (OSError, ValueError, RecursionError) as exc:
        said = f"not a file of a finished sweep: {getattr(exc, 'strerror', None) or exc}"
        raise InputError(Problem(said[:300], file=str(file), line=line)) from None
    return about, rows


def render(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The page as text. about: {name, description, axes, columns, cost, latency}; rows: as `sweep --json` prints them."""
    axes: list[str] = list(about.get("axes") or [])
    columns: list[str] = list(about.get("columns") or [])
    done = [r for r in rows if isinstance(r.get("summary"), Mapping)]
    means = _means(done, axes, columns)
    engines = list(dict.fromkeys(c.partition(".")[0] for c in columns))  # a colour each, as in the reports of runs
    figures = [
        _figure(i, engines.index(c.partition(".")[0]), c, axes, means) for i, c in enumerate(columns[:MAX_FIGURES])
    ]
    front = _pareto(about, done, axes)
    drawn = [f for f in [*figures, front] if f is not None]
    failed = [r for r in rows if not isinstance(r.get("summary"), Mapping)]
    body = [
        f'<div id="answer"><h1>{html.esc(about.get("name") or "sweep", 120)}</h1>',
        "".join(
            f'<p class="{"answer" if i == 0 else "soft"}">{html.esc(t, 300)}</p>'
            for i, t in enumerate(_answer(columns, means))
        ),
        html.soft(str(about.get("description") or "")) if about.get("description") else "",
        f"<p>{len(rows)} points, {len(failed)} failed.</p></div>",
        html.section("axes", "By axis", html.figures(drawn) or html.absent("No point has a result.")),
        html.section("points", "Points", _table(axes, columns, means)),
    ]
    if failed:
        items = "".join(
            f"<li>{html.esc(_label(r.get('axes') or {}))}: {html.esc(r.get('error'), 400)}</li>" for r in failed[:100]
        )
        body.append(html.section("failed", "Points without a result", f"<ul>{items}</ul>"))
    nav = [("answer", "Answer"), ("axes", "Figures"), ("points", "Points")]
    return page_of(about.get("name") or "sweep", nav, "".join(body), drawn)


def _means(
    rows: Sequence[Mapping[str, Any]], axes: Sequence[str], columns: Sequence[str]
) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """(axes, mean of each column over the repeats), in axis order."""
    groups: dict[str, tuple[dict[str, Any], list[Mapping[str, Any]]]] = {}
    for row in rows:
        setting = {a: row["axes"].get(a) for a in axes}
        groups.setdefault(json.dumps(setting, sort_keys=True), (setting, []))[1].append(row["summary"])
    out = []
    for setting, summaries in groups.values():
        found = {}
        for column in columns:
            values = [v for s in summaries if (v := value_of(s, column)) is not None]
            if values:
                found[column] = sum(values) / len(values)
        out.append((setting, found))
    return out


def _answer(columns: Sequence[str], means: Sequence[tuple[dict[str, Any], dict[str, float]]]) -> list[str]:
    """One sentence a metric: where it is lowest and where highest."""
    said = []
    for column in columns[:4]:
        have = [(setting, m[column]) for setting, m in means if column in m]
        if have:
            low, high = min(have, key=lambda x: x[1]), max(have, key=lambda x: x[1])
            ends = f"{_number(column, low[1])} at {_label(low[0])}, {_number(column, high[1])} at {_label(high[0])}"
            said.append(f"{column}: {ends if low[1] < high[1] else _number(column, low[1]) + ' everywhere'}.")
    return said or ["No point has a result."]


def _number(column: str, value: float) -> str:
    return f"{value:.1%}" if _is_share(column) else f"{value:.4g}"


def _is_share(column: str) -> bool:
    return column.endswith(("hit_rate", "kv_usage_peak", "kv_usage_mean")) or column.startswith("ceiling.")


def _label(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{k.rsplit('.', 1)[-1]} {_text(v)}" for k, v in setting.items()) or "the base"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)


def _figure(
    number: int, engine: int, column: str, axes: Sequence[str], means: Sequence[tuple[dict[str, Any], dict[str, float]]]
) -> Figure | None:
    """Two or more axes: a heat map over the last two (first points of the others); one: a line or bars."""
    have = [(setting, m[column]) for setting, m in means if column in m]
    if not have or not axes:
        return None
    if len(axes) == 1:
        xs = [setting[axes[0]] for setting, _ in have]
        numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in xs)
        trace = {
            "type": "scatter" if numeric else "bar",
            "name": column,
            "engine": engine,
            "x": xs if numeric else [_text(x) for x in xs],
            "y": [v for _, v in have],
            **({"mode": "lines+markers", "line": {"width": 2}} if numeric else {}),
        }
        upright = percent_axis(column) if _is_share(column) else axis(column, rangemode="tozero")
        layout = {"xaxis": axis(axes[0]), "yaxis": upright}
        return Figure(
            f"by-axis-{number}", column, f"{column} by {axes[0]}.", ["metric", axes[0], column], [trace], layout
        )
    row_axis, column_axis = axes[-2], axes[-1]
    fixed = {a: have[0][0][a] for a in axes[:-2]}
    inside = [(s, v) for s, v in have if all(s[a] == w for a, w in fixed.items())]
    xs = list(dict.fromkeys(_text(s[column_axis]) for s, _ in inside))
    ys = list(dict.fromkeys(_text(s[row_axis]) for s, _ in inside))
    cells = {(_text(s[row_axis]), _text(s[column_axis])): v for s, v in inside}
    z = [[cells.get((y, x)) for x in xs] for y in ys]
    trace = {
        "type": "heatmap", "name": column, "engine": engine, "x": xs, "y": ys, "z": z, "showscale": True,
        "hovertemplate": f"%{{y}} / %{{x}}: %{{z:{'.1%' if _is_share(column) else '.4g'}}}<extra></extra>",
    }  # fmt: skip
    if _is_share(column):
        trace["colorbar"] = {"tickformat": "~%"}
    says = f"{column} by {row_axis} (rows) and {column_axis} (columns); the stronger the colour, the higher."
    if fixed:
        says += f" Other axes at {_label(fixed)}."
    layout = {"xaxis": {"title": {"text": column_axis}, "type": "category"},
              "yaxis": {"title": {"text": row_axis}, "type": "category"}}  # fmt: skip
    return Figure(
        f"heat-{number}",
        column,
        says,
        ["metric", column_axis, row_axis, column],
        [trace],
        layout,
        height=200 + 24 * len(ys),
    )


def _pareto(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Figure | None:
    """Cost against latency; the front is the points that nothing beats in both."""
    cost, latency = about.get("cost"), about.get("latency")
    if not cost or not latency:
        return None
    points = []
    for setting, found in _means(rows, axes, [str(cost), str(latency)]):
        if str(cost) in found and str(latency) in found:
            points.append((found[str(cost)], found[str(latency)], _label(setting)))
    if not points:
        return None
    points.sort()
    front, best = [], float("inf")
    for p in points:
        if p[1] < best:
            front.append(p)
            best = p[1]
    traces = [
        {"type": "scatter", "mode": mode, "name": name, "engine": i, "x": [p[0] for p in some], "y": [p[1] for p in some],
         "text": [p[2] for p in some], "customdata": [[p[2]] for p in some],
         "hovertemplate": "%{customdata[0]}: %{x:.4g}, %{y:.4g}<extra></extra>", **more}
        for i, (name, some, mode, more) in enumerate(
            [("points", points, "markers", {}), ("front", front, "lines+markers", {"line": {"width": 2}})])
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": cost}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": latency}, "rangemode": "tozero"},
    }
    says = f"{latency} against {cost}; on the front no other point is better in both."
    return Figure("pareto", "Pareto front", says, ["set", str(cost), str(latency), "point"], traces, layout, height=380)


def _table(
    axes: Sequence[str], columns: Sequence[str], means: Sequence[tuple[dict[str, Any], dict[str, float]]]
) -> str:
    head = [html.esc(h, 80) for h in [*axes, *columns]]
    rows = [
        [*((html.esc(_text(setting[a]), 80), _text(setting[a])) for a in axes),
         *((f"{m[c]:.4g}", m[c]) if c in m else ("-", "") for c in columns)]
        for setting, m in means[:MAX_TABLE_ROWS]
    ]  # fmt: skip
    more = (
        ""
        if len(means) <= MAX_TABLE_ROWS
        else html.soft(f"The first {MAX_TABLE_ROWS} of {len(means)}; points.csv has all.")
    )
    return (
        html.table("points-table", "Points (means over repeats)", head, rows, text_columns=len(axes))
        + more
        + html.csv_button("points-table", "points")
    )
