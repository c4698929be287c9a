"""What was resident in a cache when a run ended, as a text file: JSON lines, a header first, least recently used first.

A row is one resident sequence (a prefix in full blocks): `tokens: [...]`, or `segments: [[content, tokens], ...]`, with its
replica and namespace. A content is named as the trace names it (token, hash id, name of a segment) where the format does so;
else by its number in the workload, and then only the same workload may begin from the file. null: known to nobody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prefixsim.errors import TraceError
from prefixsim.scenario.workload import TraceWorkload
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.numbering import Numbering
from prefixsim.workload.ragged import offsets
from prefixsim.workload.rows import MAX_TOKENS
from prefixsim.workload.table import I64, Source, Workload, make_workload

VERSION = 1
MAX_SEQUENCES = 5_000_000
MAX_REPLICAS = 4096
_NOT_CONTENT = {"path", "time_scale", "spread_arrivals", "max_requests", "max_delay_s", "reuse_outputs", "cache"}
_SPACES = ("cache_salt", "lora", "extra_key")
_HEADER = {
    "prefixsim_cache": int, "engine": str, "kind": str, "granularity": int, "contents": str, "source": str,
    "block_tokens": int, "content_key": str, "replicas": int, "sequences": int, "tokens": int, "capacity_tokens": int,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Saved:
    """A file read. replica int64 (n,) of each row of the workload, whose requests follow one another."""

    header: dict[str, Any]
    workload: Workload
    replica: I64


def content_key(spec: Any, w: Workload, seed: int) -> str:
    """SHA-256 hex of what decides the numbers of contents: the file's (generator's) identity, how it is read, the seed."""
    how = spec.trace.model_dump(mode="json", exclude=_NOT_CONTENT) if isinstance(spec, TraceWorkload) else None
    return hashlib.sha256(json.dumps([w.source.sha256, how, seed], sort_keys=True).encode()).hexdigest()


def saved_lines(
    header: dict[str, Any], w: Workload, rows: Iterable[tuple[int, int, int]], labels: list[int | str | None] | None
) -> Iterator[bytes]:
    """Lines of a file. rows: (request, tokens, replica) of each resident sequence. labels: name of each content id; None:
    contents go by their numbers."""
    encode = msgspec.json.Encoder().encode
    yield encode({"prefixsim_cache": VERSION, **header}) + b"\n"
    for request, tokens, replica in rows:
        a, b = int(w.atom_offset[request]), int(w.atom_offset[request + 1])
        ids = w.atom_id[a:b].tolist()
        lengths = [1] * len(ids) if w.atom_tokens is None else w.atom_tokens[a:b].tolist()
        parts: list[list[Any]] = []
        left = tokens
        for i, length in zip(ids, lengths, strict=True):
            if left <= 0:
                break
            parts.append([i if labels is None else labels[i], min(length, left)])
            left -= parts[-1][1]
        if left > 0:  # output whose content nobody knows
            parts.append([None, left])
        row: dict[str, Any] = {"replica": replica}
        if all(length == 1 and isinstance(name, int) for name, length in parts):
            row["tokens"] = [name for name, _ in parts]
        else:
            row["segments"] = parts
        for key, code, names in zip(
            _SPACES, (w.salt, w.lora, w.extra_key), (w.salt_names, w.lora_names, w.extra_key_names), strict=True
        ):
            if code[request]:
                row[key] = names[code[request]]
        yield encode(row) + b"\n"


def read_saved(path: Path, numbering: Numbering, main: Workload, main_key: str, named: bool) -> Saved:
    """Reads a saved cache for a run of `main`, whose contents were numbered under `numbering` (`named`: by their names).

    Raises TraceError: file, line and what is wrong; or why the file's contents cannot be matched with the workload's.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file (a cache saved by `prefixsim run --save-cache FILE`)")
    file = TraceFile(path)
    header: dict[str, Any] | None = None
    made = _Rows(file, numbering)
    limit = int(main.atom_id.max()) + 1 if main.atom_id.shape[0] else 0
    line = 0
    for block in file.blocks():
        for text in block.splitlines():
            line += 1
            if not text.strip():
                continue
            try:
                row = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
                raise file.error(f"not JSON: {exc}", line) from None
            if not isinstance(row, dict):
                raise file.error(f"expected an object, found {type(row).__name__}", line)
            if header is None:
                header = _header(file, row, line)
                made.by_number = limit if header["contents"] == "numbers" else None
                _match(file, header, main, main_key, named)
            else:
                made.add(row, line)
    if header is None:
        raise file.error("is empty: a saved cache begins with a header line")
    if made.n != header["sequences"]:
        raise file.error(f"has {made.n:,} sequences, and its header says {header['sequences']:,}: was it cut short?")
    if made.n == 0:
        raise file.error("holds no sequences: nothing was resident when it was saved")
    return Saved(
        header, made.workload(path, file.sha256, main.source.block_tokens), np.array(made.replica, dtype=np.int64)
    )


def _header(file: TraceFile, row: dict[str, Any], line: int) -> dict[str, Any]:
    if "prefixsim_cache" not in row:
        raise file.error(
            "is no saved cache: its first line has no key 'prefixsim_cache' (a trace goes under `prime: {trace: {path: ...}}`)",
            line,
        )
    for key, kind in _HEADER.items():
        if not isinstance(row.get(key), kind) or isinstance(row.get(key), bool):
            raise file.error(f"header: {key}: expected {kind.__name__}, found {row.get(key)!r:.60}", line)
    if row["prefixsim_cache"] != VERSION:
        raise file.error(f"is of version {row['prefixsim_cache']}; this program reads version {VERSION}", line)
    if row["contents"] not in ("names", "numbers"):
        raise file.error(f"header: contents: expected names or numbers, found {row['contents']!r:.60}", line)
    return row


