"""Workloads for the tests, made without any reader: the tests then depend on the table alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from prefixsim.workload.table import Source, Workload, make_workload

SHARED = Path(__file__).resolve().parents[3] / "shared"
MOONCAKE = SHARED / "traces/mooncake/conversation_trace.jsonl"
W10K_SCRIPT = SHARED / "bench/w10k.py"


def mooncake(path: Path, block: int = 512) -> Workload:
    """A Mooncake file: hash ids as atoms of `block` tokens, the last one shorter."""
    ids, tokens, offset, prompt, output, arrival = [], [], [0], [], [], []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        n, length = len(row["hash_ids"]), row["input_length"]
        ids += row["hash_ids"]
        tokens += [block] * (n - 1) + [length - block * (n - 1)]
        offset.append(len(ids))
        prompt.append(length)
        output.append(row["output_length"])
        arrival.append(row["timestamp"] * 1_000_000)
    return make_workload(
        source=Source(kind="mooncake", path=str(path), block_tokens=block),
        prompt_tokens=prompt,
        output_tokens=output,
        atom_offset=offset,
        prompt_atoms=np.diff(offset),
        atom_id=ids,
        atom_tokens=tokens,
        arrival_ns=arrival,
    )


def token_rows(rows, **columns) -> Workload:
    """Rows of (prompt token list, output token list), in arrival order 0, 1, 2, ... s unless `arrival_ns` is given."""
    ids, offset, prompts = [], [0], []
    for prompt, output in rows:
        ids += list(prompt) + list(output)
        offset.append(len(ids))
        prompts.append(len(prompt))
    columns.setdefault("arrival_ns", np.arange(len(rows)) * 1_000_000_000)
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=prompts,
        output_tokens=[len(output) for _, output in rows],
        atom_offset=offset,
        prompt_atoms=prompts,
        atom_id=ids,
        atom_tokens=None,
        **columns,
    )


def w10k(folder: Path) -> Workload:
    """tokens.jsonl of the speed workload as token rows."""
    rows, arrival = [], []
    with (folder / "tokens.jsonl").open() as f:
        for line in f:
            row = json.loads(line)
            rows.append((row["tokens"], row["output_tokens"]))
            arrival.append(round(row["arrival"] * 1e9))
    return token_rows(rows, arrival_ns=arrival)
