"""Two finished runs request by request: which differ, which loss moved, and whether the mean difference is more than noise.

Requests are paired by id. The mean of the paired differences carries a 95 % interval in which requests count as independent;
they are not quite (a queue couples them), so an interval that only just leaves 0 out is no proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefixsim.errors import InputError, nearest
from prefixsim.records import LEDGER_PARTS
from prefixsim.report.folder import RunFolder
from prefixsim.report.tables import F64, find_table, read_chunks

NUMBERS = ("cached_tokens", "prompt_tokens", "released_s", "first_token_s", "finish_s", *LEDGER_PARTS)
TOP = 20


@dataclass(frozen=True, slots=True)
class Table:
    """One engine's finished requests: ids in file order, numbers[name] float64."""

    ids: list[str]
    numbers: dict[str, F64]


def read_engine(run: RunFolder, engine: str) -> Table:
    """The finished requests of one engine of a run. Raises InputError where the folder has no requests table."""
    path = find_table(run.path, "requests")
    if path is None:
        raise InputError(f"{run.path}: has no requests table; run it again with `output: {{requests: csv}}`")
    ids: list[str] = []
    parts: dict[str, list[F64]] = {name: [] for name in NUMBERS}
    for chunk in read_chunks(path, NUMBERS, ("engine", "id", "status"), optional=LEDGER_PARTS):
        keep = chunk.where("engine", {engine}) & chunk.where("status", {"finished", "3"})
        ids.extend(name for name, k in zip(chunk.texts["id"], keep, strict=True) if k)
        for name in NUMBERS:
            if name in chunk.numbers:
                parts[name].append(chunk.numbers[name][keep])
    return Table(ids, {name: np.concatenate(p) for name, p in parts.items() if p})


def engine_pairs(a: RunFolder, b: RunFolder, engines: list[str]) -> list[tuple[str, str]]:
    """Which engine of the first run is compared with which of the second: `A=B` or a name both have; default: all common
    names, or the only engine of each. Raises InputError naming the nearest."""
    names_a, names_b = list(a.summary["engines"]), list(b.summary["engines"])
    if engines:
        pairs = []
        for text in engines:
            left, _, right = text.partition("=")
            for name, known, run in ((left, names_a, a), (right or left, names_b, b)):
                if name not in known:
                    raise InputError(f"--engine {text}: {run.path} has no engine '{name}'{nearest(name, known)}")
            pairs.append((left, right or left))
        return pairs
    common = [(n, n) for n in names_a if n in names_b]
    if common:
        return common
    if len(names_a) == len(names_b) == 1:
        return [(names_a[0], names_b[0])]
    raise InputError(f"no engine name is in both runs ({', '.join(names_a)} / {', '.join(names_b)}): say --engine A=B")


def compare_engines(a: RunFolder, b: RunFolder, left: str, right: str) -> dict[str, Any]:
    """Differences second minus first: plain data, tokens and seconds."""
    one, two = read_engine(a, left), read_engine(b, right)
    place = {name: i for i, name in enumerate(two.ids)}
    pairs = [(i, place[name]) for i, name in enumerate(one.ids) if name in place]
    if not pairs:
        raise InputError("the runs have no finished request in common: their ids differ")
    ia, ib = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    cached = two.numbers["cached_tokens"][ib] - one.numbers["cached_tokens"][ia]
    prompts_differ = int((two.numbers["prompt_tokens"][ib] != one.numbers["prompt_tokens"][ia]).sum())
    out: dict[str, Any] = {
        "engines": [left, right],
        "paired_requests": len(pairs),
        "only_in_first": len(one.ids) - len(pairs),
        "only_in_second": len(two.ids) - len(pairs),
        "prompts_differ": prompts_differ,
        "cached_tokens_differ": int((cached != 0).sum()),
        "cached_tokens": interval(cached),
    }
    for name, start, end in (("ttft_s", "released_s", "first_token_s"), ("e2e_s", "released_s", "finish_s")):
        first = one.numbers[end][ia] - one.numbers[start][ia]
        second = two.numbers[end][ib] - two.numbers[start][ib]
        out[name] = interval(second - first)
    parts = [p for p in LEDGER_PARTS if p in one.numbers and p in two.numbers]
    changes = {p: two.numbers[p][ib] - one.numbers[p][ia] for p in parts}
    out["ledger"] = {p: int(c.sum()) for p, c in changes.items()}
    order = np.argsort(-np.abs(cached), kind="stable")[:TOP]
    out["requests"] = [
        {
            "id": one.ids[int(ia[k])],
            "cached_tokens": [int(one.numbers["cached_tokens"][ia[k]]), int(two.numbers["cached_tokens"][ib[k]])],
            "why": {p: int(changes[p][k]) for p in parts if changes[p][k] and not p.startswith("hit_")},
        }
        for k in order
        if cached[k] != 0
    ]
    return out


def interval(difference: F64) -> dict[str, float]:
    """{mean, low, high, sum}: 95 % interval of the mean of paired differences (normal approximation)."""
    d = difference[np.isfinite(difference)]
    if not len(d):
        return {"mean": 0.0, "low": 0.0, "high": 0.0, "sum": 0.0}
    mean = float(math.fsum(d.tolist()) / len(d))
    half = 1.96 * float(d.std(ddof=1)) / math.sqrt(len(d)) if len(d) > 1 else 0.0
    return {"mean": mean, "low": mean - half, "high": mean + half, "sum": float(math.fsum(d.tolist()))}


def in_words(found: dict[str, Any]) -> list[str]:
    """The comparison in sentences."""
    left, right = found["engines"]
    n, same = found["paired_requests"], found["paired_requests"] - found["cached_tokens_differ"]
    said = [f"{right} against {left}: {n:,} requests paired, {same:,} with equal cached tokens."]
    if found["prompts_differ"]:
        said.append(f"{found['prompts_differ']:,} of them have prompts of another length: the workloads differ.")
    if found["only_in_first"] or found["only_in_second"]:
        said.append(
            f"Unpaired: {found['only_in_first']:,} only in the first, {found['only_in_second']:,} only in the second."
        )
    c = found["cached_tokens"]
    said.append(
        f"Cached tokens: {c['sum']:+,.0f} in all, {c['mean']:+.2f} a request (95 %: {c['low']:+.2f} to {c['high']:+.2f})."
    )
    for name, title in (("ttft_s", "TTFT"), ("e2e_s", "End to end")):
        d = found[name]
        sure = "" if d["low"] > 0 or d["high"] < 0 else "; the interval holds 0"
        said.append(
            f"{title}: {d['mean'] * 1e3:+.2f} ms a request (95 %: {d['low'] * 1e3:+.2f} to {d['high'] * 1e3:+.2f}{sure})."
        )
    moved = {k: v for k, v in found["ledger"].items() if v}
    if moved:
        said.append("Ledger: " + ", ".join(f"{k} {v:+,}" for k, v in moved.items()) + " tokens.")
    elif found["ledger"]:
        said.append("Ledger: no part differs.")
    return said
