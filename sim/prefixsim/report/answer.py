"""A run's answer in sentences: who serves how much from cache, what the ceiling is, where the rest is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from prefixsim.report.facts import (
    LOSSES,
    ceiling_of,
    clean,
    engines_of,
    get,
    granularity_of,
    ledger,
    number,
    percent,
)

SHOWN = 4
"""Engines, or groups of engines that serve the same, named in a sentence."""


def answer(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that answer the question of the run, most important first."""
    engines = {clean(name, 40): e for name, e in engines_of(summary).items()}
    known = [(name, h) for name, e in engines.items() if (h := number(e, "hit_rate")) is not None]
    known.sort(key=lambda x: -x[1])
    if get(summary, "workload", "content_known") is False:
        out = [
            "The trace has lengths only, so which prompt tokens are shared is not known: hit rates mean nothing here."
        ]
    elif not known:
        out = ["This run has no hit rate: no request was admitted." if engines else "This run has no engines."]
    else:
        out = _cached(known, ceiling_of(summary), engines)
    full = [name for name, e in engines.items() if e.get("saturated") is True]
    if full:
        verb = "is" if len(full) == 1 else "are"
        out.append(
            f"{_join(full[:6])} {verb} saturated: the queue grows, so latencies depend on how long the run lasts."
        )
    if get(summary, "workload", "synthetic") is True:
        out.append("What the requests share is synthetic, not taken from real traffic.")
    return out


def _cached(
    known: Sequence[tuple[str, float]], top: float | None, engines: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """The sentences about hit rates. known: (engine, hit rate), best first; top: the ceiling."""
    best = known[0][1]
    if top == 0 and best == 0:
        books = [(ledger(e), number(e, "prompt_tokens")) for e in engines.values()]
        new = all(parts is not None and parts["new"] == prompt for parts, prompt in books)
        why = ["No prompt begins like one that came before it."] if new else []
        return ["No prompt token can be served from cache: the ceiling is 0 %.", *why]
    out = [f"{_serve(known)}{_against(known, top)}"]
    if top is not None and best > top + 5e-5:
        out.append(
            "A hit rate above the ceiling is possible: the ceiling follows the order of arrival, the engine its own."
        )
    lost: dict[str, list[str]] = {}
    for name, _ in known[:SHOWN]:
        if text := _losses(engines[name]):
            lost.setdefault(text, []).append(name)
    return out + [
        f"{_join(names)} {'each lose' if len(names) > 1 else 'loses'} {text}." for text, names in lost.items()
    ]


def _serve(known: Sequence[tuple[str, float]]) -> str:
    """ "radix serves 58.1 % of prompt tokens from cache, hash 55.4 %"; engines that serve the same stand together."""
    same = [([name for name, _ in group], rate) for rate, group in groupby(known, key=lambda x: x[1])]
    digits = 1 if len({percent(rate) for _, rate in same[:SHOWN]}) == len(same[:SHOWN]) else 2

    def share(rate: float) -> str:
        return percent(rate, digits) if rate else "nothing"

    names, best = same[0]
    some = _join(names) if len(names) <= SHOWN else f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"
    verb = "serves" if len(names) == 1 else "each serve" if best else "serve"
    out = f"{some} {verb} {f'{share(best)} of' if best else 'no'} prompt tokens from cache"
    out += "".join(f", {_join(n[:SHOWN])} {share(rate)}" for n, rate in same[1:SHOWN])
    more = sum(len(n) for n, _ in same[SHOWN:])
    return f"{out}, {more} more from {share(known[-1][1])}" if more else out


def _against(known: Sequence[tuple[str, float]], top: float | None) -> str:
    """How that stands to the ceiling."""
    best = known[0][1]
    if top is None:
        return "; the ceiling was not computed."
    if math.isclose(best, top, rel_tol=1e-9) and known[-1][1] == best:
        return ", which is the ceiling."
    return f"; the ceiling is {percent(top)}."


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _losses(engine: Mapping[str, Any]) -> str:
    """ "4.1 points to eviction and 1.0 to 16-token blocks" (the largest three, from 0.05 points up)."""
    parts, prompt = ledger(engine), number(engine, "prompt_tokens")
    if parts is None or not prompt:
        return ""
    block = granularity_of(engine)
    lost = sorted(((100 * parts[p.key] / prompt, p) for p in LOSSES if p.key != "new"), key=lambda x: -x[0])
    shown = [(points, part) for points, part in lost if points >= 0.05][:3]
    if not shown:
        return (
            f"{'next to nothing' if any(points > 0 for points, _ in lost) else 'nothing'} that could have been shared"
        )
    return _join(
        [
            f"{points:.1f} {'points ' if i == 0 else ''}to "
            + (f"{block}-token blocks" if part.key == "granularity" and block and block > 1 else part.lost)
            for i, (points, part) in enumerate(shown)
        ]
    )
