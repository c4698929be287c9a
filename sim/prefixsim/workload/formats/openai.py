"""OpenAI-style chat logs (JSON lines): `messages` (and `tools`), the answer, `usage` with cached tokens to compare with.

A row may hold the request under `body` or `request` and the answer under `response` or `choices`; where the last message
is the assistant's, that is the answer.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np

from prefixsim.workload import links
from prefixsim.workload.csv_rows import stamps_ns
from prefixsim.workload.edit import order_quietly, sort_by_arrival
from prefixsim.workload.formats.conversations import conversation_starts
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.formats.texts import Texts
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.rows import BadRows, Key, decode_slowly, shown
from prefixsim.workload.table import Decision, Source, Workload, make_workload
from prefixsim.workload.text.chat import Message, message

_TIMES = ("timestamp", "created", "created_at", "time")
_SESSIONS = ("session_id", "conversation_id", "user_session", "session")
_NO_KEYS: tuple[Key, ...] = ()


def sniff(head: Head) -> str | None:
    """Rows with messages (by themselves or in `body` / `request`), none of AIPerf's columns."""
    row = head.row
    if row is None or "conversations" in row or {"output_length", "text_input", "input_length", "delay"} & row.keys():
        return None
    for part in (row, row.get("body"), row.get("request")):
        if isinstance(part, dict) and isinstance(part.get("messages"), list):
            return "first row has messages"
    return None


def read(context: ReadContext) -> Workload:
    """Reads chat rows: each is one request."""
    file, options = context.file(), context.options
    bad = BadRows(file, options.on_bad_row == "skip")
    texts = Texts(context)
    seconds: list[float] = []
    words: list[str] = []
    lines: list[int] = []
    sessions: list[int] = []
    names: dict[str, int] = {}
    cached: list[int] = []
    stop: list[bool] = []
    counts = {"rows": 0, "bad_rows": 0, "blank_lines": 0, "failed_rows": 0, "without_answer": 0}
    stated = mine = 0
    for line, raw in _lines(file):
        if not raw.strip():
            counts["blank_lines"] += 1
            continue
        counts["rows"] += 1
        row = decode_slowly(raw, line, _NO_KEYS, bad)
        if row is None:
            continue
        try:
            found = _request(row)
        except ValueError as exc:
            bad.add(str(exc), line, "messages")
            continue
        messages, tools, answer, usage = found
        if row.get("error") and answer is None:
            counts["failed_rows"] += 1
            if options.failed_rows == "drop":
                continue
        try:
            completion = _count(usage, "completion_tokens")
            prompt = _count(usage, "prompt_tokens")
            details = usage.get("prompt_tokens_details")
            hit = _count(details, "cached_tokens") if isinstance(details, dict) else None
        except ValueError as exc:
            bad.add(str(exc), line, "usage")
            continue
        output = texts.chat.answer(answer) if answer is not None else []
        fault = texts.add(texts.chat.prompt(messages, tools), output, completion)
        if fault:
            bad.add(fault, line, "messages")
            continue
        counts["without_answer"] += answer is None
        if prompt:
            stated += prompt
            mine += texts.prompts[-1]
        lines.append(line)
        cached.append(-1 if hit is None else hit)
        stop.append(_reason(row) == "stop")
        moment = next((row[k] for k in _TIMES if row.get(k) is not None), None)
        seconds.append(_number(moment))
        words.append(moment if isinstance(moment, str) else "")
        label = next((row[k] for k in _SESSIONS if isinstance(row.get(k), str)), None)
        sessions.append(-1 if label is None else names.setdefault(label, len(names)))
    counts["bad_rows"] = bad.count
    bad.check()
    if texts.n == 0:
        raise file.error("holds no requests" if not bad.count else f"holds no good rows; the first: {bad.problems[0]}")
    arrival, decision, timed = _arrivals(context, seconds, words, lines, bad)
    codes = np.array(sessions, dtype=np.int32)
    notes = [bad.note() or ""]
    if counts["without_answer"]:
        notes.append(
            f"{counts['without_answer']:,} rows have no answer: usage.completion_tokens (else 1) says how long it was"
        )
    if counts["failed_rows"]:
        notes.append(
            f"{counts['failed_rows']:,} failed requests are {'left out' if options.failed_rows == 'drop' else 'kept'}"
        )
    if stated:
        notes.append(
            f"usage states {stated:,} prompt tokens where this tokenizer and template count {mine:,} ({mine / stated:.1%})"
        )
    hits = np.array(cached, dtype=np.int64)
    w = make_workload(
        source=Source(
            kind="openai",
            path=str(context.path),
            sha256=file.sha256,
            synthetic=not timed,
            decisions=(decision, *texts.decisions(chat=True)),
            counts=counts,
            notes=tuple(n for n in notes if n),
        ),
        **texts.columns(),
        arrival_ns=arrival,
        session=codes,
        session_names=tuple(names),
        stop=np.array(stop, dtype=np.bool_),
        reported_cached_tokens=hits if bool((hits >= 0).any()) else None,
    )
    w = sort_by_arrival(w) if timed else order_quietly(w)
    return replace(w, turn=links.turns(w.session))


