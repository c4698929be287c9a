"""Qwen-Bailian (JSON lines): timestamp in s, chat_id / parent_chat_id, turn, type, hash_ids of 16-token blocks.

`input_length` is the whole request, history included. The last, padded block of a turn has another id in the next one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prefixsim.workload import links
from prefixsim.workload.edit import add_to_source
from prefixsim.workload.formats.hashed import HASH_KEYS, read_hashed
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.rows import Key
from prefixsim.workload.table import I64, Decision, Workload

KEYS = (
    *HASH_KEYS,
    Key("chat_id", "num", required=True),
    Key("parent_chat_id", "num"),
    Key("type", "str"),
    Key("turn", "num"),
)


def sniff(head: Head) -> str | None:
    """Hash ids and chat ids."""
    if head.row is not None and {"chat_id", "hash_ids", "input_length"} <= head.row.keys():
        return "first row has chat_id, input_length and hash_ids"
    return None


def read(context: ReadContext) -> Workload:
    """Reads a Bailian trace; a session is a chat and all that descend from it. Turns arrive when the file says so."""
    found = read_hashed(context, "bailian", KEYS, default_block=16, unit="s")
    w, table, rows = found.workload, found.table, found.rows
    chat = table.number["chat_id"][rows]
    above = np.nan_to_num(table.number["parent_chat_id"][rows], nan=-1.0)
    parent, missing, twice = _parents(chat, above)
    root, cut = _roots(parent)
    names, inverse = np.unique(root, return_inverse=True)
    session = inverse.reshape(-1).astype(np.int32)
    kinds = [table.text["type"][r] or "" for r in rows.tolist()]
    groups = {k: i for i, k in enumerate(sorted(set(kinds)))}
    notes = [
        f"{missing:,} chats name a parent that is not in the file: they count as first turns" if missing else "",
        f"{twice:,} chat ids occur again: children belong to the latest before them" if twice else "",
        f"{cut:,} chats descend from each other in a circle: each counts as its own session" if cut else "",
    ]
    atom_id = w.atom_id
    if context.options.id_scope == "conversation":
        owner = np.repeat(session.astype(np.int64), np.diff(w.atom_offset))
        atom_id = np.unique(owner << 32 | w.atom_id, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return replace(
        w,
        atom_id=atom_id,
        session=session,
        session_names=tuple(f"chat-{int(chat[r])}" for r in names.tolist()),
        turn=links.turns(session),
        group=np.array([groups[k] for k in kinds], dtype=np.int32),
        group_names=tuple(groups),
        ids=tuple(f"{int(c)}" for c in chat.tolist()) if not twice else None,
        source=add_to_source(
            w.source,
            Decision(
                "id_scope",
                context.options.id_scope or "file",
                "the format: ids are hashes, numbered over the whole file",
                context.options.id_scope is not None,
            ),
            Decision("turns", "cumulative", "the format: input_length and hash_ids hold the whole conversation"),
            notes=tuple(n for n in notes if n),
            sessions=names.shape[0],
            missing_parents=missing,
            repeated_ids=twice,
        ),
    )


def _parents(chat: np.ndarray, above: np.ndarray) -> tuple[I64, int, int]:
    """Row of each row's parent (-1: none), how many parents are missing, how many chat ids occur again."""
    latest: dict[float, int] = {}
    twice = 0
    for r, c in enumerate(chat.tolist()):
        twice += c in latest
        latest.setdefault(c, r)
    parent = np.full(chat.shape[0], -1, dtype=np.int64)
    missing = 0
    before: dict[float, int] = {}
    for r, (c, p) in enumerate(zip(chat.tolist(), above.tolist(), strict=True)):
        if p >= 0:
            found = before.get(p, latest.get(p))
            if found is None:
                missing += 1
            else:
                parent[r] = found
        before[c] = r
    return parent, missing, twice


def _roots(parent: I64) -> tuple[I64, int]:
    """The first ancestor of each row; rows on or behind a circle are their own. Pointer jumping."""
    index = np.arange(parent.shape[0], dtype=np.int64)
    root = np.where(parent >= 0, parent, index)
    for _ in range(max(1, int(parent.shape[0]).bit_length())):
        root = root[root]
    lost = parent[root] >= 0
    return np.where(lost, index, root), int(lost.sum())


FORMAT = register(
    Format(
        "bailian",
        "Qwen-Bailian JSON lines",
        "ids",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"block_size", "tail", "time_unit", "failed_rows", "id_scope"}),
        block_size=16,
    )
)
