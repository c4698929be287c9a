"""WEKA agent traces: a folder of JSON files, one a conversation, with 64-token block ids, sub-agents and think times.

Ids are local to a conversation and leave out the partial block at a prompt's end. Times are seconds from the
conversation's start, mostly whole; when conversations start is not in the files.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prefixsim.errors import TraceError
from prefixsim.workload import links
from prefixsim.workload.edit import order_quietly
from prefixsim.workload.formats.conversations import conversation_starts
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.ragged import offsets
from prefixsim.workload.rows import MAX_TOKENS, BadRows
from prefixsim.workload.table import Decision, Source, Workload, make_workload


class Request(msgspec.Struct, rename={"input": "in", "output": "out"}):
    """One request, or a sub-agent with requests of its own (then `t` is its start and theirs are relative to it)."""

    t: float
    type: str = "n"
    model: str = ""
    input: int = 0
    output: int = 0
    hash_ids: list[int] = []
    stop: str | None = None
    api_time: float | None = None
    think_time: float | None = None
    requests: list[Any] = []
    tool_tokens: int = 0
    system_tokens: int = 0


class Conversation(msgspec.Struct):
    """One file."""

    requests: list[Request]
    id: str = ""
    block_size: int = 64
    hash_id_scope: str = "local"
    tool_tokens: int = 0
    system_tokens: int = 0


def sniff(head: Head) -> str | None:
    """A document with block_size, hash_id_scope and requests."""
    start = head.first[:4096]
    if b'"hash_id_scope"' in start and b'"requests"' in head.first:
        return "a document with hash_id_scope and requests" + (", in a folder" if head.path.is_dir() else "")
    return None


class _Table:
    """Requests of all conversations, growing."""

    def __init__(self) -> None:
        self.prompts: list[int] = []
        self.outputs: list[int] = []
        self.session: list[int] = []
        self.group: list[int] = []
        self.after: list[int] = []
        self.delay: list[int] = []
        self.nominal: list[int] = []
        self.stop: list[bool] = []
        self.atoms: list[np.ndarray] = []
        self.counts: list[int] = []
        self.groups: dict[str, int] = {}
        self.sessions: list[str] = []
        self.next_id = 0
        self.whole: dict[int, int] = {}
        self.bodies: set[int] = set()
        self.twice = 0
        self.shared: dict[tuple[Any, ...], np.ndarray] = {}
        self.floor = self.ceil = self.overlaps = self.failed = self.subagents = self.no_api_time = 0


def read(context: ReadContext) -> Workload:
    """Reads a folder (or one file) of conversations."""
    options, path = context.options, context.path
    paths = sorted(p for p in path.iterdir() if p.is_file() and ".json" in p.name) if path.is_dir() else [path]
    if not paths:
        raise TraceError(f"{path}: a folder without JSON files")
    table, digest = _Table(), hashlib.sha256()
    bad_total, first_bad, blocks = 0, "", set()
    for p in paths:
        file = TraceFile(p)
        bad = BadRows(file, options.on_bad_row == "skip")
        conversation = _decode(file, bad)
        digest.update(os.fsencode(f"{p.name} {file.sha256}\n"))
        if conversation is not None:
            blocks.add(conversation.block_size)
            _add(table, conversation, p, bad, options.block_size, options)
        bad.check()
        if bad.count:
            bad_total += bad.count
            first_bad = first_bad or str(bad.problems[0])
    if len(blocks) > 1 and options.block_size is None:
        raise TraceError(f"{path}: conversations of different block sizes ({', '.join(map(str, sorted(blocks)))})")
    if not table.prompts:
        raise TraceError(f"{path}: holds no requests")
    block = options.block_size or next(iter(blocks))
    starts, decision = conversation_starts(options, len(table.sessions), context)
    return _finish(context, table, block, starts, decision, digest.hexdigest(), len(paths), bad_total, first_bad)


def _decode(file: TraceFile, bad: BadRows) -> Conversation | None:
    try:
        found = msgspec.json.decode(file.document(), type=Conversation)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        bad.add(f"not a WEKA conversation: {str(exc).removeprefix('JSON is malformed: ')}", 1)
        return None
    except RecursionError:
        bad.add("nested too deeply", 1)
        return None
    if found.hash_id_scope != "local":
        bad.add(f"hash_id_scope 'local' expected, found {found.hash_id_scope[:40]!r}", 1)
        return None
    if not 1 <= found.block_size <= 1 << 20:
        bad.add(f"block_size {found.block_size} is not from 1 to 1,048,576", 1)
        return None
    return found


def _flat(c: Conversation, bad: BadRows) -> list[tuple[float, Request, int, int, bool]]:
    """(start s, request, tool tokens, system tokens, sub-agent's?) of all requests, in order of start."""
    out = []
    for k, r in enumerate(c.requests):
        inner: list[Request] = []
        if r.type == "subagent" or r.requests:
            try:
                inner = msgspec.convert(r.requests, list[Request])
            except msgspec.ValidationError as exc:
                bad.add(f"sub-agent {k}: {exc}", 1, f"requests[{k}]")
                continue
            out += [(r.t + q.t, q, r.tool_tokens, r.system_tokens, True) for q in inner]
        else:
            out.append((r.t, r, c.tool_tokens, c.system_tokens, False))
    good = []
    for item in out:
        t, q = item[0], item[1]
        if not 0 <= t < 9e9:
            bad.add(f"not a time from 0 on: {t} s", 1, "t")
        elif not (0 < q.input <= MAX_TOKENS and 0 <= q.output <= MAX_TOKENS):
            bad.add(f"in {q.input} and out {q.output}: expected token counts up to {MAX_TOKENS:,}", 1)
        elif q.hash_ids and not 0 <= min(q.hash_ids) <= max(q.hash_ids) < 1 << 63:
            bad.add("ids are numbers from 0 to 2^63 - 1", 1, "hash_ids")
        else:
            good.append(item)
    return sorted(good, key=lambda item: item[0])


def _add(table: _Table, c: Conversation, path: Path, bad: BadRows, block: int | None, options: Any) -> None:
    size = block or c.block_size
    requests = _flat(c, bad)
    if options.failed_rows == "drop":
        table.failed += sum(1 for r in requests if r[1].output == 0)
        requests = [r for r in requests if r[1].output > 0]
    if not requests:
        return
    body = hash(tuple((q.input, q.output, len(q.hash_ids), t) for t, q, *_ in requests))
    table.twice += body in table.bodies
    table.bodies.add(body)
    session = len(table.sessions)
    table.sessions.append(c.id or path.stem)
    local = table.whole if options.id_scope == "file" else {}
    ends: list[tuple[float, int]] = []
    for k, (t, q, tool, system, sub) in enumerate(requests):
        n, full = len(q.hash_ids), q.input // size
        if n not in (full, -(-q.input // size)):
            bad.add(f"{n} ids for {q.input:,} tokens: {full} expected (whole blocks of {size})", 1, "hash_ids")
            continue
        table.floor += n == full
        table.ceil += n == -(-q.input // size)
        table.subagents += sub
        index = len(table.prompts)
        shared = _shared(table, (q.model, tool, system, sub), (tool + system) // size, options.share_system_blocks)
        ids = np.empty(n + 1, dtype=np.int64)
        for i, h in enumerate(q.hash_ids):
            if h not in local:
                if i < shared.shape[0] and len(local) == i:
                    local[h] = int(shared[i])
                else:
                    local[h] = table.next_id
                    table.next_id += 1
            ids[i] = local[h]
        rest = q.input - n * size
        if rest > 0:
            ids[n] = table.next_id
            table.next_id += 1
        table.atoms.append(ids[: n + (rest > 0)].astype(np.int32))
        table.counts.append(n + (rest > 0))
        after, delay = _awaited(ends, t, q, table)
        table.after.append(after)
        table.delay.append(delay)
        table.nominal.append(round(t * 1e9))
        api = q.api_time
        if api is None or not 0 <= api < 9e9:
            table.no_api_time += 1
            following = next((r for r in requests[k + 1 :] if not r[4]), None)
            pause = following[1].think_time if following else None
            api = max(0.0, following[0] - t - (pause or 0.0)) if following else 0.0
        bisect.insort(ends, (t + api, index))
        table.prompts.append(q.input)
        table.outputs.append(max(1, q.output))
        table.session.append(session)
        table.group.append(table.groups.setdefault(q.model + (" (sub-agent)" if sub else ""), len(table.groups)))
        table.stop.append(q.stop not in (None, "max_tokens", "length"))
    if table.next_id >= 1 << 31:
        raise TraceError(f"{path}: more than 2^31 blocks in all conversations")


def _shared(table: _Table, key: tuple[Any, ...], blocks: int, wanted: bool) -> np.ndarray:
    """Ids of the first blocks of all conversations with the same model, tool and system lengths."""
    if not wanted or blocks <= 0 or blocks > 1 << 20:
        return np.zeros(0, dtype=np.int64)
    if key not in table.shared:
        table.shared[key] = np.arange(table.next_id, table.next_id + blocks, dtype=np.int64)
        table.next_id += blocks
    return table.shared[key]


def _awaited(ends: list[tuple[float, int]], t: float, q: Request, table: _Table) -> tuple[int, int]:
    """The request that ended last before this one started (stamps are whole seconds: 1 s of grace), and the pause."""
    if not ends:
        return -1, 0
    at = bisect.bisect_right(ends, (t + 1.0, 1 << 62)) - 1
    if at < len(ends) - 1:
        table.overlaps += 1
    if at < 0:
        return -1, 0
    end, index = ends[at]
    pause = q.think_time if at == len(ends) - 1 and q.think_time is not None else t - end
    return index, round(min(max(pause, 0.0), 9e9) * 1e9)


def _finish(
    context: ReadContext, table: _Table, block: int, starts: np.ndarray, arrivals: Decision, sha256: str, files: int,
    bad_rows: int, first_bad: str,
) -> Workload:  # fmt: skip
    options = context.options
    n = len(table.prompts)
    offset = offsets(table.counts)
    prompts = np.array(table.prompts, dtype=np.int64)
    lengths = np.full(int(offset[-1]), block, dtype=np.int32)
    counts = np.diff(offset)
    lengths[offset[1:] - 1] = prompts - (counts - 1) * block
    session = np.array(table.session, dtype=np.int32)
    after = np.array(table.after, dtype=np.int32)
    delay = np.array(table.delay, dtype=np.int64)
    arrival = np.array(table.nominal, dtype=np.int64) + starts[session]
    # a request that awaits nobody starts with its conversation; the others' arrivals are those of the recording
    shared = sum(len(v) for v in table.shared.values())
    tail = f"{table.floor:,} of {n:,} prompts have floor(in / {block}) ids; their last partial blocks have no id and are unique"
    decisions = (
        Decision("block_size", str(block), f"stated in all {files:,} files", options.block_size is not None),
        Decision("tail", "floor", tail),
        Decision(
            "id_scope",
            options.id_scope or "conversation",
            "hash_id_scope is 'local' in all files",
            options.id_scope is not None,
        ),
        Decision(
            "share_system_blocks",
            str(options.share_system_blocks).lower(),
            f"an assumption: {len(table.shared):,} distinct (model, tool, system) lengths share {shared:,} first blocks"
            if options.share_system_blocks
            else "conversations share nothing",
            not options.share_system_blocks,
        ),
        arrivals,
    )
    notes = [
        "a request starts when the one that ended last before it in the recording has finished, plus the recorded pause",
        f"{table.overlaps:,} requests started before others of their conversation had ended" if table.overlaps else "",
        f"{table.no_api_time:,} requests have no api_time: their end is taken from the next start and think time"
        if table.no_api_time
        else "",
        f"{table.failed:,} requests without output tokens are left out" if table.failed else "",
        f"{table.twice:,} conversations have the same requests as an earlier one; they are kept" if table.twice else "",
        f"{bad_rows:,} bad rows left out (on_bad_row: skip); the first: {first_bad}" if bad_rows else "",
        "the content of outputs is not in the files: no later prompt can reuse them",
    ]
    w = make_workload(
        source=Source(
            kind="weka",
            path=str(context.path),
            sha256=sha256,
            synthetic=True,
            block_tokens=block,
            decisions=decisions,
            counts={"files": files, "rows": n + bad_rows + table.failed, "bad_rows": bad_rows,
                    "failed_rows": table.failed, "sub_agent_requests": table.subagents, "overlapping": table.overlaps},
            notes=tuple(x for x in notes if x),
        ),
        prompt_tokens=prompts,
        output_tokens=np.array(table.outputs, dtype=np.int64),
        atom_offset=offset,
        prompt_atoms=counts,
        atom_id=np.concatenate(table.atoms),
        atom_tokens=lengths,
        arrival_ns=arrival,
        after=after,
        delay_ns=delay,
        session=session,
        session_names=tuple(table.sessions),
        turn=links.turns(session),
        group=np.array(table.group, dtype=np.int32),
        group_names=tuple(table.groups),
        stop=np.array(table.stop, dtype=np.bool_),
    )  # fmt: skip
    return order_quietly(w)


FORMAT = register(
    Format(
        "weka",
        "WEKA agent traces (folder)",
        "ids",
        times=False,
        sniff=sniff,
        read=read,
        uses=frozenset({"block_size", "failed_rows", "share_system_blocks", "arrivals", "id_scope"}),
        block_size=64,
        folder=True,
    )
)
