"""The sweep's page: figures by number of axes, names stay text, failed points are listed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixsim.report.study_html import render


def row(value: float, repeat: int = 0, **axes: Any) -> dict[str, Any]:
    return {
        "axes": axes,
        "repeat": repeat,
        "run_id": "x",
        "summary": {"engines": {"e": {"hit_rate": value, "cost": 1 - value}}},
    }


ABOUT = {
    "name": "<script>alert(1)</script>",
    "axes": ["a", "b"],
    "columns": ["e.hit_rate"],
    "cost": None,
    "latency": None,
}


def figures(page: str) -> list[dict[str, Any]]:
    start = page.index('id="figures">') + len('id="figures">')
    return json.loads(page[start : page.index("</script>", start)])


def test_two_axes_make_a_heat_map_of_means() -> None:
    rows = [row(0.1, a=1, b="x"), row(0.3, 1, a=1, b="x"), row(0.5, a=1, b="y"), row(0.7, a=2, b="x")]
    (heat,) = figures(render(ABOUT, rows))
    (trace,) = heat["data"]
    assert (trace["x"], trace["y"]) == (["x", "y"], ["1", "2"])
    assert trace["z"] == [[pytest.approx(0.2), 0.5], [0.7, None]]


def test_one_axis_makes_a_line_or_bars() -> None:
    one = {**ABOUT, "axes": ["a"]}
    assert figures(render(one, [row(0.1, a=1), row(0.2, a=2)]))[0]["data"][0]["type"] == "scatter"
    assert figures(render(one, [row(0.1, a="p"), row(0.2, a="q")]))[0]["data"][0]["type"] == "bar"


def test_the_front_holds_what_nothing_beats() -> None:
    about = {**ABOUT, "cost": "e.cost", "latency": "e.hit_rate"}
    rows = [row(0.1, a=1, b=1), row(0.2, a=1, b=2), row(0.15, a=2, b=1)]
    front = next(f for f in figures(render(about, rows)) if f["id"] == "pareto")["data"][1]
    assert len(front["x"]) == 3, "cost falls as the other rises: all are on the front"
    assert front["y"] == sorted(front["y"], reverse=True)


def test_names_stay_text_and_failures_are_listed() -> None:
    bad = {"axes": {"a": "<img src=x>"}, "repeat": 0, "run_id": None, "error": "<b>no</b>"}
    page = render(ABOUT, [row(0.1, a=1, b=1), bad])
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "<b>no</b>" not in page
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    ids = [p.split('"')[1] for p in page.split(" id=")[1:] if p.startswith('"')]
    assert len(ids) == len(set(ids)), "two elements with one id: the page's script would read the wrong one"


def test_shares_are_percent_and_an_engine_keeps_its_colour() -> None:
    about = {**ABOUT, "axes": ["a"], "columns": ["e.hit_rate", "f.hit_rate", "e.cost"]}
    rows = [row(0.1, a=1), row(0.2, a=2)]
    for r in rows:
        r["summary"]["engines"]["f"] = {"hit_rate": 0.5}
    hit, other, cost = figures(render(about, rows))
    assert [f["data"][0]["engine"] for f in (hit, other, cost)] == [0, 1, 0]
    assert [f["layout"]["yaxis"].get("tickformat") for f in (hit, other, cost)] == ["~%", "~%", None]
    page = render(ABOUT, [row(0.1, a=1, b=1), row(0.2, a=2, b=2)])
    (heat,) = figures(page)
    assert heat["data"][0]["colorbar"]["tickformat"] == "~%"
    assert "the stronger the colour, the higher" in page
