"""Mooncake (JSON lines): timestamp in ms, input_length, output_length, hash_ids of chained 512-token blocks, last one partial."""

from __future__ import annotations

from prefixsim.workload.formats.hashed import HASH_KEYS, read_hashed
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.table import Workload

_FOREIGN = {"chat_id", "session_id", "delay", "text_input", "messages", "payload", "tokens", "segments"}


def sniff(head: Head) -> str | None:
    """Mooncake's four columns and none of its dialects'."""
    row = head.row
    if row is None or not {"timestamp", "input_length", "hash_ids"} <= row.keys() or _FOREIGN & row.keys():
        return None
    return "first row has timestamp, input_length and hash_ids"


def read(context: ReadContext) -> Workload:
    """Reads a Mooncake trace."""
    return read_hashed(context, "mooncake", HASH_KEYS, default_block=512, unit="ms").workload


FORMAT = register(
    Format(
        "mooncake",
        "Mooncake JSON lines",
        "ids",
        times=True,
        sniff=sniff,
        read=read,
        uses=frozenset({"block_size", "tail", "time_unit", "failed_rows"}),
        block_size=512,
    )
)
