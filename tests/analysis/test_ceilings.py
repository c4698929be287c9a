"""Ceilings and the known prefixes under them, against the definitions and against known values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.helpers import MOONCAKE, mooncake, token_rows

from prefixsim.analysis import reference
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.segments import build_segments, inserted_tokens, known_tokens, lookup_order
from prefixsim.errors import NotModelledError
from prefixsim.workload.intern import build_trie
from prefixsim.workload.table import Source, make_workload


@st.composite
def workloads(draw, max_rows: int = 12):
    """Small workloads that share a lot: tokens from a tiny alphabet, rows extended from earlier rows, salts, odd atoms."""
    n = draw(st.integers(1, max_rows))
    atoms = draw(st.booleans())
    ids, tokens, offset, prompts, prompt_atoms, outputs = [], [], [0], [], [], []
    rows: list[list[tuple[int, int]]] = []
    for _ in range(n):
        row: list[tuple[int, int]] = []
        if rows and draw(st.booleans()):
            base = draw(st.sampled_from(rows))
            row = base[: draw(st.integers(0, len(base)))]
        row = row + [
            (draw(st.integers(0, 2)), draw(st.integers(1, 5)) if atoms else 1)
            for _ in range(draw(st.integers(0 if row else 1, 6)))
        ]
        known = draw(st.booleans())
        out = [
            (draw(st.integers(0, 2)), draw(st.integers(1, 3)) if atoms else 1) for _ in range(draw(st.integers(1, 3)))
        ]
        rows.append(row + out)
        written = row + out if known else row
        ids += [i for i, _ in written]
        tokens += [t for _, t in written]
        offset.append(len(ids))
        prompt_atoms.append(len(row))
        prompts.append(sum(t for _, t in row))
        outputs.append(sum(t for _, t in out))
    salts = [draw(st.integers(0, 1)) for _ in range(n)] if draw(st.booleans()) else [0] * n
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=prompts,
        output_tokens=outputs,
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        atom_id=ids,
        atom_tokens=tokens if atoms else None,
        arrival_ns=sorted(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))),
        salt=salts,
        salt_names=("", "a"),
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(workloads(), st.booleans(), st.sampled_from([1, 2, 3, 4, 7]))
def test_equal_to_the_definition(workload, reuse_outputs, granularity):
    rows = reference.expand(workload, "vllm")
    inserted = inserted_tokens(workload, reuse_outputs)
    expected = reference.shared_prefix(rows, workload.prompt_tokens, inserted, range(workload.n))
    result = ceilings(workload, (granularity,), reuse_outputs=reuse_outputs)
    assert result.prefix_tokens.tolist() == expected
    # the same by counting whole blocks one by one
    seen: set = set()
    for r, row in enumerate(rows):
        blocks = [tuple(row[: k * granularity]) for k in range(1, int(inserted[r]) // granularity + 1)]
        hit = 0
        for block in blocks[: int(workload.prompt_tokens[r]) // granularity]:
            if block not in seen:
                break
            hit += granularity
        assert result.hit_tokens(granularity)[r] == hit
        seen.update(blocks)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(workloads(), st.data())
def test_known_to_others(workload, data):
    n = workload.n
    arrived = np.array(data.draw(st.lists(st.integers(-1, 6), min_size=n, max_size=n)), dtype=np.int64)
    wait = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)), dtype=np.int64)
    lookup = np.where((arrived < 0) | (wait < 0), -1, arrived + wait)
    ties = data.draw(st.booleans())
    segments = build_segments(build_trie(workload, "vllm"))
    inserted = inserted_tokens(workload)
    got = known_tokens(segments, workload.prompt_tokens, inserted, arrived, lookup, ties)
    rows = reference.expand(workload, "vllm")
    assert got.tolist() == reference.known_prefix(
        rows, workload.prompt_tokens.tolist(), inserted.tolist(), arrived.tolist(), lookup.tolist(), ties
    )


def test_order_is_arrival_order_with_awaited_requests_behind_their_predecessors():
    workload = token_rows(
        [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2], [9])],
        arrival_ns=[10, 0, 12],
        after=[-1, 0, -1],
        delay_ns=[0, 5, 0],
    )
    assert lookup_order(workload).tolist() == [0, 2, 1]


def test_lengths_only_is_refused_not_zero():
    workload = token_rows([([1, 2], [3])])
    lengths = make_workload(
        source=Source(kind="azure", path="a.csv", content_known=False),
        prompt_tokens=[2],
        output_tokens=[1],
        atom_offset=[0, 1],
        prompt_atoms=[1],
        atom_id=[0],
        atom_tokens=[2],
    )
    assert ceilings(workload).total(1) == (0, 2)
    with pytest.raises(NotModelledError, match="unknown is not 0"):
        ceilings(lengths)


@pytest.mark.shared
def test_mooncake_ceiling():
    if not MOONCAKE.exists():
        pytest.skip("../shared is not here")
    result = ceilings(mooncake(MOONCAKE))
    assert result.total(512) == (54_063_104, 144_793_823)
    assert round(100 * result.total(1)[0] / result.total(1)[1], 2) == 37.36
    assert result.total(1)[0] >= result.total(16)[0] >= result.total(512)[0]
