"""Native trace rows (JSON lines): token-exact (`tokens`) or by segments, arrivals or links to the request awaited."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prefixsim.errors import TraceError
from prefixsim.scenario.workload import Trace
from prefixsim.workload import links
from prefixsim.workload.checks import dense_ids, times_ns, whole
from prefixsim.workload.edit import take
from prefixsim.workload.formats.registry import Format, Head, ReadContext, register
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.numbering import numbering
from prefixsim.workload.ragged import gather, offsets
from prefixsim.workload.rows import MAX_TOKENS, BadRows, Key, RowTable, read_rows, shown, unknown_note
from prefixsim.workload.table import I64, Decision, Source, Workload, make_workload

KEYS = (
    Key("id", "label"),
    Key("arrival", "num"),
    Key("after", "label"),
    Key("delay", "num"),
    Key("step", "num"),
    Key("tokens", "ints"),
    Key("segments", "other"),
    Key("output_tokens", "ints"),
    Key("output_segments", "other"),
    Key("output_length", "num"),
    Key("max_tokens", "num"),
    Key("finish_reason", "str"),
    Key("session", "label"),
    Key("group", "label"),
    Key("tenant", "label"),
    Key("cache_salt", "label"),
    Key("lora", "label"),
    Key("extra_key", "label"),
    Key("priority", "num"),
    Key("skip_reading_prefix_cache", "bool"),
    Key("cached_tokens", "num"),
)


def sniff(head: Head) -> str | None:
    """Rows with tokens or segments."""
    for key in ("tokens", "segments"):
        if head.row is not None and isinstance(head.row.get(key), list) and "input_length" not in head.row:
            return f"first row has {key!r}"
    return None


def read(context: ReadContext) -> Workload:
    """Reads a native trace."""
    return _read(context.file(), context.options)


def read_native(path: Path) -> Workload:
    """Reads a native trace with default options."""
    return _read(TraceFile(path), Trace(path=str(path)))


def workload_from_rows(rows: Iterable[Mapping[str, Any]], source: Source) -> Workload:
    """A workload from native rows already parsed, in row order. For inline cases and tests. Raises TraceError."""
    try:
        data = b"".join(msgspec.json.encode(dict(row)) + b"\n" for row in rows)
    except (UnicodeEncodeError, OverflowError) as exc:
        raise TraceError(f"rows that cannot be written as JSON: {exc}") from None
    return _read(_Inline(data), Trace(path="<inline>"), source)


class _Inline(TraceFile):
    """Rows held in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Path("<inline>"))
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()

    def chunks(self, size: int) -> Iterator[bytes]:
        for at in range(0, len(self.data), size):
            yield self.data[at : at + size]


def _read(file: TraceFile, options: Trace, source: Source | None = None) -> Workload:
    bad = BadRows(file, options.on_bad_row == "skip")
    table = read_rows(file, KEYS, bad)
    keep = np.ones(table.n, dtype=np.bool_)
    columns = _columns(table, bad, keep)
    content = _Content(table, bad, keep)
    maximum = whole(table, "max_tokens", bad, keep, low=1)
    short = keep & table.has["max_tokens"] & (maximum < content.outputs)
    for r in np.flatnonzero(short).tolist():
        bad.add(f"{maximum[r]} is below the {content.outputs[r]} output tokens", int(table.line[r]), "max_tokens")
    keep &= ~short
    after, ids = _after(table, bad, keep)
    bad.check()
    rows = np.flatnonzero(keep)
    if rows.shape[0] == 0:
        raise file.error("holds no requests" if not bad.count else f"holds no good rows; the first: {bad.problems[0]}")
    if bool((after[rows] >= 0).any()):
        number = np.full(table.n + 1, -1, dtype=np.int64)
        number[rows] = np.arange(rows.shape[0])
        lost = (after[rows] >= 0) & (number[after[rows]] < 0)
        for r in rows[lost].tolist():
            bad.add("awaits a row that is left out", int(table.line[r]), "after")
        after_kept = number[after[rows]].astype(np.int32)
    else:
        after_kept = np.full(rows.shape[0], -1, dtype=np.int32)
    given = table.has["arrival"][rows]
    arrival, cycle = links.resolve(after_kept, columns["delay_ns"][rows], columns["arrival_ns"][rows], given)
    if cycle >= 0:
        raise file.error(
            f"requests await each other in a circle through {ids[rows[cycle]]!r}", int(table.line[rows[cycle]])
        )
    names, codes = _names(table, rows)
    atoms, lengths, offset, prompt_atoms = content.atoms(rows)
    has_max = table.has["max_tokens"][rows]
    outputs = content.outputs[rows]
    cached = table.has["cached_tokens"][rows]
    w = make_workload(
        source=source or _source(file, table, bad, rows, after_kept, content.by_tokens),
        prompt_tokens=content.prompts[rows],
        output_tokens=outputs,
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        atom_id=atoms,
        atom_tokens=lengths,
        arrival_ns=arrival,
        after=after_kept,
        delay_ns=columns["delay_ns"][rows],
        step=columns["step"][rows],
        priority=columns["priority"][rows],
        max_tokens=np.where(has_max, maximum[rows], outputs) if has_max.any() else None,
        max_tokens_assumed=not has_max.all(),
        stop=np.array([t == "stop" for t in _some(table, "finish_reason", rows)]) if _any(table, "finish_reason") else None,
        skip_reading_prefix_cache=np.nan_to_num(table.number["skip_reading_prefix_cache"][rows]) > 0,
        turn=links.turns(codes["session"]) if names["session"] else None,
        session=codes["session"],
        group=codes["group"],
        tenant=codes["tenant"],
        salt=codes["cache_salt"],
        lora=codes["lora"],
        extra_key=codes["extra_key"],
        session_names=names["session"],
        group_names=names["group"],
        tenant_names=names["tenant"],
        salt_names=names["cache_salt"],
        lora_names=names["lora"],
        extra_key_names=names["extra_key"],
        ids=tuple(ids[r] for r in rows.tolist()) if _any(table, "id") else None,
        reported_cached_tokens=np.where(cached, columns["cached"][rows], -1) if cached.any() else None,
    )  # fmt: skip
    return take(w, links.parents_first(w.after))


