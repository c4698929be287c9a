"""`report.html`: one self-contained page that answers the run's question, works offline and stays below 8 MB."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from prefixsim.errors import InputError, OutputError, Problem
from prefixsim.paths import write_whole
from prefixsim.report import figures as figs
from prefixsim.report import figures_cache as cache
from prefixsim.report import sections as html
from prefixsim.report.collect import collect
from prefixsim.report.figures import Figure
from prefixsim.report.folder import RunFolder, open_run
from prefixsim.report.setup import setup_section

SIZE_LIMIT = 8_000_000
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Renders a finished run's folder to `report.html` in it (or to `out`) and returns the path.

    Raises InputError when the folder is no finished run, is damaged, or is replaced by another run meanwhile (the page would
    show parts of both), OutputError when the page cannot be written.
    """
    run = open_run(run_folder)
    before = run.which()
    page = render(run)
    if run.which() != before:
        raise InputError(
            Problem("has been replaced by another run meanwhile; make the report again", file=str(run.path))
        )
    target = out or (run_folder if run_folder.is_dir() else run_folder.parent) / "report.html"
    write_whole(target, page)
    return target


def render(run: RunFolder) -> str:
    """The page as text."""
    data, missing = collect(run)
    missing = [*missing, *run.absent]
    time = figs.over_time(run, data)
    latency = figs.latency(run, data)
    who = cache.who_hits(run, data)
    curves = cache.capacity(run, data)
    fleet = cache.replicas(run, data)
    if len(data) > figs.MAX_ENGINES:
        missing.append(f"Figures show the first {figs.MAX_ENGINES} of {len(data)} engines; tables have all.")
    no_curves = (
        "Capacity curves were not computed for this run." if run.curves is None else "curves.json has no usable curve."
    )
    no_timeline = "The run folder has no timeline table: nothing over time can be drawn."
    no_latency = "Without requests and gaps tables the distributions are not known."
    thinned = figs.kept_steps(data)
    body = [
        f'<div id="answer">{html.first_screen(run)}</div>',
        html.ledger_section(run),
        html.section(
            "time", "Over time", html.soft(thinned) if thinned else "", html.figures(time) or html.absent(no_timeline)
        ),
        html.section(
            "latency",
            "Latency",
            html.figures(latency, html.latency_table(run)) or html.absent(no_latency) + html.latency_table(run),
        ),
        html.section(
            "who",
            "Who hits",
            html.figures(who) or html.absent("Without a requests table hit rates by turn and length are not known."),
        ),
        html.section("capacity", "Capacity", html.figures(curves) or html.absent(no_curves), html.ceilings_table(run)),
        html.divergence_section(run),
        html.replica_section(run, data, fleet),
        setup_section(run, missing),
    ]
    page = page_of(run.summary.get("name") or "run", NAV, "".join(body), [*time, *latency, *who, *curves, *fleet])
    if len(page.encode(errors="backslashreplace")) > SIZE_LIMIT:  # every part is bounded; this guards the promise
        raise OutputError(
            f"the report would be {len(page.encode(errors='backslashreplace')) / 1e6:.1f} MB; the limit is {SIZE_LIMIT / 1e6:.0f} MB"
        )
    return page


NAV = (
    ("answer", "Answer"),
    ("ledger", "Ledger"),
    ("time", "Over time"),
    ("latency", "Latency"),
    ("who", "Who hits"),
    ("capacity", "Capacity"),
    ("divergence", "Divergence"),
    ("replicas", "Replicas"),
    ("setup", "Scenario"),
)


def page_of(title: object, nav: Sequence[tuple[str, str]], body: str, drawn: Sequence[Figure]) -> str:
    """A whole page: `nav` are (anchor, title) of its sections, `body` HTML, `drawn` the figures that the body has places for."""
    name = html.esc(title, 120)
    links = "".join(f'<a href="#{anchor}">{text}</a>' for anchor, text in nav)
    payload = [
        {"id": f.id, "title": f.title, "columns": f.columns, "data": f.traces, "layout": f.layout, "height": f.height}
        for f in drawn
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{name} - prefixsim</title>
<link rel="icon" href="data:,">
<style>{_style()}</style>
<script>{_asset("theme.js")}</script>
</head>
<body>
<a class="skip" href="#main">Skip to the result</a>
<header class="top"><nav aria-label="Sections">{links}</nav><button type="button" id="theme" hidden></button></header>
<main id="main">
{body}
<footer class="soft">Made by prefixsim from this run's files. This page loads nothing from the network.</footer>
</main>
<noscript><p class="absent">The figures need JavaScript; all tables are above.</p></noscript>
<script type="application/json" id="figures">{_json(payload)}</script>
<script>{_plotly()}</script>
<script>{_asset("report.js")}</script>
</body>
</html>
"""


def _style() -> str:
    """The style sheet, its dark colours also for browsers that prefer dark and run no scripts."""
    css = _asset("report.css")
    dark = re.search(r':root\[data-theme="dark"\] (\{.*?\})', css, re.DOTALL)
    assert dark is not None
    return css + "@media (prefers-color-scheme: dark) { :root:not([data-theme]) " + dark.group(1) + " }\n"


def _asset(name: str) -> str:
    return (resources.files("prefixsim.report") / "assets" / name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> str:
    """plotly.js as shipped with the plotly package; the package itself is not imported (0.5 s)."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise OutputError("the HTML report needs the package plotly")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
