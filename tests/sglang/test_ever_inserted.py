"""What was ever in the tree, and since when: marks by run, beside a dict by page."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as hs

from prefixsim.engines.sglang import state as st
from prefixsim.engines.sglang.arenas import run_marks
from prefixsim.engines.sglang.request_kernels import known_pages, note_inserted
from prefixsim.workload.intern import build_chains, build_trie

from .cases import workload_of


@given(seed=hs.integers(0, 2**32 - 1), page=hs.sampled_from([1, 1, 3]))
@settings(max_examples=40)
def test_marks_are_the_pages_ever_inserted(seed: int, page: int) -> None:
    rng = random.Random(seed)
    tokens: list[list[int]] = []
    for _ in range(14):
        stem = rng.choice(tokens) if tokens else []
        stem = stem[: rng.randint(0, len(stem))]
        tokens.append((stem + [rng.randrange(3) for _ in range(rng.randint(1, 12))])[:40])
    rows = [{"id": str(i), "step": 0, "tokens": t, "output_tokens": [0], "priority": 0} for i, t in enumerate(tokens)]
    chains = build_chains(build_trie(workload_of(rows), "sglang"), page)
    offsets, ids = chains.expand()
    pages = [ids[a:b].tolist() for a, b in pairwise(offsets)]
    heads, marks = run_marks(chains)
    scalars = np.zeros(st.N_SCALARS, dtype=np.int64)
    scalars[st.S_KEEP_COMMITS] = 1
    commits = np.full((500, 3), -7, dtype=np.int64)
    ever: dict[int, int] = {}
    for now in range(30):
        row = rng.randrange(14)
        n = rng.randint(0, len(pages[row]))
        scalars[st.S_INSERT_NS] = now
        note_inserted(scalars, chains.run_offset, chains.run_start, chains.run_end, heads, marks, commits, row, n)
        for chain in pages[row][:n]:
            ever.setdefault(chain, now)
        for other, mine in enumerate(pages):
            most = rng.randint(0, len(mine))
            known = next((k for k, chain in enumerate(mine[:most]) if chain not in ever), most)
            assert known_pages(chains.run_offset, chains.run_end, heads, marks, other, most) == known
    noted = commits[: scalars[st.S_COMMITS]].tolist()
    assert sum(count for _, count, _ in noted) == len(ever), "each once"
    assert {c: now for first, count, now in noted for c in range(first, first + count)} == ever
