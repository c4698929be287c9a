"""ShareGPT (one JSON array): conversations of turns `from` human / gpt, `value`. No times: each answer is a request."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from prefixsim.workload import links
from prefixsim.workload.edit import order_quietly
from prefixsim.workload.formats.conversations import conversation_starts
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.formats.texts import Texts
from prefixsim.workload.rows import BadRows, shown
from prefixsim.workload.table import Source, Workload, make_workload
from prefixsim.workload.text.chat import Message

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
          "bing": "assistant", "bard": "assistant", "system": "system", "tool": "tool", "observation": "tool"}  # fmt: skip


def sniff(head: Head) -> str | None:
    """An array, or rows, of objects with conversations."""
    if b'"conversations"' in head.first[:20_000] and b'"from"' in head.first:
        return "objects with conversations of from / value"
    return None


def _documents(context: ReadContext, bad: BadRows) -> list[Any]:
    file = bad.file
    data = file.document()
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if data.lstrip()[:1] != b"{":
            raise file.error(f"not valid JSON: {str(exc).removeprefix('JSON is malformed: ')}") from None
        found = []
        for k, line in enumerate(data.split(b"\n"), 1):
            try:
                if line.strip():
                    found.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
                bad.add(f"not valid JSON: {fault}", k)
    if isinstance(found, dict):
        found = [found]
    if not isinstance(found, list):
        raise file.error(f"expected a list of conversations, found {shown(found)}")
    return found


def read(context: ReadContext) -> Workload:
    """Reads ShareGPT conversations: a turn starts when the one before has finished; the answer is part of the next prompt."""
    file, options = context.file(), context.options
    bad = BadRows(file, options.on_bad_row == "skip")
    texts = Texts(context)
    session: list[int] = []
    after: list[int] = []
    names: list[str] = []
    empty = 0
    documents = _documents(context, bad)
    for k, item in enumerate(documents):
        turns = item.get("conversations") if isinstance(item, dict) else None
        if not isinstance(turns, list):
            bad.add("expected an object with a list `conversations`", 1, f"[{k}]")
            continue
        name = item.get("id")
        history: list[Message] = []
        previous = -1
        fault = None
        for turn in turns:
            who, value = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
            role = _ROLES.get(who) if isinstance(who, str) else None
            if role is None or not isinstance(value, str):
                fault = f"a turn from {shown(who)} with value {shown(value)}"
                break
            answered = role == "assistant" and bool(history)
            if answered and not texts.add(texts.chat.prompt(history), texts.chat.answer(value) if value else []):
                after.append(previous)
                previous = texts.n - 1
                session.append(len(names))
            history.append(Message(role, value))
        if fault:
            bad.add(fault, 1, f"[{k}].conversations")
        if previous < 0:
            empty += 1
        else:
            names.append(name if isinstance(name, str) else f"conversation-{k}")
    bad.check()
    if texts.n == 0:
        raise file.error("holds no answered conversation")
    starts, decision = conversation_starts(options, len(names), context)
    codes = np.array(session, dtype=np.int32)
    w = make_workload(
        source=Source(
            kind="sharegpt",
            path=str(context.path),
            sha256=file.sha256,
            synthetic=True,
            decisions=(*texts.decisions(chat=True), decision),
            counts={
                "rows": len(documents),
                "bad_rows": bad.count,
                "conversations": len(names),
                "without_answer": empty,
            },
            notes=tuple(
                n
                for n in (
                    bad.note(),
                    f"{empty:,} conversations have no answer and are left out" if empty else None,
                    "the file has no times: conversations start by the rule above, turns follow at once",
                )
                if n
            ),
        ),
        **texts.columns(),
        arrival_ns=starts[codes],
        after=np.array(after, dtype=np.int32),
        stop=np.ones(texts.n, dtype=np.bool_),
        session=codes,
        session_names=tuple(names),
        turn=links.turns(codes),
    )
    return order_quietly(w)


FORMAT = register(
    Format(
        "sharegpt",
        "ShareGPT JSON",
        "text",
        times=False,
        sniff=sniff,
        read=read,
        uses=frozenset({"arrivals", "tokenizer", "chat_template", "strip_thinking"}),
    )
)