def _columns(table: RowTable, bad: BadRows, keep: np.ndarray) -> dict[str, I64]:
    arrival = np.nan_to_num(table.number["arrival"], nan=0.0)
    delay = np.nan_to_num(table.number["delay"], nan=0.0)
    reasons = table.text["finish_reason"]
    if any(table.has["finish_reason"]):
        for r, reason in enumerate(reasons):
            if reason not in (None, "length", "stop") and keep[r]:
                bad.add(f"expected 'length' or 'stop', found {shown(reason)}", int(table.line[r]), "finish_reason")
                keep[r] = False
    return {
        "arrival_ns": times_ns(arrival, "s", table.line, bad, keep, "arrival"),
        "delay_ns": times_ns(delay, "s", table.line, bad, keep, "delay"),
        "step": whole(table, "step", bad, keep, high=1 << 53),
        "priority": whole(table, "priority", bad, keep, low=-(1 << 53), high=1 << 53),
        "cached": whole(table, "cached_tokens", bad, keep),
    }


class _Content:
    """Prompts and outputs: atoms of one token where all rows have `tokens`, else one atom a segment."""

    def __init__(self, table: RowTable, bad: BadRows, keep: np.ndarray) -> None:
        self.table = table
        n = table.n
        segmented = table.has["segments"] | table.has["output_segments"]
        self.by_tokens = not segmented.any()
        self.prompts = table.count["tokens"].copy()
        self.known_outputs = table.count["output_tokens"].copy()
        stated = whole(table, "output_length", bad, keep)
        self.names: dict[str, int] = {}
        self.parts: dict[int, list[tuple[str, int]]] = {}
        self.output_parts: dict[int, list[tuple[str, int]]] = {}
        for key, out, totals in (
            ("segments", self.parts, self.prompts),
            ("output_segments", self.output_parts, self.known_outputs),
        ):
            for r in np.flatnonzero(table.has[key] & keep).tolist():
                fault = _segments(table.other[key][r])
                if isinstance(fault, str):
                    bad.add(fault, int(table.line[r]), key)
                    keep[r] = False
                    continue
                out[r] = fault
                totals[r] = sum(t for _, t in fault)
        for r in np.flatnonzero(keep & table.has["segments"] & table.has["tokens"]).tolist():
            bad.add("give tokens or segments, not both", int(table.line[r]))
            keep[r] = False
        empty = keep & (self.prompts == 0)
        for r in np.flatnonzero(empty).tolist():
            missing = not (table.has["tokens"][r] or table.has["segments"][r])
            bad.add("has neither tokens nor segments" if missing else "the prompt is empty", int(table.line[r]))
        keep &= ~empty
        clash = keep & (self.known_outputs > 0) & table.has["output_length"] & (stated != self.known_outputs)
        for r in np.flatnonzero(clash).tolist():
            bad.add(
                f"{stated[r]} given, but {self.known_outputs[r]} output tokens listed",
                int(table.line[r]),
                "output_length",
            )
        keep &= ~clash
        self.outputs = np.maximum(np.where(self.known_outputs > 0, self.known_outputs, stated), 1)
        for r in np.flatnonzero(keep & ((self.prompts > MAX_TOKENS) | (self.outputs > MAX_TOKENS))).tolist():
            bad.add(f"more than {MAX_TOKENS:,} tokens", int(table.line[r]))
            keep[r] = False
        assert n == self.outputs.shape[0]

    def atoms(self, rows: I64) -> tuple[Any, Any, I64, I64]:
        """(atom_id, atom_tokens or None, atom_offset, prompt_atoms) of the given rows."""
        table = self.table
        starts = np.stack([table.start["tokens"][rows], table.start["output_tokens"][rows]], axis=1)
        counts = np.stack([table.count["tokens"][rows], table.count["output_tokens"][rows]], axis=1)
        tokens = dense_ids(gather(table.flat, starts.reshape(-1), counts.reshape(-1)))
        if self.by_tokens:
            return tokens, None, offsets(counts.sum(axis=1)), counts[:, 0]
        base = int(tokens.max()) + 1 if tokens.shape[0] else 0
        common = numbering()
        name_id = self._own_id if common is None else common.name
        base = base if common is None else 0
        ids: list[int] = []
        lengths: list[int] = []
        prompt_atoms, total, at = [], [], 0
        for i, r in enumerate(rows.tolist()):
            before = len(ids)
            mark = before
            for k, parts in enumerate((self.parts.get(r), self.output_parts.get(r))):
                size = int(counts[i, k])
                ids.extend(tokens[at : at + size].tolist())
                lengths.extend([1] * size)
                at += size
                for name, length in parts or ():
                    ids.append(base + name_id(name))
                    lengths.append(length)
                if k == 0:
                    mark = len(ids)
            prompt_atoms.append(mark - before)
            total.append(len(ids) - before)
        return np.array(ids, np.int32), np.array(lengths, np.int32), offsets(total), np.array(prompt_atoms, np.int64)

    def _own_id(self, name: str) -> int:
        """Number of a segment's name, by first appearance."""
        return self.names.setdefault(name, len(self.names))


