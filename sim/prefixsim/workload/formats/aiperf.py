"""AIPerf's Mooncake dialect (JSON lines): one of input_length, text_input, messages, payload a row; output_length,
hash_ids, timestamp (ms), delay (ms), session_id. A row with a delay awaits the row before it in its session."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from prefixsim.workload import links
from prefixsim.workload.checks import UNIT_NS, decide_blocks, dense_ids, whole
from prefixsim.workload.edit import order_quietly, take
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.formats.texts import Texts
from prefixsim.workload.generators.assemble import Pieces, assemble
from prefixsim.workload.ragged import gather, offsets
from prefixsim.workload.rows import BadRows, Key, RowTable, read_rows, shown, unknown_note
from prefixsim.workload.table import I64, Decision, Source, Workload, make_workload
from prefixsim.workload.text.chat import message

KEYS = (
    Key("input_length", "num"),
    Key("text_input", "str"),
    Key("messages", "other"),
    Key("payload", "other"),
    Key("output_length", "num"),
    Key("hash_ids", "ints"),
    Key("timestamp", "num"),
    Key("delay", "num"),
    Key("session_id", "label"),
    Key("tools", "other"),
    Key("extra", "other"),
)
_SOURCES = ("input_length", "text_input", "messages", "payload")


def sniff(head: Head) -> str | None:
    """Mooncake's columns with AIPerf's own."""
    row = head.row
    if row is None or "chat_id" in row or "tokens" in row:
        return None
    own = {"delay", "text_input", "payload", "output_length"} & row.keys()
    if "text_input" in row or "payload" in row or ("messages" in row and own):
        return (
            f"first row has {' and '.join(k for k in ('text_input', 'payload', 'messages', *sorted(own)) if k in row)}"
        )
    if "input_length" in row and (
        {"delay", "session_id"} & row.keys() or "hash_ids" not in row or "timestamp" not in row
    ):
        return "first row has input_length, and delay, session_id or no hash_ids"
    return None


def read(context: ReadContext) -> Workload:
    """Reads rows of text, or rows of lengths with or without hash ids (not both kinds in one file)."""
    file, options = context.file(), context.options
    bad = BadRows(file, options.on_bad_row == "skip")
    table = read_rows(file, KEYS, bad)
    keep = np.ones(table.n, dtype=np.bool_)
    given = np.sum([table.has[k] for k in _SOURCES], axis=0)
    for r in np.flatnonzero(given != 1).tolist():
        bad.add(f"exactly one of {', '.join(_SOURCES)} is needed, found {given[r]}", int(table.line[r]))
    keep &= given == 1
    by_length = table.has["input_length"]
    mixed = bool((keep & by_length).any() and (keep & ~by_length).any())
    if mixed:
        raise file.error("rows with text and rows with lengths only in one file: split it")
    outputs = whole(table, "output_length", bad, keep)
    unit = options.time_unit or "ms"
    after, delay, arrival = _times(table, bad, keep, unit)
    decisions: list[Decision] = []
    notes: list[str] = []
    known = True
    if (keep & by_length).any():
        rows, content, more, known = _by_ids(context, table, bad, keep, outputs)
        decisions += more
    else:
        rows, content, more = _by_text(context, table, bad, keep, outputs)
        decisions += more
    bad.check()
    if rows.shape[0] == 0:
        raise file.error("holds no requests" if not bad.count else f"holds no good rows; the first: {bad.problems[0]}")
    number = np.full(table.n + 1, -1, dtype=np.int64)
    number[rows] = np.arange(rows.shape[0])
    names: dict[str, int] = {}
    session = np.array(
        [-1 if (s := table.text["session_id"][r]) is None else names.setdefault(s, len(names)) for r in rows.tolist()],
        dtype=np.int32,
    )
    after_kept = number[after[rows]].astype(np.int32)
    nominal, _ = links.resolve(after_kept, delay[rows], arrival[rows], table.has["timestamp"][rows])
    untimed = int((~table.has["timestamp"][rows] & (after_kept < 0)).sum())
    if untimed:
        notes.append(f"{untimed:,} requests have neither timestamp nor delay: they arrive at time 0")
    linked = int((after_kept >= 0).sum())
    decisions.append(
        Decision(
            "time_unit", unit, f"{linked:,} rows await the one before in their session", options.time_unit is not None
        )
    )
    if not known:
        notes.append(
            "rows have lengths only: what prompts share is unknown; `sharing:` models it for the azure and burstgpt formats"
        )
    w = make_workload(
        source=Source(
            kind="aiperf",
            path=str(context.path),
            sha256=file.sha256,
            content_known=known,
            decisions=tuple(decisions),
            counts={"rows": table.n, "bad_rows": bad.count, "blank_lines": table.blank},
            notes=tuple(n for n in (bad.note(), unknown_note(table, KEYS), *notes) if n),
        ),
        **content,
        arrival_ns=nominal,
        after=after_kept,
        delay_ns=delay[rows],
        session=session,
        session_names=tuple(names),
        turn=links.turns(session),
    )
    return order_quietly(take(w, links.parents_first(w.after)))


def _times(table: RowTable, bad: BadRows, keep: Any, unit: str) -> tuple[I64, I64, I64]:
    scale = UNIT_NS[unit]
    out = []
    for key in ("timestamp", "delay"):
        value = np.nan_to_num(table.number[key], nan=0.0)
        wrong = ~((value >= 0) & (value * scale < 9e18))
        for r in np.flatnonzero(wrong & keep).tolist():
            bad.add(f"not a time from 0 on: {value[r]:.17g} {unit}", int(table.line[r]), key)
        keep &= ~wrong
        out.append(np.rint(np.where(wrong, 0, value) * scale).astype(np.int64))
    after = np.full(table.n, -1, dtype=np.int64)
    latest: dict[str, int] = {}
    for r, name in enumerate(table.text["session_id"]):
        if name is None or not keep[r]:
            continue
        if not table.has["timestamp"][r] or table.has["delay"][r]:
            after[r] = latest.get(name, -1)
        latest[name] = r
    return after, out[1], out[0]


def _by_ids(
    context: ReadContext, table: RowTable, bad: BadRows, keep: Any, outputs: I64
) -> tuple[I64, dict[str, Any], list[Decision], bool]:
    options = context.options
    inputs = whole(table, "input_length", bad, keep, low=1)
    has = table.has["hash_ids"]
    counts = table.count["hash_ids"]
    known = bool((has & keep).any())
    decisions: list[Decision] = []
    block = options.block_size or 512
    if known:
        some = has & keep
        rule, found = decide_blocks(inputs[some], counts[some], options, 512, "ceil")
        decisions += found
        block = rule.block
        wrong = some & (counts != rule.ids(inputs))
        for r in np.flatnonzero(wrong).tolist():
            expected = int(rule.ids(inputs)[r])
            bad.add(
                f"{counts[r]} ids for input_length {inputs[r]:,}: {expected} expected at {block} tokens an id",
                int(table.line[r]),
                "hash_ids",
            )
        keep &= ~wrong
        lacking = int((keep & ~has).sum())
        if lacking:
            decisions.append(
                Decision("no hash_ids", "unique", f"{lacking:,} rows have none: their prompts share nothing")
            )
    rows = np.flatnonzero(keep)
    inputs, counts = inputs[rows], np.where(has[rows], counts[rows], 0)
    ids = dense_ids(gather(table.flat, table.start["hash_ids"][rows], counts))
    rest = inputs - counts * block
    tail = rest > 0
    offset = offsets(counts + tail)
    lengths = np.full(int(offset[-1]), block, dtype=np.int64)
    is_tail = np.zeros(int(offset[-1]), dtype=np.bool_)
    is_tail[offset[1:][tail] - 1] = True
    lengths[offset[1:] - 1] = np.where(tail, rest, block + rest)
    atoms = np.empty(int(offset[-1]), dtype=np.int32)
    atoms[~is_tail] = ids
    top = int(ids.max()) + 1 if ids.shape[0] else 0
    atoms[is_tail] = top + np.arange(int(tail.sum()), dtype=np.int32)
    content = {
        "prompt_tokens": inputs,
        "output_tokens": np.maximum(outputs[rows], 1),
        "atom_offset": offset,
        "prompt_atoms": np.diff(offset),
        "atom_id": atoms,
        "atom_tokens": lengths,
    }
    if options.turns == "delta":
        content = _with_history(table, rows, content)
        evidence = "a turn's prompt is its session's prompt and answer before, then the row's own ids or tokens"
        decisions.append(Decision("turns", "delta", evidence, True))
    else:
        decisions.append(_turn_decision(table, rows, ids, counts, options.turns))
    return rows, content, decisions, known


def _with_history(table: RowTable, rows: I64, content: dict[str, Any]) -> dict[str, Any]:
    """Rows that hold only what is new, put behind their session's prompt and answer."""
    n = rows.shape[0]
    parent = np.full(n, -1, dtype=np.int64)
    latest: dict[str, int] = {}
    for i, r in enumerate(rows.tolist()):
        name = table.text["session_id"][r]
        if name is not None:
            parent[i] = latest.get(name, -1)
            latest[name] = i
    zero = np.zeros(n, np.int64)
    top = int(content["atom_id"].max()) + 1
    return assemble(
        Pieces(
            parent=parent, head_count=zero, head_id=zero[:0], head_tokens=zero[:0], tail_count=content["prompt_atoms"],
            tail_id=content["atom_id"].astype(np.int64), tail_tokens=content["atom_tokens"], skip=zero, skip_tokens=zero,
            output_id=top + np.arange(n, dtype=np.int64), output_tokens=content["output_tokens"], thinking_id=zero,
            thinking_tokens=zero, keep_thinking=True,
        )
    )  # fmt: skip


