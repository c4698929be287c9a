"""Compiled assembly of prompts from pieces. Twin: `workload.reference.assemble`."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from prefixsim.jit import kernel


@kernel
def assemble_rows(
    parent, skip, head_end, head_id, head_tokens, tail_end, tail_id, tail_tokens, answer, output, offset, prompt_atoms, ids, tokens
):  # fmt: skip
    """Fills ids and tokens of all rows; see `assemble.assemble`. answer, output int64 (n, 2, 2): up to two atoms
    (id, tokens) each, tokens 0 where there is none."""
    for r in range(parent.shape[0]):
        k = offset[r]
        for a in range(head_end[r - 1] if r > 0 else 0, head_end[r]):
            ids[k] = head_id[a]
            tokens[k] = head_tokens[a]
            k += 1
        p = parent[r]
        if p >= 0:
            for a in range(offset[p] + skip[r], offset[p] + prompt_atoms[p]):
                ids[k] = ids[a]
                tokens[k] = tokens[a]
                k += 1
            for i in range(2):
                if answer[p, i, 1] > 0:
                    ids[k] = answer[p, i, 0]
                    tokens[k] = answer[p, i, 1]
                    k += 1
        for a in range(tail_end[r - 1] if r > 0 else 0, tail_end[r]):
            ids[k] = tail_id[a]
            tokens[k] = tail_tokens[a]
            k += 1
        for i in range(2):
            if output[r, i, 1] > 0:
                ids[k] = output[r, i, 0]
                tokens[k] = output[r, i, 1]
                k += 1


@kernel
def prompt_sizes(parent, skip, head_end, tail_end, tail_sum, head_sum, answer, head_own, prompt_atoms, prompt_tokens):
    """Atoms and tokens of every prompt, from its parent's. head_own int64 (n,): tokens of the parent's atoms skipped."""
    for r in range(parent.shape[0]):
        atoms = head_end[r] - (head_end[r - 1] if r > 0 else 0) + tail_end[r] - (tail_end[r - 1] if r > 0 else 0)
        tokens = head_sum[r] + tail_sum[r]
        p = parent[r]
        if p >= 0:
            atoms += prompt_atoms[p] - skip[r]
            tokens += prompt_tokens[p] - head_own[r]
            for i in range(2):
                if answer[p, i, 1] > 0:
                    atoms += 1
                    tokens += answer[p, i, 1]
        prompt_atoms[r] = atoms
        prompt_tokens[r] = tokens