def _segments(value: Any) -> list[tuple[str, int]] | str:
    if not isinstance(value, list):
        return f"expected a list of [name, tokens] pairs, found {shown(value)}"
    out = []
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            return f"expected [name, tokens] pairs, found {shown(pair)}"
        tokens = pair[1]
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens <= MAX_TOKENS:
            return f"segment {pair[0]!r}: expected a whole number from 1 to {MAX_TOKENS:,}, found {shown(tokens)}"
        out.append((pair[0], tokens))
    return out


def _after(table: RowTable, bad: BadRows, keep: np.ndarray) -> tuple[Any, list[str]]:
    """Index of the awaited row of each row (-1 none), and all ids (made up where missing)."""
    ids = [t if t is not None else f"#{line}" for t, line in zip(table.text["id"], table.line.tolist(), strict=True)]
    index: dict[str, int] = {}
    if _any(table, "id"):
        for r, name in enumerate(ids):
            if not keep[r]:
                continue
            if name in index:
                bad.add(f"{name!r} was the id of line {table.line[index[name]]} too", int(table.line[r]), "id")
                keep[r] = False
            else:
                index[name] = r
    after = np.full(table.n, -1, dtype=np.int64)
    for r in np.flatnonzero(table.has["after"] & keep).tolist():
        target = index.get(table.text["after"][r] or "")
        if target is None:
            bad.add(f"no request has the id {table.text['after'][r]!r}", int(table.line[r]), "after")
            keep[r] = False
        else:
            after[r] = target
    return after, ids


def _any(table: RowTable, key: str) -> bool:
    return bool(table.has[key].any())


def _some(table: RowTable, key: str, rows: I64) -> list[str | None]:
    text = table.text[key]
    return [text[r] for r in rows.tolist()]


def _names(table: RowTable, rows: I64) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    names: dict[str, tuple[str, ...]] = {}
    codes: dict[str, Any] = {}
    for key in ("session", "group", "tenant", "cache_salt", "lora", "extra_key"):
        spaced = key in ("cache_salt", "lora", "extra_key")
        found: dict[str, int] = {"": 0} if spaced else {}
        if _any(table, key):
            none = 0 if spaced else -1
            codes[key] = np.array(
                [none if t is None else found.setdefault(t, len(found)) for t in _some(table, key, rows)],
                dtype=np.int32,
            )
        else:
            codes[key] = np.full(rows.shape[0], 0 if spaced else -1, dtype=np.int32)
        names[key] = tuple(found)
    return names, codes


def _source(file: TraceFile, table: RowTable, bad: BadRows, rows: I64, after: Any, by_tokens: bool) -> Source:
    timed = int(table.has["arrival"][rows].sum())
    stepped = int(table.has["step"][rows].sum())
    linked = int((after >= 0).sum())
    if timed + stepped + linked == 0:
        times = Decision("arrivals", "all at once", "no row has arrival, after or step: all arrive at time 0")
    else:
        times = Decision(
            "arrivals", "as given", f"{timed:,} rows with arrival (s), {linked:,} with after, {stepped:,} with step"
        )
    unknown = int((table.count["output_tokens"][rows] == 0).sum()) if by_tokens else 0
    notes = [n for n in (bad.note(), unknown_note(table, KEYS)) if n]
    if unknown:
        notes.append(
            f"{unknown:,} requests have no output tokens listed: their outputs are never reused by later prompts"
        )
    return Source(
        kind="native",
        path=file.name,
        sha256=file.sha256,
        block_tokens=1,
        decisions=(times,),
        counts={"rows": table.n, "bad_rows": bad.count, "blank_lines": table.blank},
        notes=tuple(notes),
    )


FORMAT = register(Format("native", "prefixsim's own JSON lines", "tokens", times=True, sniff=sniff, read=read))
