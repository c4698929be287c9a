"""The description of a trace as one self-contained HTML page: tables and small drawings, no scripts."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.paths import write_whole
from prefixsim.workload.table import Workload

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:1.6rem}
.warn{background:#fff3cd;color:#1c1c1c;padding:.5rem .8rem;border-radius:.3rem}svg{display:block;max-width:100%}
svg path{fill:none;stroke:#2563eb;stroke-width:2}svg text{font-size:11px;fill:currentColor}svg line{stroke:#999}
@media(prefers-color-scheme:dark){body{background:#16181d;color:#e8e8e8}svg path{stroke:#7aa2ff}}"""


def write_html(path: Path, d: dict[str, Any], w: Workload) -> None:
    """Writes the page. Names from the trace are escaped. Raises OutputError."""
    title = escape(f"{d['path'] or d['kind']}: {d['requests']:,} requests")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>",
        f"<style>{_STYLE}</style><h1>{title}</h1>",
    ]
    if d["synthetic"]:
        parts.append("<p class=warn>Synthetic: contents or arrivals come from a model, not from the file.</p>")
    rows = [[c["name"], c["value"] + (" (given)" if c["given"] else ""), c["evidence"]] for c in d["decisions"]]
    parts.append("<h2>What was decided, and why</h2>" + table(["what", "value", "evidence"], rows))
    columns = ("mean", "p5", "p50", "p95", "p99", "max")
    rows = [[n, *(f"{d[f'{n}_length'][c]:,.0f}" for c in columns)] for n in ("prompt", "output")]
    parts.append("<h2>Lengths in tokens</h2>" + table(["", *columns], rows, numeric=True))
    parts.append(cdf("prompt tokens", w.prompt_tokens) + cdf("output tokens", w.output_tokens))
    if "ceilings" in d:
        rows = [
            [g, f"{c['hit_tokens']:,}", f"{c['prompt_tokens']:,}", f"{c['share']:.2%}"]
            for g, c in d["ceilings"].items()
        ]
        parts.append(
            "<h2>Ceilings: the most that any prefix cache could serve</h2>"
            + table(["tokens a block", "hit tokens", "prompt tokens", "share"], rows, numeric=True)
        )
    elif not d["content_known"]:
        parts.append("<h2>Ceilings</h2><p class=warn>Unknown, not 0: the trace has lengths only.</p>")
    a = d["arrivals"]
    rows = [
        [k.replace("_", " "), f"{v:,.6g}" if isinstance(v, float) else f"{v:,}"]
        for k, v in a.items()
        if not isinstance(v, bool)
    ]
    parts.append("<h2>Arrivals</h2>" + table(["", ""], rows, numeric=True))
    if a.get("quantised"):
        parts.append(
            "<p class=warn>Arrival stamps are quantised; <code>spread_arrivals: uniform</code> spreads them.</p>"
        )
    parts.append(rate(w))
    if d["groups"]:
        rows = [[g["group"], f"{g['requests']:,}", f"{g['prompt_tokens']:,}"] for g in d["groups"][:50]]
        parts.append("<h2>Groups</h2>" + table(["group", "requests", "prompt tokens"], rows, numeric=True))
    listed = "".join(f"<li>{escape(n)}</li>" for n in d["notes"])
    lacking = "".join(f"<li>{escape(n)}</li>" for n in d["missing"])
    parts.append(f"<h2>Notes</h2><ul>{listed}</ul><h2>Not in the file</h2><ul>{lacking}</ul></html>")
    write_whole(path, "\n".join(parts))


def table(head: list[str], rows: list[list[str]], numeric: bool = False) -> str:
    """An HTML table; all but the first column right-aligned where `numeric`."""
    cls = [" class=n" if numeric and i else "" for i in range(len(head))]
    out = "<table><tr>" + "".join(f"<th{c}>{escape(h)}</th>" for h, c in zip(head, cls, strict=True)) + "</tr>"
    for row in rows:
        out += "<tr>" + "".join(f"<td{c}>{escape(v)}</td>" for v, c in zip(row, cls, strict=True)) + "</tr>"
    return out + "</table>"


def cdf(name: str, values: Any) -> str:
    """Share of requests (upwards) at or below a length (logarithmic)."""
    v = np.sort(np.maximum(np.asarray(values, dtype=np.float64), 1.0))
    share = np.linspace(0, 1, 200)
    x = np.log10(np.quantile(v, share))
    return _curve(f"{name}: share of requests at or below", x, share, f"{v[0]:,.0f}", f"{v[-1]:,.0f}", "100 %")


def rate(w: Workload) -> str:
    """Arrivals over time in 200 bins."""
    times = w.arrival_ns / 1e9
    if w.n < 2 or times.max() == times.min():
        return ""
    count, edges = np.histogram(times, bins=min(200, max(2, w.n // 4)))
    y = count / (edges[1] - edges[0])
    return _curve(
        "arrivals a second over time (nominal)",
        edges[:-1],
        y,
        f"{times.min():,.0f} s",
        f"{times.max():,.0f} s",
        f"{y.max():,.1f}",
    )


def _curve(title: str, x: Any, y: Any, left: str, right: str, top: str) -> str:
    width, height = 640.0, 140.0
    span_x, span_y = max(float(x.max() - x.min()), 1e-12), max(float(y.max()), 1e-12)
    px = 40 + (x - x.min()) / span_x * (width - 60)
    py = height - 20 - y / span_y * (height - 40)
    d = "M" + " L".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py, strict=True))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><svg role=img aria-label='{escape(title)}' viewBox='0 0 {width:.0f} {height:.0f}' "
        f"width={width:.0f}><line x1=40 y1={height - 20:.0f} x2={width - 20:.0f} y2={height - 20:.0f} /><path d='{d}'/>"
        f"<text x=40 y={height - 4:.0f}>{escape(left)}</text><text x={width - 20:.0f} y={height - 4:.0f} text-anchor=end>{escape(right)}</text>"
        f"<text x=0 y=24>{escape(top)}</text></svg></figure>"
    )
