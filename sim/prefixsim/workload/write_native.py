"""A workload as native JSON lines: nothing that the simulator sees is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from prefixsim.errors import NotModelledError
from prefixsim.workload.table import Workload

_ROWS_AT_ONCE = 4096


def seconds(ns: int) -> msgspec.Raw:
    """Nanoseconds as an exact decimal number of seconds."""
    whole, part = divmod(ns, 1_000_000_000)
    text = f"{whole}.{part:09d}".rstrip("0")
    return msgspec.Raw((text + "0" if text.endswith(".") else text).encode())


def native_lines(w: Workload) -> Iterator[bytes]:
    """Lines of a native trace. Raises NotModelledError for a trace whose contents are unknown: the format has no word for it."""
    if not w.source.content_known:
        raise NotModelledError(
            f"{w.source.path}: has lengths only, and native rows state contents: give a `sharing:` model to convert it"
        )
    encode = msgspec.json.Encoder().encode
    for first in range(0, w.n, _ROWS_AT_ONCE):
        last = min(w.n, first + _ROWS_AT_ONCE)
        base = int(w.atom_offset[first])
        atoms = w.atom_id[base : w.atom_offset[last]].tolist()
        lengths = None if w.atom_tokens is None else w.atom_tokens[base : w.atom_offset[last]].tolist()
        for r in range(first, last):
            a, b = int(w.atom_offset[r]) - base, int(w.atom_offset[r + 1]) - base
            yield encode(_row(w, r, atoms, lengths, a, a + int(w.prompt_atoms[r]), b)) + b"\n"


def _row(w: Workload, r: int, atoms: list[int], lengths: list[int] | None, a: int, m: int, b: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": w.request_id(r)}
    if w.after[r] >= 0:
        row["after"] = w.request_id(int(w.after[r]))
        row["delay"] = seconds(int(w.delay_ns[r]))
    row["arrival"] = seconds(int(w.arrival_ns[r]))
    if w.step[r]:
        row["step"] = int(w.step[r])
    if lengths is None:
        row["tokens"] = atoms[a:m]
        if b > m:
            row["output_tokens"] = atoms[m:b]
    else:
        row["segments"] = [[f"c{i}", t] for i, t in zip(atoms[a:m], lengths[a:m], strict=True)]
        if b > m:
            row["output_segments"] = [[f"c{i}", t] for i, t in zip(atoms[m:b], lengths[m:b], strict=True)]
    if b == m:
        row["output_length"] = int(w.output_tokens[r])
    if not w.max_tokens_assumed or w.max_tokens[r] != w.output_tokens[r]:
        row["max_tokens"] = int(w.max_tokens[r])
    if w.stop[r]:
        row["finish_reason"] = "stop"
    for key, code, names in (
        ("session", w.session, w.session_names),
        ("group", w.group, w.group_names),
        ("tenant", w.tenant, w.tenant_names),
        ("cache_salt", w.salt, w.salt_names),
        ("lora", w.lora, w.lora_names),
        ("extra_key", w.extra_key, w.extra_key_names),
    ):
        c = int(code[r])
        if c >= 0 and not names:
            row[key] = f"{key}-{c}"
        elif c >= 0 and (names[c] or key in ("session", "group", "tenant")):
            row[key] = names[c]
    if w.priority[r]:
        row["priority"] = int(w.priority[r])
    if w.skip_reading_prefix_cache[r]:
        row["skip_reading_prefix_cache"] = True
    if w.reported_cached_tokens is not None and w.reported_cached_tokens[r] >= 0:
        row["cached_tokens"] = int(w.reported_cached_tokens[r])
    return row
