"""What traces of hashed blocks share: lengths and `hash_ids`, an id standing for the tokens of one block."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefixsim.workload.checks import decide_blocks, dense_ids, time_decision, times_ns, whole
from prefixsim.workload.formats.registry import ReadContext
from prefixsim.workload.numbering import numbering
from prefixsim.workload.ragged import gather, offsets
from prefixsim.workload.rows import BadRows, Key, RowTable, read_rows, unknown_note
from prefixsim.workload.table import I64, Decision, Source, Workload, make_workload

HASH_KEYS = (
    Key("timestamp", "num", required=True),
    Key("input_length", "num", required=True),
    Key("output_length", "num", required=True),
    Key("hash_ids", "ints", required=True),
)


@dataclass(frozen=True, slots=True)
class Hashed:
    """The workload, and the rows it was made of (`rows` int64: indices into the table)."""

    workload: Workload
    table: RowTable
    rows: I64


def read_hashed(context: ReadContext, kind: str, keys: Sequence[Key], *, default_block: int, unit: str) -> Hashed:
    """Reads rows of lengths and hash ids, decides block size and tail rule, and makes a workload in file order."""
    options = context.options
    file = context.file()
    bad = BadRows(file, options.on_bad_row == "skip")
    table = read_rows(file, keys, bad)
    keep = np.ones(table.n, dtype=np.bool_)
    inputs = whole(table, "input_length", bad, keep, low=1)
    outputs = whole(table, "output_length", bad, keep)
    unit = options.time_unit or unit
    arrival = times_ns(table.number["timestamp"], unit, table.line, bad, keep, "timestamp")
    counts = table.count["hash_ids"]
    bad.check()
    if not keep.any():
        raise file.error("holds no requests" if not bad.count else f"holds no good rows; the first: {bad.problems[0]}")
    rule, decisions = decide_blocks(inputs[keep], counts[keep], options, default_block, "ceil")
    expected = rule.ids(inputs)
    wrong = keep & (counts != expected)
    for r in np.flatnonzero(wrong).tolist():
        bad.add(
            f"{counts[r]} ids for input_length {inputs[r]:,}: {rule.tail}({inputs[r]} / {rule.block}) = {expected[r]} expected",
            int(table.line[r]),
            "hash_ids",
        )
    keep &= ~wrong
    bad.check()
    failed = keep & (outputs == 0)
    if options.failed_rows == "drop":
        keep &= ~failed
    rows = np.flatnonzero(keep)
    if rows.shape[0] == 0:
        raise file.error("holds no requests that succeeded (every output_length is 0)")
    inputs, outputs, counts = inputs[rows], np.maximum(outputs[rows], 1), counts[rows]
    ids = gather(table.flat, table.start["hash_ids"][rows], counts)
    ids = dense_ids(ids)
    atoms, lengths, offset = _atoms(ids, inputs, counts, rule.block)
    notes = [n for n in (bad.note(), unknown_note(table, keys)) if n]
    if failed.any():
        what = "left out" if options.failed_rows == "drop" else "kept with one output token"
        notes.append(f"{int(failed.sum()):,} rows without output tokens (failed requests) are {what}")
    notes.append("the content of outputs is not in the file: no later prompt can reuse them")
    arrival = arrival[rows]
    workload = make_workload(
        source=Source(
            kind=kind,
            path=str(context.path),
            sha256=file.sha256,
            block_tokens=rule.block,
            decisions=(*decisions, time_decision(arrival, unit, options), _id_decision(ids, counts)),
            counts={"rows": table.n + bad.count - int(wrong.sum()), "bad_rows": bad.count, "blank_lines": table.blank,
                    "failed_rows": int(failed.sum())},
            notes=tuple(notes),
        ),
        prompt_tokens=inputs,
        output_tokens=outputs,
        atom_offset=offset,
        prompt_atoms=np.diff(offset),
        atom_id=atoms,
        atom_tokens=lengths,
        arrival_ns=arrival,
    )  # fmt: skip
    return Hashed(workload, table, rows)


def _atoms(ids: np.ndarray, inputs: I64, counts: I64, block: int) -> tuple[np.ndarray, np.ndarray, I64]:
    """Atoms of each prompt: one of `block` tokens an id, the last as long as what is left; a unique one where a tail has no id."""
    rest = inputs - (counts - 1) * block  # tokens of the last id, if ids cover the prompt
    uncovered = np.maximum(inputs - counts * block, 0)
    offset = offsets(counts)
    if not uncovered.any():
        lengths = np.full(ids.shape[0], block, dtype=np.int32)
        lengths[offset[1:] - 1] = rest
        return ids, lengths, offset
    tail = uncovered > 0
    wide = offsets(counts + tail)
    atoms = np.empty(int(wide[-1]), dtype=np.int32)
    lengths = np.full(atoms.shape[0], block, dtype=np.int32)
    is_tail = np.zeros(atoms.shape[0], dtype=np.bool_)
    is_tail[wide[1:][tail] - 1] = True
    atoms[~is_tail] = ids
    common = numbering()
    top = (int(ids.max()) + 1 if ids.shape[0] else 0) if common is None else common.reserve(int(tail.sum()))
    atoms[is_tail] = top + np.arange(int(tail.sum()), dtype=np.int32)
    lengths[is_tail] = uncovered[tail]
    return atoms, lengths, wide


def _id_decision(ids: np.ndarray, counts: I64) -> Decision:
    """Whether ids stand for whole prefixes (each has one predecessor) or for blocks by themselves: matters to nobody
    downstream, which compares whole prefixes, but says whether block size and file are sound."""
    from prefixsim.workload.ragged_kernels import check_chained

    if ids.shape[0] == 0:
        return Decision("ids", "none", "no ids in the file")
    moved, repeated, distinct = check_chained(ids, offsets(counts), int(ids.max()) + 1)
    if moved == 0 and repeated == 0:
        return Decision(
            "ids", "chained", f"{distinct:,} distinct ids, each always behind the same id: they name prefixes"
        )
    return Decision(
        "ids", "per block", f"{distinct:,} distinct ids, {moved:,} uses behind another id than before: they name blocks"
    )