def _turn_decision(table: RowTable, rows: I64, ids: Any, counts: I64, override: str | None) -> Decision:
    """Whether a session's later rows hold its history: by how many start with the first id of the row before."""
    offset = offsets(counts)
    latest: dict[str, int] = {}
    later = grown = 0
    for i, r in enumerate(rows.tolist()):
        name = table.text["session_id"][r]
        if name is None:
            continue
        p = latest.get(name)
        if p is not None and counts[p] and counts[i]:
            later += 1
            grown += counts[i] >= counts[p] and ids[offset[i]] == ids[offset[p]]
        latest[name] = i
    evidence = f"{grown:,} of {later:,} later turns start as the turn before: rows are whole requests"
    if later and grown < later / 2:
        evidence = (
            f"only {grown:,} of {later:,} later turns start as the turn before; rows are still taken as whole requests"
        )
    return Decision("turns", "cumulative", evidence, override is not None)


def _by_text(
    context: ReadContext, table: RowTable, bad: BadRows, keep: Any, outputs: I64
) -> tuple[I64, dict[str, Any], list[Decision]]:
    texts = Texts(context)
    rows = []
    chat = False
    for r in np.flatnonzero(keep).tolist():
        plain = table.text["text_input"][r]
        holder = table.other["payload"][r] or {}
        messages = table.other["messages"][r] if table.other["messages"][r] is not None else None
        tools = table.other["tools"][r]
        if isinstance(holder, dict) and messages is None:
            messages, tools = holder.get("messages"), holder.get("tools", tools)
        try:
            if plain is not None:
                prompt = texts.tokenizer.encode(plain)
            elif isinstance(messages, list):
                chat = True
                text = json.dumps(tools, ensure_ascii=False) if tools else ""
                prompt = texts.chat.prompt([message(m) for m in messages], text)
            else:
                raise ValueError(f"expected a list of messages, found {shown(messages)}")
        except ValueError as exc:
            bad.add(str(exc), int(table.line[r]))
            continue
        fault = texts.add(prompt, [], int(outputs[r]))
        if fault:
            bad.add(fault, int(table.line[r]))
            continue
        rows.append(r)
    return np.array(rows, dtype=np.int64), texts.columns(), list(texts.decisions(chat))


FORMAT = register(
    Format(
        "aiperf",
        "AIPerf's Mooncake dialect",
        "ids",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"block_size", "tail", "time_unit", "turns", "tokenizer", "chat_template", "strip_thinking"}),
        block_size=512,
    )
)