def _lines(file: TraceFile) -> Any:
    for block in file.blocks():
        for raw in block.split(b"\n")[:-1]:
            yield file.line, raw
            file.line += 1


def _request(row: dict[str, Any]) -> tuple[list[Message], str, str | None, dict[str, Any]]:
    """(messages of the prompt, tool definitions as text, the answer or None, usage). Raises ValueError."""
    body = next((row[k] for k in ("body", "request") if isinstance(row.get(k), dict)), row)
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"expected a list of messages, found {shown(raw)}")
    messages = [message(m) for m in raw]
    tools = body.get("tools")
    text = json.dumps(tools, ensure_ascii=False) if tools else ""
    response = row.get("response")
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    answer: str | None = None
    for holder in (response, row):
        if isinstance(holder, dict) and isinstance(holder.get("choices"), list) and holder["choices"]:
            first = holder["choices"][0]
            if isinstance(first, dict) and isinstance(first.get("message"), dict):
                answer = message({"role": "assistant", **first["message"]}).content
                break
    if answer is None and isinstance(response, str):
        answer = response
    if answer is None and messages[-1].role == "assistant" and len(messages) > 1:
        answer = messages.pop().content
    usage: dict[str, Any] = next(
        (h["usage"] for h in (response, row) if isinstance(h, dict) and isinstance(h.get("usage"), dict)), {}
    )
    return messages, text, answer, usage


def _number(value: Any) -> float:
    """A number as float; NaN where it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return math.nan


def _count(holder: dict[str, Any], key: str) -> int | None:
    value = holder.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000_000:
        raise ValueError(f"{key}: expected a token count, found {shown(value)}")
    return value


def _reason(row: dict[str, Any]) -> str:
    for holder in (row.get("response"), row):
        if isinstance(holder, dict) and isinstance(holder.get("choices"), list) and holder["choices"]:
            first = holder["choices"][0]
            if isinstance(first, dict):
                return "length" if first.get("finish_reason") == "length" else "stop"
    return "stop"


def _arrivals(
    context: ReadContext, seconds: list[float], words: list[str], lines: list[int], bad: BadRows
) -> tuple[np.ndarray, Decision, bool]:
    """Arrivals from numbers (seconds since 1970) or dates where all rows have them; else by the rule for traces without."""
    n = len(seconds)
    value = np.array(seconds)
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[context.options.time_unit or "s"]
    if not np.isnan(value).any() and bool((np.abs(value) * unit < 9e9).all()):
        shifted = (value - value.min()) * unit
        return (
            np.rint(shifted * 1e9).astype(np.int64),
            Decision(
                "time_unit",
                context.options.time_unit or "s",
                f"all {n:,} rows have a number; they span {shifted.max():,.3f} s",
                context.options.time_unit is not None,
            ),
            True,
        )
    if all(words):
        keep = np.ones(n, dtype=np.bool_)
        stamps = stamps_ns(words, np.array(lines, dtype=np.int64), bad, keep, "timestamp")
        bad.check()
        stamps = stamps - stamps[keep].min()
        return np.where(keep, stamps, 0), Decision("time_unit", "ISO", f"all {n:,} rows have a date and time"), True
    starts, decision = conversation_starts(context.options, n, context)
    return starts, decision, False


FORMAT = register(
    Format(
        "openai",
        "OpenAI-style chat JSON lines",
        "text",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"arrivals", "tokenizer", "chat_template", "strip_thinking", "time_unit", "failed_rows"}),
    )
)
