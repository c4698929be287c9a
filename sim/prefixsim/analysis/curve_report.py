"""The result of `prefixsim curve`, as JSON and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prefixsim.analysis.curves import Curve, spaced
from prefixsim.analysis.sampled import SampledCurve
from prefixsim.units import GIB
from prefixsim.wrap import WIDTH, fitted

MAX_POINTS = 250_000
"""A whole LRU curve of more points than this is given by its corners instead."""
SHARES = (0.90, 0.95, 0.99)


def curve_entry(
    curve: Curve, capacities: Sequence[int] | None, bytes_per_token: int | None = None, gib_per_gpu: float | None = None
) -> dict[str, Any]:
    """JSON form of one curve. Without `capacities` the whole of it: every capacity up to the smallest that reaches the
    ceiling, or its corners where these are more than MAX_POINTS (`points_are` says which)."""
    points_are = "as asked for"
    if capacities is not None:
        where = np.asarray(capacities, dtype=np.int64)
    elif curve.policy == "optimal":
        where, points_are = curve.capacity, "spaced evenly on a logarithmic scale; each exact"
    elif curve.saturation_blocks < MAX_POINTS:
        where, points_are = np.arange(curve.saturation_blocks + 1), "every capacity; constant after the last"
    else:
        where, points_are = curve.capacity, "corners; straight lines between them are exact; constant after the last"
    hits = curve.at(where)
    reach = {f"{share:.0%}": reached(curve, share, bytes_per_token, gib_per_gpu) for share in SHARES}
    return {
        "granularity": curve.granularity,
        "policy": curve.policy,
        "ceiling_tokens": curve.ceiling_tokens,
        "points": [[int(c), int(h)] for c, h in zip(where.tolist(), hits.tolist(), strict=True)],
        "points_are": points_are,
        "reaches_share_of_ceiling": reach,
    }


def reached(
    curve: Curve, share: float, bytes_per_token: int | None = None, gib_per_gpu: float | None = None
) -> dict[str, Any]:
    """The smallest capacity with this share of the ceiling: in blocks, tokens, and, where known, GiB and GPUs."""
    blocks = curve.capacity_for(share)
    tokens = blocks * curve.granularity
    out: dict[str, Any] = {"blocks": blocks, "tokens": tokens}
    if bytes_per_token is not None:
        gib = tokens * bytes_per_token / GIB
        out["gib"] = round(gib, 3)
        if gib_per_gpu:
            out["gpus"] = max(1, math.ceil(gib / gib_per_gpu))
    return out


def sampled_entry(curve: SampledCurve) -> dict[str, Any]:
    """JSON form of an estimated curve."""
    error = [None if np.isnan(e) else round(float(e)) for e in curve.standard_error_tokens]
    return {
        "granularity": curve.granularity,
        "policy": "lru",
        "estimated": True,
        "rate": curve.rate,
        "sampled_chain_ids": curve.sampled_ids,
        "chain_ids": curve.n_chains,
        "sampled_lookups": curve.sampled_lookups,
        "points": [[int(c), round(float(h))] for c, h in zip(curve.capacity, curve.hit_tokens, strict=True)],
        "standard_error_tokens": error,
    }


def curve_text(
    curves: Sequence[Curve],
    capacities: Sequence[int] | None,
    *,
    bytes_per_token: int | None = None,
    gib_per_gpu: float | None = None,
    simulated: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Text form: a table and a drawing a granularity. simulated: runs of engines, as
    `study.curve_points` makes them."""
    lines: list[str] = []
    for g in dict.fromkeys(c.granularity for c in curves):
        group = [c for c in curves if c.granularity == g]
        lines += ["", *_table(group, capacities, bytes_per_token, gib_per_gpu)]
        for run in simulated:
            if run["granularity"] == g:
                same, prompt = run["same_order"], run["prompt_tokens"]
                rejected = f" ({run['rejected']:,} requests rejected)" if run["rejected"] else ""
                lines.append(
                    f"  {run['engine']} with {run['capacity_tokens']:,} tokens: {_share(run['hit_tokens'], prompt)}{rejected}; "
                    f"on its own order ideal LRU {_share(same['lru_tokens'], prompt)}, "
                    f"optimum {_share(same['optimal_tokens'], prompt)}"
                )
    return fitted("\n".join(lines[1:]))


def _share(hits: int, prompt: int) -> str:
    return f"{100 * hits / prompt:.2f} %" if prompt else "-"


def _table(
    group: Sequence[Curve], capacities: Sequence[int] | None, bytes_per_token: int | None, gib_per_gpu: float | None
) -> list[str]:
    first = group[0]
    g, prompt = first.granularity, first.prompt_tokens
    unit = "tokens of cache" if g == 1 else f"blocks of {g} tokens"
    lines = [
        f"{unit}: ceiling {_share(first.ceiling_tokens, prompt)} ({first.ceiling_tokens:,} of {prompt:,} prompt tokens)"
    ]
    where = np.asarray(capacities, dtype=np.int64) if capacities is not None else spaced(first.saturation_blocks, 17)
    hits = [c.at(where).tolist() for c in group]
    head = f"{'capacity':>12}" + ("" if g == 1 else f"{'tokens':>15}")
    head += (f"{'GiB':>11}" if bytes_per_token is not None else "") + "".join(f"{c.policy:>10}" for c in group)
    width = max(WIDTH - len(head) - 4, 10)
    lines.append(f"{head}  {'0 %':<{width - 6}}{'ceiling':>8}")
    for i, c in enumerate(where.tolist()):
        row = f"{c:>12,}" + ("" if g == 1 else f"{c * g:>15,}")
        if bytes_per_token is not None:
            row += f"{c * g * bytes_per_token / GIB:>11,.2f}"
        row += "".join(f"{_share(h[i], prompt):>10}" for h in hits)
        lines.append(row + "  |" + _bar([h[i] for h in hits], first.ceiling_tokens, width) + "|")
    for curve in group:
        words = []
        for share in SHARES:
            at = reached(curve, share, bytes_per_token, gib_per_gpu)
            text = f"{share:.0%} of the ceiling at {at['tokens']:,} tokens"
            if "gib" in at:
                text += f" ({at['gib']:,.2f} GiB"
                text += f", {at['gpus']} GPU" if "gpus" in at else ""
                text += ")"
            words.append(text)
        lines.append(f"  {curve.policy}: " + "; ".join(words))
    return lines


def _bar(hits: Sequence[int], ceiling: int, width: int) -> str:
    """The first policy as '#', what a second one has more as '.'."""
    if ceiling == 0:
        return " " * width
    first, best = (round(width * h / ceiling) for h in (hits[0], max(hits)))
    return "#" * first + "." * (best - first) + " " * (width - best)
