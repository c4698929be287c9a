"""From a trace to a generator scenario that behaves like it and holds none of its contents.

The scenario's `reuse` generator draws from a sample of (prompt, output, shared, back) taken evenly over all requests in
order of their shared part, and from gamma-distributed gaps with the trace's rate and burstiness.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.errors import NotModelledError
from prefixsim.scenario.workload import WORKLOAD
from prefixsim.workload.describe import arrivals as arrival_facts
from prefixsim.workload.edit import order_quietly, spread_arrivals
from prefixsim.workload.intern import build_trie
from prefixsim.workload.streams import stream
from prefixsim.workload.table import I64, Workload

GRANULARITIES = (1, 16, 64, 512)


def profile(w: Workload) -> tuple[I64, I64]:
    """(shared, back) int64 (n,): prompt tokens inserted by earlier requests, and requests since their last use."""
    from prefixsim.workload.profile_kernels import reuse_profile

    trie = build_trie(w, "vllm")
    shared, back = np.zeros(w.n, np.int64), np.zeros(w.n, np.int64)
    reuse_profile(
        trie.run_offset, trie.run_start, trie.run_end, trie.element_end, trie.element_tokens, w.prompt_tokens,
        w.output_tokens, shared, back,
    )  # fmt: skip
    return shared, back


def fit_trace(w: Workload, *, rows: int, seed: int) -> tuple[str, dict[str, Any]]:
    """(scenario as YAML, figures of the match). Raises NotModelledError for a trace without content."""
    if not w.source.content_known:
        raise NotModelledError(f"{w.source.path}: has lengths only: there is no reuse to fit; give a `sharing:` model")
    shared, back = profile(w)
    table = _sample(np.stack([w.prompt_tokens, w.output_tokens, shared, back], axis=1), rows, seed)
    facts, notes = _arrivals(w, seed)
    section = {"generator": "reuse", "arrivals": facts, "requests": w.n, "rows": table.tolist()}
    from prefixsim.workload.load import load_workload

    made = load_workload(WORKLOAD.validate_python(section), base_dir=Path(), seed=seed)
    match = _match(w, shared, back, made)
    match["notes"] = notes
    return _yaml(w, section, seed, match), match


def _sample(rows: I64, size: int, seed: int) -> I64:
    """Every k-th row in order of shared part, shared share and length; the start that keeps the ceilings best."""
    n = rows.shape[0]
    if n <= size:
        return rows
    order = np.lexsort((rows[:, 0], rows[:, 3], rows[:, 2] * 1_000_000 // rows[:, 0]))
    truth, weight = _figures(rows), np.array([4.0] * len(GRANULARITIES) + [1.0, 1.0])
    best, error = rows[:size], np.inf
    for shift in stream(seed, "fit").random(256):
        chosen = rows[order[np.minimum(((np.arange(size) + shift) * n / size).astype(np.int64), n - 1)]]
        off = float((np.abs(_figures(chosen) / truth - 1) * weight).sum())
        if off < error:
            best, error = chosen, off
    return best


def _figures(rows: I64) -> np.ndarray:
    total = rows[:, 0].sum()
    shares = [(rows[:, 2] // g * g).sum() / total for g in GRANULARITIES]
    return np.array([*shares, rows[:, 0].mean(), rows[:, 1].mean()]) + 1e-9


def _arrivals(w: Workload, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Rate and burstiness of all (nominal) arrivals, quantised ones spread first."""
    notes = []
    free = replace(w, after=np.full(w.n, -1, dtype=np.int32))
    if (w.after >= 0).any():
        notes.append("turns that wait for others are fitted by their nominal arrivals: the scenario is an open loop")
    facts = arrival_facts(free)
    if facts.get("quantised"):
        free = order_quietly(spread_arrivals(free, seed))
        facts = arrival_facts(free)
        notes.append("arrival stamps are quantised: burstiness is that of arrivals spread over each stamp's bin")
    if not facts.get("span_s"):
        return {"process": "all_at_once"}, notes
    shape = float(np.clip(1 / max(facts["gap_cv"], 1e-3) ** 2, 0.01, 1e4))
    return {
        "process": "gamma",
        "rate_per_s": float(f"{facts['rate_per_s']:.6g}"),
        "shape": float(f"{shape:.4g}"),
    }, notes


def _match(w: Workload, shared: I64, back: I64, made: Workload) -> dict[str, Any]:
    theirs, their_back = profile(made)
    figures = []

    def row(name: str, a: float, b: float) -> None:
        figures.append({"figure": name, "trace": a, "scenario": b})

    for g in GRANULARITIES:
        row(
            f"ceiling {'token' if g == 1 else g}",
            float((shared // g * g).sum() / w.prompt_tokens.sum()),
            float((theirs // g * g).sum() / made.prompt_tokens.sum()),
        )
    for name, a, b in (
        ("prompt tokens", w.prompt_tokens, made.prompt_tokens),
        ("output tokens", w.output_tokens, made.output_tokens),
        ("requests since last use", back[shared > 0], their_back[theirs > 0]),
    ):
        if a.shape[0] and b.shape[0]:
            row(f"{name} mean", float(a.mean()), float(b.mean()))
            for q in (50, 95):
                row(f"{name} p{q}", float(np.percentile(a, q)), float(np.percentile(b, q)))
    row("share of requests that reuse", float((shared > 0).mean()), float((theirs > 0).mean()))
    free = replace(w, after=np.full(w.n, -1, dtype=np.int32))
    before, after = arrival_facts(free), arrival_facts(made)
    if before.get("span_s") and after.get("span_s"):
        row("requests a second", before["rate_per_s"], after["rate_per_s"])
        row("variation of gaps", before["gap_cv"], after["gap_cv"])
    return {"requests": w.n, "figures": figures}


def fit_text(match: dict[str, Any]) -> str:
    """The match as lines for a terminal."""
    lines = [f"{'':<32} {'trace':>12} {'scenario':>12}"]
    for f in match["figures"]:
        share = f["figure"].startswith(("ceiling", "share"))
        a, b = (f"{v:.2%}" if share else f"{v:,.4g}" for v in (f["trace"], f["scenario"]))
        lines.append(f"{f['figure']:<32} {a:>12} {b:>12}")
    return "\n".join(lines + [f"note: {n}" for n in match["notes"]])


def _yaml(w: Workload, section: dict[str, Any], seed: int, match: dict[str, Any]) -> str:
    arrivals = ", ".join(f"{k}: {v}" for k, v in section["arrivals"].items())
    head = [
        "# yaml-language-server: $schema=../docs/schema/scenario.schema.json",
        f"# Fitted to a {w.source.kind} trace of {w.n:,} requests (SHA-256 {w.source.sha256[:16]}); holds none of its contents.",
        *(f"#   {line}".rstrip() for line in fit_text(match).splitlines()),
        f"name: fitted-{w.source.kind}",
        "workload:",
        "  generator: reuse",
        f"  arrivals: {{{arrivals}}}",
        f"  requests: {section['requests']}",
        "  rows:  # [prompt, output, shared, back] of sampled requests",
    ]
    rows = [f"    - {row}" for row in section["rows"]]
    tail = [
        "hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}",
        "engines:",
        "  - {name: vllm, kind: vllm@0.33}",
        "  - {name: sglang, kind: sglang@0.5.23}",
        f"seed: {seed}",
        "",
    ]
    return "\n".join(head + rows + tail)
