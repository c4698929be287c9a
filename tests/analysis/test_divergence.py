"""Divergence points on workloads whose answer is known by construction; rewriting; certainties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.helpers import token_rows
from tests.analysis.test_ceilings import workloads

from prefixsim.analysis import reference
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.certainties import certain, certainties, shared_lengths
from prefixsim.analysis.divergence import divergence_points
from prefixsim.analysis.rewrite import Keep, Put, move, rewrite
from prefixsim.workload.table import Source, make_workload

RNG = np.random.default_rng(11)
SYSTEM = RNG.integers(1_000, 9_000, size=300).tolist()


def user():
    return RNG.integers(10_000, 90_000, size=20).tolist()


def atoms(rows, **columns):
    """Rows of [(content, tokens), ...] with unknown outputs."""
    flat = [a for row in rows for a in row]
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=[sum(t for _, t in row) for row in rows],
        output_tokens=[1] * len(rows),
        atom_offset=np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        prompt_atoms=[len(row) for row in rows],
        atom_id=[c for c, _ in flat],
        atom_tokens=[t for _, t in flat],
        arrival_ns=np.arange(len(rows)),
        **columns,
    )


def test_a_timestamp_in_front_of_a_system_prompt():
    """Five digits, each a token of its own: one point, not five; everything behind it is lost."""
    n = 60
    stamps = [[500, *(600 + int(c) for c in f"{i:05d}")] for i in RNG.permutation(n)]
    workload = token_rows(
        [([7, 7, *s, *SYSTEM, *user()], [1]) for s in stamps], group=[0] * n, group_names=("support",)
    )
    found = divergence_points(workload)
    top = found[0]
    assert top.kind == "unique per request"
    assert 2 <= top.depth <= 2 + 6
    assert top.branches == n
    assert top.requests == n
    assert top.lost_tokens == (n - 1) * len(SYSTEM)
    assert "id or a timestamp" in top.sentence()
    assert "`support`" in top.sentence()
    assert sum(d.lost_tokens for d in found[1:]) == 0


def test_what_the_user_writes_is_no_loss():
    workload = token_rows([([*SYSTEM, *user()], [1]) for _ in range(30)])
    (only,) = divergence_points(workload)
    assert (only.kind, only.lost_tokens, only.depth, only.requests) == ("content", 0, 300, 30)


@pytest.mark.parametrize(
    ("make", "columns", "kind"),
    [
        (lambda i: 50 + i % 3, {}, "variants"),
        (lambda i: 50 + i // 5, {"session": np.arange(40) // 5}, "unique per session"),
        (lambda i: 50 + i % 8, {"tenant": np.arange(40) % 8}, "unique per tenant"),
        (lambda i: 50 + i, {}, "unique per request"),
    ],
)
def test_kinds_by_evidence(make, columns, kind):
    workload = atoms([[(1, 100), (make(i), 12), (2, 500), (1_000 + i, 40)] for i in range(40)], **columns)
    top = divergence_points(workload)[0]
    assert (top.kind, top.depth, top.piece_tokens) == (kind, 100, (12, 12, 12))
    pieces = len({make(i) for i in range(40)})
    assert top.branches == pieces
    assert top.lost_tokens == (pieces - 1) * 500


def test_optional_piece():
    rows = [[(1, 100), *([(9, 30)] if i % 2 else []), (2, 500), (1_000 + i, 40)] for i in range(20)]
    top = divergence_points(atoms(rows))[0]
    assert (top.kind, top.lost_tokens, top.depth) == ("optional", 500, 100)


def test_documents_in_different_orders():
    rows = [[(1, 100), *[(10 + int(d), 200) for d in RNG.permutation(6)], (1_000 + i, 40)] for i in range(30)]
    workload = atoms(rows)
    top = divergence_points(workload)[0]
    assert top.kind == "reordered"
    before = ceilings(workload).total(1)[0]
    assert before + top.lost_tokens == 29 * (100 + 6 * 200)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workloads())
def test_points_never_promise_more_than_exists(workload):
    total = ceilings(workload).total(1)
    for point in divergence_points(workload):
        assert point.lost_tokens >= 0
        assert point.lost_tokens <= total[1] - total[0]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads(), st.data())
def test_rewrite_is_what_the_plan_says(workload, data):
    rows = reference.expand(workload, "none")
    plans = {}
    expected = [list(row) for row in rows]
    for r in range(workload.n):
        if not data.draw(st.booleans()):
            continue
        p = int(workload.prompt_tokens[r])
        a = data.draw(st.integers(0, p))
        b = data.draw(st.integers(a, p))
        c = data.draw(st.integers(b, p))
        plans[r] = (Keep(0, a), Keep(b, c), Put(3, 2), Keep(a, b), Keep(c, -1))
        row = rows[r]
        expected[r] = row[:a] + row[b:c] + ["put0", "put1"] + row[a:b] + row[c:]
    changed = rewrite(workload, plans)
    got = reference.expand(changed, "none")
    assert [len(row) for row in got] == [len(row) for row in expected]
    for r in range(workload.n):
        assert changed.prompt_tokens[r] == workload.prompt_tokens[r] + (2 if r in plans else 0)
        for q in range(r):  # contents got new names; what agrees with what is the same, at least at atoms' beginnings
            agree = reference.common(got[r], got[q])
            assert agree <= reference.common(expected[r], expected[q]) or workload.atom_tokens is not None
            if workload.atom_tokens is None and workload.n == len(plans):
                assert agree == reference.common(expected[r], expected[q])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads(), st.data())
def test_compiled_move_is_the_plan(workload, data):
    """The compiled way and the plan written out give rows that agree with each other as before."""
    rows, places, plans = [], [], {}
    drop = data.draw(st.booleans())
    for r in range(workload.n):
        if data.draw(st.booleans()):
            b, e, t = sorted(data.draw(st.integers(0, int(workload.prompt_tokens[r]))) for _ in range(3))
            rows.append(r)
            places.append((b, e, e if drop else t))
            plans[r] = (Keep(0, b), Keep(e, -1)) if drop else (Keep(0, b), Keep(e, t), Keep(b, e), Keep(t, -1))
    begin, end, to = np.array(places, dtype=np.int64).reshape(-1, 3).T
    got = move(workload, np.array(rows, dtype=np.int64), begin, end, None if drop else to)
    expected = rewrite(workload, plans)
    assert got.prompt_tokens.tolist() == expected.prompt_tokens.tolist()
    assert got.output_tokens.tolist() == expected.output_tokens.tolist()
    left, right = reference.expand(got, "none"), reference.expand(expected, "none")
    assert [len(row) for row in left] == [len(row) for row in right]
    if workload.atom_tokens is None:
        assert left == right
    assert ceilings(got).prefix_tokens.tolist() == ceilings(expected).prefix_tokens.tolist()


def test_certain_zero_is_said():
    workload = atoms([[(1, 240), (100 + i, 1_000)] for i in range(4)])
    assert shared_lengths(workload).longest_shared == 240
    assert certainties(workload, {"vllm": 784}) == [
        "vllm: 0 hits are certain: the longest shared prefix is 240 tokens, a block is 784"
    ]
    assert certainties(workload, {"vllm": 16}) == []
    assert "the longest prompt is 1,240 tokens" in certain(shared_lengths(workload), 1_240)[0]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workloads(), st.integers(1, 8))
def test_certain_is_certain(workload, g):
    """Where 0 is called certain, even the infinite cache with the engine's cap hits nothing in any order we try."""
    if certainties(workload, {"x": g}):
        for order in (np.arange(workload.n), np.arange(workload.n)[::-1].copy()):
            result = ceilings(workload, (g,), order=order)
            capped = np.minimum(result.prefix_tokens, workload.prompt_tokens - 1) // g * g
            assert capped.sum() == 0
