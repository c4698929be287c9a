"""Prompts built from pieces: a request's prompt is its head, what it takes over from an earlier request, and its tail."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.workload.ragged import offsets
from prefixsim.workload.table import I64

MAX_ATOMS = 1 << 31
MAX_PROMPT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pieces:
    """What n requests are made of, in an order in which a request's parent comes first.

    prompt(r) = head(r) + prompt(parent)[skip(r):] + answer(parent) + tail(r); without parent (-1): head + tail.
    head_count, tail_count int64 (n,); head_id, head_tokens, tail_id, tail_tokens int64 flat. skip int64 (n,): leading
    atoms of the parent's prompt that `head` replaces, skip_tokens int64 (n,): their tokens.
    output_id, thinking_id int64 (n,): ids of the answer and the thinking; output_tokens int64 (n,) with thinking_tokens
    of them being thinking (0: none). keep_thinking: later prompts carry it.
    """

    parent: I64
    head_count: I64
    head_id: I64
    head_tokens: I64
    tail_count: I64
    tail_id: I64
    tail_tokens: I64
    skip: I64
    skip_tokens: I64
    output_id: I64
    output_tokens: I64
    thinking_id: I64
    thinking_tokens: I64
    keep_thinking: bool


def assemble(p: Pieces) -> dict[str, Any]:
    """Columns `prompt_tokens, output_tokens, atom_offset, prompt_atoms, atom_id, atom_tokens` for `make_workload`.

    Raises ScenarioError when a prompt or the whole would grow past what can be held.
    """
    from prefixsim.workload.generators.assemble_kernels import assemble_rows, prompt_sizes

    n = p.parent.shape[0]
    head, tail = offsets(p.head_count), offsets(p.tail_count)
    output = np.zeros((n, 2, 2), dtype=np.int64)
    output[:, 0, 0], output[:, 0, 1] = p.thinking_id, p.thinking_tokens
    output[:, 1, 0], output[:, 1, 1] = p.output_id, p.output_tokens - p.thinking_tokens
    answer = output
    if not p.keep_thinking:
        answer = output.copy()
        answer[:, 0, 1] = 0
    prompt_atoms, prompt_tokens = np.zeros(n, np.int64), np.zeros(n, np.int64)
    head_cum, tail_cum = offsets(p.head_tokens), offsets(p.tail_tokens)
    head_sum = head_cum[head[1:]] - head_cum[head[:-1]]
    tail_sum = tail_cum[tail[1:]] - tail_cum[tail[:-1]]
    prompt_sizes(
        p.parent, p.skip, head[1:], tail[1:], tail_sum, head_sum, answer, p.skip_tokens, prompt_atoms, prompt_tokens
    )
    if n and int(prompt_tokens.max()) > MAX_PROMPT:
        raise ScenarioError(
            f"a prompt would have {int(prompt_tokens.max()):,} tokens (at most {MAX_PROMPT:,}): set max_prompt_tokens"
        )
    offset = offsets(prompt_atoms + (output[:, :, 1] > 0).sum(axis=1))
    if int(offset[-1]) > MAX_ATOMS:
        raise ScenarioError(f"the workload would have {int(offset[-1]):,} prompt parts (at most {MAX_ATOMS:,})")
    ids, tokens = np.empty(int(offset[-1]), np.int32), np.empty(int(offset[-1]), np.int32)
    assemble_rows(
        p.parent, p.skip, head[1:], p.head_id, p.head_tokens, tail[1:], p.tail_id, p.tail_tokens,
        answer, output, offset, prompt_atoms, ids, tokens,
    )  # fmt: skip
    return {
        "prompt_tokens": prompt_tokens,
        "output_tokens": p.output_tokens,
        "atom_offset": offset,
        "prompt_atoms": prompt_atoms,
        "atom_id": ids,
        "atom_tokens": tokens,
    }