def _match(file: TraceFile, header: dict[str, Any], main: Workload, main_key: str, named: bool) -> None:
    """Raises TraceError where equal names would not mean equal content."""
    if header["contents"] == "numbers":
        if header["content_key"] != main_key:
            raise file.error(
                f"names contents by their number in the workload it was saved from ({header['source']}), and this workload is "
                "another one (or read with other options, or another seed): which contents are the same cannot be told"
            )
        return
    if not named or header["source"] != main.source.kind or header["block_tokens"] != main.source.block_tokens:
        raise file.error(
            f"names contents as {header['source']} traces do, {header['block_tokens']} tokens each, and this workload is "
            f"{main.source.kind} with {main.source.block_tokens}: which contents are the same cannot be told"
        )


class _Rows:
    """Rows checked one by one and put into columns."""

    def __init__(self, file: TraceFile, numbering: Numbering) -> None:
        self.file, self.numbering = file, numbering
        self.by_number: int | None = None  # contents are numbers below this
        self.replica: list[int] = []
        self.tokens: list[int] = []
        self.count: list[int] = []
        self.ids: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []
        self.names: dict[str, dict[str, int]] = {key: {"": 0} for key in _SPACES}
        self.spaces: dict[str, list[int]] = {key: [] for key in _SPACES}

    @property
    def n(self) -> int:
        """Rows so far."""
        return len(self.tokens)

    def add(self, row: dict[str, Any], line: int) -> None:
        """One row. Raises TraceError."""
        if self.n >= MAX_SEQUENCES:
            raise self.file.error(f"more than {MAX_SEQUENCES:,} sequences", line)
        unknown = row.keys() - {"replica", "tokens", "segments", *_SPACES}
        if unknown:
            raise self.file.error(f"unknown key {sorted(unknown)[0]!r:.60}", line)
        if ("tokens" in row) == ("segments" in row):
            raise self.file.error("a sequence has tokens or segments, one of them", line)
        labels, lengths = self._parts(row, line)
        if not labels:
            raise self.file.error("an empty sequence", line)
        total = sum(lengths)
        if total > MAX_TOKENS:
            raise self.file.error(f"more than {MAX_TOKENS:,} tokens", line)
        replica = row.get("replica", 0)
        if not isinstance(replica, int) or isinstance(replica, bool) or not 0 <= replica < MAX_REPLICAS:
            raise self.file.error(f"replica: expected a whole number from 0, found {replica!r:.60}", line)
        for key in _SPACES:
            value = row.get(key, "")
            if not isinstance(value, str):
                raise self.file.error(f"{key}: expected a string, found {value!r:.60}", line)
            self.spaces[key].append(self.names[key].setdefault(value, len(self.names[key])))
        self.replica.append(replica)
        self.tokens.append(total)
        self.count.append(len(labels))
        self.ids.append(self._ids(labels, line))
        self.lengths.append(np.array(lengths, dtype=np.int32))

    def _parts(self, row: dict[str, Any], line: int) -> tuple[list[Any], list[int]]:
        found = row.get("tokens", row.get("segments"))
        if not isinstance(found, list):
            raise self.file.error(f"expected a list, found {found!r:.60}", line)
        if "tokens" in row:
            return found, [1] * len(found)
        for pair in found:
            good = (
                isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], int) and not isinstance(pair[1], bool)
            )
            if not good or not 0 < pair[1] <= MAX_TOKENS:
                raise self.file.error(f"segments: expected [content, tokens] pairs, found {pair!r:.60}", line)
        return [p[0] for p in found], [p[1] for p in found]

    def _ids(self, labels: list[Any], line: int) -> np.ndarray:
        out = np.empty(len(labels), dtype=np.int32)
        ints, places = [], []
        for k, label in enumerate(labels):
            if label is None:
                out[k] = self.numbering.reserve(1)
            elif isinstance(label, int) and not isinstance(label, bool) and -(1 << 63) <= label < 1 << 63:
                if self.by_number is not None and not 0 <= label < self.by_number:
                    raise self.file.error(f"content {label} is not in the workload", line)
                ints.append(label)
                places.append(k)
            elif isinstance(label, str) and self.by_number is None:
                out[k] = self.numbering.name(label)
            else:
                raise self.file.error(f"not a content: {label!r:.60}", line)
        if ints:
            values = np.array(ints, dtype=np.int64)
            out[places] = values if self.by_number is not None else self.numbering.ints(values)
        return out

    def workload(self, path: Path, sha256: str, block_tokens: int) -> Workload:
        """One request a sequence, each awaiting the one before, with one output token."""
        n = self.n
        return make_workload(
            source=Source(kind="saved cache", path=str(path), sha256=sha256, block_tokens=block_tokens),
            prompt_tokens=self.tokens,
            output_tokens=np.ones(n, dtype=np.int64),
            atom_offset=offsets(np.array(self.count, dtype=np.int64)),
            prompt_atoms=self.count,
            atom_id=np.concatenate(self.ids),
            atom_tokens=np.concatenate(self.lengths),
            after=np.arange(-1, n - 1),
            salt=self.spaces["cache_salt"],
            lora=self.spaces["lora"],
            extra_key=self.spaces["extra_key"],
            salt_names=tuple(self.names["cache_salt"]),
            lora_names=tuple(self.names["lora"]),
            extra_key_names=tuple(self.names["extra_key"]),
        )
