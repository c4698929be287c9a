"""`prefixsim trace`: what is in a trace, to native rows, to a scenario that behaves like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from prefixsim.cli.complete import trace_formats

trace = typer.Typer(help="Describe, convert and fit traces.", no_args_is_help=True)

_SET_HELP = (
    "KEY=VALUE: an option of the scenario's `trace:` section (time_scale=10, on_bad_row=skip, sharing.families=8, ...)."
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.add_typer(trace, name="trace")


def _load(path: str, format: str | None, block_size: int | None, settings: list[str], seed: int) -> Any:
    from prefixsim.workload.load import load_trace, trace_options

    options = trace_options(path, format=format, block_size=block_size, settings=settings)
    return load_trace(options, base_dir=Path(), seed=seed)


@trace.command()
def formats(json_: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """The trace formats there are."""
    import json

    from prefixsim.workload.formats.registry import formats as known

    rows = [
        {"format": f.name, "title": f.title, "content": f.content, "times": f.times, "block_size": f.block_size}
        for f in known().values()
    ]
    if json_:
        typer.echo(json.dumps(rows, indent=2))
        return
    for r in rows:
        times = "with times" if r["times"] else "no times"
        typer.echo(f"{r['format']:<10} {r['title']:<32} {r['content']}, {times}")


@trace.command()
def describe(
    path: str = typer.Argument(..., help="Trace file or folder."),
    format: str | None = typer.Option(
        None, "--format", autocompletion=trace_formats, help="Format; default: by evidence."
    ),
    block_size: int | None = typer.Option(None, "--block-size", min=1, help="Tokens of one content id."),
    settings: list[str] = typer.Option([], "--set", help=_SET_HELP),
    granularity: list[int] = typer.Option(
        [1, 16, 32, 64, 128, 256, 512], "--granularity", min=1, help="Ceilings' block sizes."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of synthetic parts."),
    html: Path | None = typer.Option(None, "--html", help="Also write a self-contained HTML page."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """What a trace is: decisions with their evidence, counts, lengths, arrivals, sessions, ceilings, what is missing."""
    import json

    from prefixsim.workload.describe import describe as facts
    from prefixsim.workload.describe import describe_text
    from prefixsim.workload.intern import build_trie

    w = _load(path, format, block_size, settings, seed)
    trie = build_trie(w, "vllm") if w.source.content_known else None
    d = facts(w, trie)
    if trie is not None:
        d["ceilings"] = _ceilings(w, trie, granularity)
    if html is not None:
        from prefixsim.workload.describe_html import write_html

        write_html(html, d, w)
    typer.echo(json.dumps(d, indent=2, sort_keys=False) if json_ else describe_text(d))


def _ceilings(w: Any, trie: Any, granularity: list[int]) -> dict[str, Any]:
    from prefixsim.analysis.ceilings import ceilings

    found = ceilings(w, tuple(granularity), rule="vllm", trie=trie)
    out = {}
    for g in dict.fromkeys(granularity):
        hit, total = found.total(g)
        out["token" if g == 1 else str(g)] = {"hit_tokens": hit, "prompt_tokens": total, "share": hit / total}
    return out


@trace.command()
def convert(
    path: str = typer.Argument(..., help="Trace file or folder."),
    out: Path = typer.Option(..., "--out", "-o", help="Native file to write (JSON lines); `-`: standard output."),
    format: str | None = typer.Option(
        None, "--format", autocompletion=trace_formats, help="Format; default: by evidence."
    ),
    block_size: int | None = typer.Option(None, "--block-size", min=1, help="Tokens of one content id."),
    settings: list[str] = typer.Option([], "--set", help=_SET_HELP),
    seed: int = typer.Option(0, "--seed", help="Seed of synthetic parts."),
    json_: bool = typer.Option(False, "--json", help="Say on stdout as JSON what was written; not with `--out -`."),
) -> None:
    """Writes a trace as native rows; everything the simulator sees is kept."""
    import json
    import sys

    from prefixsim.errors import InputError
    from prefixsim.workload.write_native import native_lines

    if json_ and str(out) == "-":
        raise InputError("--json says what was written; with `--out -` stdout carries the trace")
    w = _load(path, format, block_size, settings, seed)
    if str(out) == "-":
        for line in native_lines(w):
            sys.stdout.buffer.write(line)
        return
    _write_whole(out, native_lines(w))
    if json_:
        typer.echo(json.dumps({"out": str(out), "requests": w.n, "bytes": out.stat().st_size}))
    else:
        typer.echo(f"{out}: {w.n:,} requests", err=True)


@trace.command()
def fit(
    path: str = typer.Argument(..., help="Trace file or folder."),
    out: Path = typer.Option(..., "--out", "-o", help="Scenario to write (YAML)."),
    format: str | None = typer.Option(
        None, "--format", autocompletion=trace_formats, help="Format; default: by evidence."
    ),
    block_size: int | None = typer.Option(None, "--block-size", min=1, help="Tokens of one content id."),
    settings: list[str] = typer.Option([], "--set", help=_SET_HELP),
    rows: int = typer.Option(1000, "--rows", min=16, max=20_000, help="Size of the sample that the scenario holds."),
    seed: int = typer.Option(1, "--seed", help="Seed of the scenario."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Writes a generator scenario that behaves like a trace, without its contents, and prints how well it matches."""
    import json

    from prefixsim.workload.fit import fit_text, fit_trace
    from prefixsim.wrap import fitted

    w = _load(path, format, block_size, settings, seed)
    text, match = fit_trace(w, rows=rows, seed=seed)
    _write_whole(out, iter([text.encode()]))
    typer.echo(json.dumps(match, indent=2) if json_ else fitted(fit_text(match)))
    typer.echo(f"{out}: written", err=True)


def _write_whole(path: Path, parts: Any) -> None:
    from prefixsim.paths import whole_file

    with whole_file(path) as part, part.open("wb") as f:
        f.writelines(parts)
