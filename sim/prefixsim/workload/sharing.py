"""Contents for traces that hold lengths only: a stated model (`sharing:`), or none at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.scenario.workload import Sharing
from prefixsim.workload.generators.assemble import Pieces, assemble
from prefixsim.workload.streams import sample_tokens, stream, zipf_choice
from prefixsim.workload.table import I64, Decision


def unknown_content(prompt_tokens: I64, output_tokens: I64) -> dict[str, Any]:
    """Columns of a workload whose prompts share nothing, since nothing is known of them."""
    n = prompt_tokens.shape[0]
    return {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "atom_offset": np.arange(n + 1, dtype=np.int64),
        "prompt_atoms": np.ones(n, dtype=np.int64),
        "atom_id": np.arange(n, dtype=np.int32),
        "atom_tokens": prompt_tokens.astype(np.int32),
    }


def shared_content(
    prompt_tokens: I64, output_tokens: I64, model: Sharing, seed: int, continues: I64 | None = None
) -> tuple[dict[str, Any], Decision]:
    """Columns under a sharing model. `continues` int64 (n,): an earlier request whose conversation is known to go on
    (-1: none); it does where the prompt is long enough. Lengths are kept exactly."""
    n = prompt_tokens.shape[0]
    family = zipf_choice(model.families, model.skew, n, stream(seed, "sharing/family"))
    if model.prefix_share is not None:
        prefix = np.rint(prompt_tokens * model.prefix_share).astype(np.int64)
    else:
        drawn = sample_tokens(model.prefix_tokens, model.families, stream(seed, "sharing/prefix"), least=0)
        prefix = np.minimum(drawn[family], prompt_tokens)
    parent = np.full(n, -1, dtype=np.int64)
    if continues is not None:
        long = (continues >= 0) & (prompt_tokens > (prompt_tokens + output_tokens)[continues])
        parent[long] = continues[long]
    if model.continue_probability:
        _continue(parent, family, prompt_tokens, output_tokens, model, seed)
    first = parent < 0
    before = np.where(first, prefix, (prompt_tokens + output_tokens)[parent])
    rest = prompt_tokens - before
    headed = first & (prefix > 0)
    tailed = rest > 0
    base = model.families
    columns = assemble(
        Pieces(
            parent=parent,
            head_count=headed.astype(np.int64),
            head_id=family[headed],
            head_tokens=prefix[headed],
            tail_count=tailed.astype(np.int64),
            tail_id=base + np.arange(int(tailed.sum()), dtype=np.int64),
            tail_tokens=rest[tailed],
            skip=np.zeros(n, np.int64),
            skip_tokens=np.zeros(n, np.int64),
            output_id=base + n + np.arange(n, dtype=np.int64),
            output_tokens=output_tokens,
            thinking_id=np.zeros(n, np.int64),
            thinking_tokens=np.zeros(n, np.int64),
            keep_thinking=True,
        )
    )
    assert bool((columns["prompt_tokens"] == prompt_tokens).all())
    evidence = (
        f"a model, not the file: {model.families:,} prefix families, {int(headed.sum()):,} prompts start with one, "
        f"{int((~first).sum()):,} continue an earlier request; seed {seed}"
    )
    return columns, Decision("sharing", "synthetic", evidence, True)


def _continue(parent: I64, family: I64, prompt_tokens: I64, output_tokens: I64, model: Sharing, seed: int) -> None:
    """Lets requests continue an open session of their family whose context is shorter than their prompt."""
    rng = stream(seed, "sharing/continue")
    wish = np.asarray(rng.random(parent.shape[0]))
    pick = np.asarray(rng.random(parent.shape[0]))
    context = (prompt_tokens + output_tokens).tolist()
    prompts, families = prompt_tokens.tolist(), family.tolist()
    open_: dict[int, list[int]] = {}
    for r in range(parent.shape[0]):
        known = open_.setdefault(families[r], [])
        if parent[r] < 0 and known and wish[r] < model.continue_probability:
            at = int(pick[r] * len(known))
            if context[known[at]] < prompts[r]:
                parent[r] = known[at]
                known[at] = r
                continue
        known.append(r)
        if len(known) > model.open_sessions:
            known.pop(0)
