"""The report's HTML, section by section. Every text from the run passes `esc`; numbers pass the formatters of `facts`."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from prefixsim.report import facts
from prefixsim.report.answer import answer
from prefixsim.report.collect import EngineData
from prefixsim.report.figures import Figure
from prefixsim.report.folder import RunFolder

MAX_ROWS = 200
UNSEEN = '<span class="unseen">{}</span>'
"""A column head for those who hear the table; the eye does without."""


def esc(value: object, limit: int = 300) -> str:
    """Text for HTML, control characters shown, cut at `limit`."""
    return html.escape(facts.clean(value, limit), quote=True)


def section(anchor: str, title: str, *body: str) -> str:
    """A section with its heading."""
    return f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{esc(title)}</h2>{"".join(body)}</section>\n'


def absent(text: str) -> str:
    """A sentence where something is not there."""
    return f'<p class="absent">{esc(text)}</p>'


def soft(text: str) -> str:
    return f'<p class="soft">{esc(text, 1000)}</p>'


def dot(index: int) -> str:
    """An engine's colour."""
    return f'<span class="dot" style="background:var(--e{index % 6})" aria-hidden="true"></span>'


def table(
    anchor: str,
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[tuple[str, object]]],
    *,
    text_columns: int = 1,
    wrap: Sequence[int] = (),
    css: str = "",
    key_rows: Sequence[int] = (),
) -> str:
    """A table that scrolls by itself on a narrow screen. head: HTML of the column heads; rows: cells of (HTML, raw value
    for the CSV or None to take the text); the first cell of a row is its heading."""

    def column(i: int) -> str:
        names = ("t" if i < text_columns or i in wrap else "", "wrap" if i in wrap else "")
        joined = " ".join(n for n in names if n)
        return f' class="{joined}"' if joined else ""

    heads = "".join(f'<th scope="col"{column(i)}>{h}</th>' for i, h in enumerate(head))
    body = []
    for r, row in enumerate(rows):
        cells = []
        for i, (shown, raw) in enumerate(row):
            data = f' data-v="{esc(raw)}"' if raw is not None else ""
            tag, scope = ("th", ' scope="row"') if i == 0 else ("td", "")
            cells.append(f"<{tag}{scope}{column(i)}{data}>{shown}</{tag}>")
        row_class = ' class="key"' if r in key_rows else ""
        body.append(f"<tr{row_class}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll {css}" tabindex="0" role="region" aria-label="{esc(caption)}"><table id="{anchor}">'
        f"<caption>{esc(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def csv_button(anchor: str, what: str) -> str:
    return f'<button type="button" data-csv="{anchor}" aria-label="Download CSV: {esc(what, 80)}">Download CSV</button>'


def figure(fig: Figure) -> str:
    """A figure's frame; the browser draws into it."""
    return (
        f'<figure id="{fig.id}"{" class=wide" if fig.wide else ""}><figcaption><h3>{esc(fig.title)}</h3><p>{esc(fig.says, 600)}</p></figcaption>'
        f'<div class="plot" id="plot-{fig.id}" style="min-height:{fig.height}px" role="img" '
        f'aria-label="{esc(describe(fig), 1500)}"></div>'
        f'<div class="tools">{csv_button(fig.id, fig.title)}<details data-table="{fig.id}"><summary>Data as a table'
        f"{UNSEEN.format(f': {esc(fig.title)}')}</summary>"
        "</details></div></figure>"
    )


def describe(fig: Figure) -> str:
    """What a figure shows, for those who cannot see it: each line's range."""
    parts = [f"{fig.title}. {fig.says}"]
    for trace in fig.traces[:12]:
        flat = trace.get("z") or [trace["x"] if trace.get("orientation") == "h" else trace["y"]]
        values = [v for row in flat for v in row if isinstance(v, int | float)]
        if values:
            parts.append(f"{trace['name']}: from {min(values):.4g} to {max(values):.4g}, last {values[-1]:.4g}.")
    return " ".join(parts)


def figures(figs: Sequence[Figure], last: str = "") -> str:
    """Figures in a grid, `last` in its last cell; "" without figures."""
    return f'<div class="grid">{"".join(figure(f) for f in figs)}{last}</div>' if figs else ""


# ---- first screen ------------------------------------------------------------------------------------------------


def first_screen(run: RunFolder) -> str:
    """Name, the answer in a sentence, the comparison, what to be careful about."""
    summary = run.summary
    says = answer(summary)
    careful = [t for t in says[1:] if "saturated" in t]
    careful += [n for n in facts.notes(summary) if "DEFECT" in n or ": saturated:" in n]
    careful += [t for t in says[1:] if "synthetic" in t]
    more = [t for t in says[1:] if t not in careful]
    callout = "".join(f"<p>{esc(t, 1200)}</p>" for t in careful)
    return (
        f"<h1>{esc(summary.get('name') or 'run', 120)}</h1>{_meta(summary)}"
        f'<p class="answer">{_glued(says[0])}</p>'
        + (f'<p class="more">{_glued(" ".join(more))}</p>' if more else "")
        + (f'<div class="callout" role="note">{callout}</div>' if callout else "")
        + _comparison(summary)
    )


def _glued(text: str) -> str:
    """Text whose percent signs stay with their numbers."""
    return esc(text, 1500).replace(" %", "&nbsp;%")


def _meta(summary: Mapping[str, Any]) -> str:
    requests = facts.number(summary, "workload", "requests")
    words = [
        f"{facts.integer(requests)} request{'' if requests == 1 else 's'}" if requests is not None else "",
        facts.get(summary, "workload", "kind"),
        _name(facts.get(summary, "hardware", "gpu")),
        _name(facts.get(summary, "hardware", "model")),
        f"run {str(summary['run_id'])[:12]}" if summary.get("run_id") else "",
    ]
    return f'<p class="meta">{" · ".join(esc(w, 80) for w in words if w)}</p>'


def _name(value: Any) -> Any:
    return value.get("name") if isinstance(value, Mapping) else value


def _comparison(summary: Mapping[str, Any]) -> str:
    names = list(facts.engines_of(summary))
    if not names:
        return ""
    rows, key = [], []
    for r, row in enumerate(facts.comparison(summary)):
        if row.key == "hit_rate":
            key.append(r)
        cells: list[tuple[str, object]] = [(esc(row.label), row.key)]
        for shown, value in zip(row.cells, row.values, strict=True):
            bad = row.key == "saturated" and value is True
            cells.append(
                (f'<span class="bad">{esc(shown)}</span>' if bad else esc(shown), "" if value is None else value)
            )
        rows.append(cells)
    head = [UNSEEN.format("quantity"), *(f"{dot(i)}{esc(n, 40)}" for i, n in enumerate(names))]
    shown = table("t-comparison", "The engines side by side", head, rows, css="compare", key_rows=key)
    return shown + f'<div class="tools">{csv_button("t-comparison", "comparison")}</div>'


# ---- ledger ------------------------------------------------------------------------------------------------------


def ledger_section(run: RunFolder) -> str:
    """One waterfall an engine: from all prompt tokens down to what was served from cache."""
    books = {}
    for i, (name, engine) in enumerate(facts.engines_of(run.summary).items()):
        parts, prompt = facts.ledger(engine), facts.number(engine, "prompt_tokens")
        if parts is not None and prompt:
            books[i] = (name, parts, prompt)
    if not books:
        return section("ledger", "Where every prompt token went", absent("This run has no ledger."))
    used = [p.key for p in facts.LEDGER_PARTS if any(parts[p.key] for _, parts, _ in books.values())]
    falls = [_waterfall(i, *book, used) for i, book in books.items()]
    words = "".join(f"<dt>{esc(p.label)}</dt><dd>{esc(p.why)}</dd>" for p in facts.LEDGER_PARTS if p.key in used)
    return section(
        "ledger",
        "Where every prompt token went",
        soft(
            "Read from the top: what stands in the way of a hit takes its share of the prompt tokens, what is left at the "
            "end was served from cache. Parts that are zero everywhere are left out; the parts sum to the prompt tokens."
        ),
        f'<div class="grid">{"".join(falls)}</div><dl class="parts">{words}</dl>',
    )


def _waterfall(index: int, name: str, parts: Mapping[str, float], prompt: float, used: Sequence[str]) -> str:
    anchor, rows, left = f"t-ledger-{index}", [], 100.0
    for part in (facts.PART_BY_KEY[key] for key in used):
        value = parts[part.key]
        share = 100 * value / prompt
        left -= share
        hue = (
            f"var(--e{index % 6})" if part.key.startswith("hit") else f"var(--{'new' if part.key == 'new' else 'lost'})"
        )
        bar = (
            f'<span class="track"><span class="bar" style="left:{min(max(left, 0), 99.7):.3f}%;'
            f'width:{min(max(share, 0), 100):.3f}%;background:{hue if value else "none"}"></span></span>'
        )
        rows.append(
            f'<tr><th scope="row" class="t" data-v="{part.key}">{esc(part.label)}</th>'
            f'<td data-skip aria-hidden="true">{bar}</td>'
            f'<td class="n" data-v="{int(value)}">{facts.integer(value)}</td>'
            f'<td class="s" data-v="{value / prompt:.8g}">{facts.percent(value / prompt)}</td></tr>'
        )
    return (
        f'<figure><figcaption><h3 id="h-{anchor}">{dot(index)}{esc(name, 60)}</h3></figcaption>'
        f'<table class="fall" id="{anchor}" aria-labelledby="h-{anchor}">'
        f'<thead><tr><th scope="col" class="t">part</th><td data-skip aria-hidden="true"></td>'
        f'<th scope="col" class="n">tokens</th><th scope="col" class="s">share</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        f'<div class="tools">{csv_button(anchor, "ledger of " + name)}</div></figure>'
    )


# ---- latency table, divergence, replicas -------------------------------------------------------------------------


def latency_table(run: RunFolder) -> str:
    """Percentiles of the summary."""
    rows = []
    engines = facts.engines_of(run.summary)
    for key, label in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E")):
        for i, (name, engine) in enumerate(engines.items()):
            values = [facts.number(engine, key, q) for q in ("p50", "p90", "p99", "mean")]
            row: list[tuple[str, object]] = [(label, None), (f"{dot(i)}{esc(name, 40)}", name)]
            row += [(facts.seconds(v), "" if v is None else v) for v in values]
            rows.append(row)
    head = [UNSEEN.format("latency"), "engine", "p50", "p90", "p99", "mean"]
    shown = table("t-latency", "Exact percentiles (CSV in seconds)", head, rows, text_columns=2, css="named")
    return f'<div>{shown}<div class="tools">{csv_button("t-latency", "latency percentiles")}</div></div>'


def ceilings_table(run: RunFolder) -> str:
    """What an infinite cache would serve at each block size; "" where no ceiling was computed."""
    ceilings, tokens = facts.get(run.summary, "ceiling"), facts.get(run.summary, "ceiling_tokens")
    if not isinstance(ceilings, Mapping) or not ceilings:
        return ""
    sizes = sorted(
        (1 if k == "token" else int(k), k) for k in ceilings if k == "token" or (str(k).isdecimal() and len(k) < 16)
    )
    rows: list[list[tuple[str, object]]] = []
    for size, key in sizes[:MAX_ROWS]:
        share, hit = facts.number(ceilings, key), facts.number(tokens, key)
        row: list[tuple[str, object]] = [("1 token (any cache)" if key == "token" else f"{size:,} tokens", size)]
        row.append((facts.integer(hit), "" if hit is None else hit))
        rows.append([*row, (facts.percent(share, 2), "" if share is None else share)])
    caption = "Ceilings: what an infinite cache would serve, lookups in order of arrival"
    shown = table("t-ceilings", caption, ["block size", "tokens", "of prompt tokens"], rows)
    return f'<div>{shown}<div class="tools">{csv_button("t-ceilings", "ceilings")}</div></div>'


def divergence_section(run: RunFolder) -> str:
    """Where prompts part, ranked by what is lost behind the place."""
    title = "Where prompts part"
    if run.divergence is None:
        return section("divergence", title, absent("Divergence points were not computed for this run."))
    every = [p for p in run.divergence if isinstance(p, Mapping)]
    points = [p for p in every if facts.number(p, "lost_tokens") != 0]
    points.sort(key=lambda p: -(facts.number(p, "lost_tokens") or 0))
    if not points:
        says = "No position was found where prompts part and sharing is lost."
        if every:
            says += (
                f" {len(every)} positions where many requests part were looked at: what follows them is new content."
            )
        return section("divergence", title, soft(says))
    rows = []
    for p in points[:MAX_ROWS]:
        group = _groups(p)
        row: list[tuple[str, object]] = [(esc(group or "(all)", 80), group)]
        for keys in (("position", "depth_tokens"), ("requests",), ("branches",), ("lost_tokens",)):
            value = next((v for k in keys if (v := facts.number(p, k)) is not None), None)
            row.append((facts.integer(value), "" if value is None else value))
        words = "; ".join(t for k in ("kind", "note", "kind_meaning") for t in facts.sentences(p.get(k)))
        rows.append([*row, (esc(words, 400), words[:400])])
    more = f"; the first {MAX_ROWS} of {len(points)}" if len(points) > MAX_ROWS else ""
    head = [
        "group",
        "token position",
        "requests there",
        "different ways on",
        "tokens lost behind",
        "what it looks like",
    ]
    return section(
        "divergence",
        title,
        soft("Positions in the prompt where requests that were alike so far go different ways, and the prompt tokens "
             "behind them that would otherwise be shared. Most expensive first."),
        table("t-divergence", f"Divergence points{more}", head, rows, wrap=(5,), css="tall"),
        f'<div class="tools">{csv_button("t-divergence", "divergence points")}</div>',
    )  # fmt: skip


def _groups(point: Mapping[str, Any]) -> str:
    """The group of a divergence point; of several the first ones, most tokens lost first."""
    groups = point.get("groups")
    if isinstance(groups, list):
        names = [facts.clean(g["name"], 40) for g in groups if isinstance(g, Mapping) and g.get("name")]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return "" if point.get("group") is None else str(point["group"])


def replica_section(run: RunFolder, data: Mapping[str, EngineData], figs: Sequence[Figure]) -> str:
    """Each replica by itself."""
    rows: list[list[tuple[str, object]]] = []
    count = 0
    for i, (name, d) in enumerate(data.items()):
        if len(d.replicas) < 2:
            continue
        for r in sorted(d.replicas):
            count += 1
            if len(rows) >= MAX_ROWS:
                continue
            sums, ttft = d.replicas[r], d.replica_ttft.get(r)
            row: list[tuple[str, object]] = [(f"{dot(i)}{esc(name, 40)}", name), (str(r), r)]
            row += [(facts.integer(v), int(v)) for v in (sums.requests, sums.prompt, sums.cached)]
            row.append((facts.percent(sums.rate), "" if sums.rate is None else f"{sums.rate:.8g}"))
            for q in (0.5, 0.99):
                value = ttft.quantile(q) if ttft else None
                row.append((facts.seconds(value), "" if value is None else f"{value:.4g}"))
            rows.append(row)
    if not rows:
        return section("replicas", "Replicas", soft("Every engine ran as one replica; the figures above are its own."))
    more = f"; the first {MAX_ROWS} of {count}" if count > len(rows) else ""
    head = ["engine", "replica", "requests", "prompt tokens", "cached tokens", "hit rate", "TTFT p50", "TTFT p99"]
    return section(
        "replicas",
        "Replicas",
        figures(figs),
        table("t-replicas", f"Replicas{more} (TTFT to 1 %)", head, rows, css="tall"),
        f'<div class="tools">{csv_button("t-replicas", "replicas")}</div>',
    )
