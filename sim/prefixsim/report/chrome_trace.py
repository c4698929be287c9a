"""A run as Chrome trace JSON, for Perfetto (ui.perfetto.dev).

Every replica is a process with a lane of engine steps, counters (running, waiting, KV tokens) and its requests, each with
the phases queued, prefill and decode. Times are microseconds from the start of the run.

Requests are asynchronous events of their process (`id2.local`: with a plain `id` Perfetto puts them beside the processes),
all named alike: of events with one name Perfetto packs those that do not overlap into one lane; with a name each, every
request would be a lane of its own. Which request it is stands in the arguments.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prefixsim.errors import InputError
from prefixsim.report import facts
from prefixsim.report.collect import steps_made
from prefixsim.report.folder import RunFolder
from prefixsim.report.prometheus import chosen
from prefixsim.report.series import IDLE_S
from prefixsim.report.tables import Chunk, find_table, read_chunks

_STEP_COLUMNS = (
    "replica",
    "start_s",
    "end_s",
    "scheduled_tokens",
    "prefill_tokens",
    "running",
    "waiting",
    "kv_used_tokens",
)
_REQUEST_COLUMNS = (
    "replica",
    "released_s",
    "admitted_s",
    "first_token_s",
    "finish_s",
    "lookup_tokens",
    "cached_tokens",
    "preemptions",
)
COUNTERS = (
    ("running", "requests", "running"),
    ("waiting", "requests", "waiting"),
    ("KV", "tokens in use", "kv_used_tokens"),
)
"""(name, series, column): Perfetto names the track "name series"."""
_COUNTED = [column for _, _, column in COUNTERS]
PHASES = (
    ("queued", "released_s", "admitted_s"),
    ("prefill", "admitted_s", "first_token_s"),
    ("decode", "first_token_s", "finish_s"),
)


def chrome_trace(
    run: RunFolder, names: Sequence[str] = (), *, from_s: float = 0.0, to_s: float = float("inf")
) -> Iterator[str]:
    """Pieces of the JSON text. Only steps and requests that touch [from_s, to_s] are in it.

    Raises InputError when the run has neither a timeline nor a requests table.
    """
    engines = chosen(run, names)
    timeline, requests = find_table(run.path, "timeline"), find_table(run.path, "requests")
    if timeline is None and requests is None:
        raise InputError(f"{run.path}: has neither a timeline nor a requests table: there is nothing to trace")
    processes: dict[tuple[str, int], int] = {}
    yield '{"displayTimeUnit":"ms","otherData":' + json.dumps({"run": facts.clean(run.summary.get("name"), 100)})
    yield ',"traceEvents":[\n'
    first = True
    for event in _events(engines, processes, timeline, requests, from_s, to_s, _whole_timelines(run, timeline)):
        yield ("" if first else ",\n") + json.dumps(event, separators=(",", ":"))
        first = False
    for (engine, replica), pid in processes.items():
        name = f"{facts.clean(engine, 80)} / replica {replica}"
        for event in (
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}},
            {"ph": "M", "pid": pid, "tid": 1, "name": "thread_name", "args": {"name": "engine steps"}},
        ):
            yield ("" if first else ",\n") + json.dumps(event, separators=(",", ":"))
            first = False
    yield "\n]}\n"


def _whole_timelines(run: RunFolder, timeline: Any) -> set[str]:
    """Engines whose timeline has every step; between the kept steps of others, a gap need not be a pause."""
    kept: Counter[str] = Counter()
    for chunk in read_chunks(timeline, (), ("engine",)) if timeline else ():
        kept.update(chunk.texts["engine"])
    return {name for name, steps in steps_made(run).items() if steps is not None and kept[name] >= steps}


def _events(
    engines: Any,
    processes: dict[tuple[str, int], int],
    timeline: Any,
    requests: Any,
    from_s: float,
    to_s: float,
    whole: set[str],
) -> Iterator[dict[str, Any]]:
    def process(engine: str, replica: float) -> int:
        return processes.setdefault((engine, int(replica)), len(processes) + 1)

    ended: dict[int, float] = {}  # process -> when its last step so far ended
    for chunk in read_chunks(timeline, _STEP_COLUMNS, ("engine",)) if timeline else ():
        n = chunk.numbers
        for i in np.flatnonzero((n["end_s"] >= from_s) & (n["start_s"] <= to_s) & (n["replica"] >= 0)).tolist():
            engine = chunk.texts["engine"][i]
            if engine in engines:
                pid = process(engine, n["replica"][i])
                if engine in whole and n["start_s"][i] - ended.get(pid, np.inf) > IDLE_S:
                    yield from _counters(pid, ended[pid], dict.fromkeys(_COUNTED, 0.0))
                ended[pid] = n["end_s"][i]
                yield from _step(chunk, i, pid)
    for pid, end_s in ended.items() if math.isinf(to_s) else ():
        yield from _counters(pid, end_s, dict.fromkeys(_COUNTED, 0.0))
    number = 0
    for chunk in read_chunks(requests, _REQUEST_COLUMNS, ("engine", "id", "group"), ("group",)) if requests else ():
        n = chunk.numbers
        touched = (n["replica"] >= 0) & (n["finish_s"] >= from_s) & (n["released_s"] >= 0) & (n["released_s"] <= to_s)
        for i in np.flatnonzero(touched).tolist():
            if chunk.texts["engine"][i] in engines:
                number += 1
                yield from _request(chunk, i, number, process(chunk.texts["engine"][i], n["replica"][i]))


def _whole(value: float) -> int:
    return 0 if math.isnan(value) else int(value)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _step(chunk: Chunk, i: int, pid: int) -> Iterator[dict[str, Any]]:
    row = {name: column[i] for name, column in chunk.numbers.items()}
    prefill, decode = _whole(row["prefill_tokens"]), _whole(row["scheduled_tokens"] - row["prefill_tokens"])
    kind = "prefill + decode" if prefill and decode else "prefill" if prefill else "decode"
    yield {
        "ph": "X",
        "pid": pid,
        "tid": 1,
        "name": kind,
        "ts": _us(row["start_s"]),
        "dur": _us(row["end_s"] - row["start_s"]),
        "args": {"prefill_tokens": prefill, "decode_tokens": decode, "running": _whole(row["running"])},
    }
    yield from _counters(pid, row["start_s"], row)


def _counters(pid: int, at_s: float, row: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    for name, series, column in COUNTERS:
        yield {"ph": "C", "pid": pid, "name": name, "ts": _us(at_s), "args": {series: _whole(row[column])}}


def _request(chunk: Chunk, i: int, number: int, pid: int) -> Iterator[dict[str, Any]]:
    row = {name: column[i] for name, column in chunk.numbers.items()}
    base = {"cat": "request", "id2": {"local": hex(number)}, "pid": pid, "tid": 2}
    args: dict[str, Any] = {"request": facts.clean(chunk.texts["id"][i], 60)}
    args |= {name: _whole(row[name]) for name in ("lookup_tokens", "cached_tokens", "preemptions")}
    if "group" in chunk.texts:
        args["group"] = facts.clean(chunk.texts["group"][i], 100)
    yield {"ph": "b", "name": "request", "ts": _us(row["released_s"]), **base, "args": args}
    for phase, start, end in PHASES:
        if row[start] >= 0 and row[end] >= row[start]:
            yield {"ph": "b", "name": phase, "ts": _us(row[start]), **base}
            yield {"ph": "e", "name": phase, "ts": _us(row[end]), **base}
    yield {"ph": "e", "name": "request", "ts": _us(row["finish_s"]), **base}
