"""Advice: what it promises is what the edited workload gives; edits that do not pay are not given."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.helpers import token_rows
from tests.analysis.test_divergence import RNG, SYSTEM, atoms, user

from prefixsim.analysis.advice import move_back, prompt_advice
from prefixsim.analysis.ceilings import ceilings
from prefixsim.analysis.divergence import divergence_points
from prefixsim.workload.intern import build_trie


def advice_on(workload, g):
    points = divergence_points(workload)
    trie = build_trie(workload, "vllm")
    found = prompt_advice(workload, points, g, base=ceilings(workload), trie=trie)
    for a in found:  # the numbers are those of the edited copy
        assert a.after == ceilings(a.workload).total(g)
        assert a.before == ceilings(workload).total(g)
        assert a.saved_tokens > 0
    return found


def test_a_timestamp_is_moved_behind_the_system_prompt():
    n = 50
    workload = token_rows([([7, 7, 1_000_000 + i, *SYSTEM, *user()], [1]) for i in range(n)])
    best = advice_on(workload, 16)[0]
    assert best.kind == "move"
    assert "1 tokens after the first 2 tokens" in best.text
    assert "behind the 300 shared tokens" in best.text
    assert best.saved_tokens == (n - 1) * (302 // 16 * 16)
    point = divergence_points(workload)[0]
    moved, behind = move_back(workload, point, "vllm")
    assert behind == 300
    row = moved.atom_id[moved.atom_offset[5] : moved.atom_offset[6]].tolist()
    assert row[:302] == [7, 7, *SYSTEM]
    assert row[302] == 1_000_005
    assert moved.prompt_tokens.tolist() == workload.prompt_tokens.tolist()


def test_a_session_id_is_moved_without_parting_its_turns():
    rows, session = [], []
    for s in range(12):
        history = [500_000 + s, *SYSTEM]
        for _ in range(3):
            history = [*history, *user()]
            rows.append((history, [1]))
            session.append(s)
    workload = token_rows(rows, session=session)
    best = advice_on(workload, 1)[0]
    assert best.kind == "move"
    assert divergence_points(workload)[0].kind == "unique per session"
    assert best.saved_tokens == 11 * 300  # every session's first turn; the turns among themselves lose nothing


@pytest.mark.parametrize(("length", "kind"), [(309, "trim"), (319, "pad"), (320, None)])
def test_shared_parts_are_fitted_to_blocks(length, kind):
    stem = RNG.integers(1_000, 9_000, size=length).tolist()
    workload = token_rows([([*stem, *user()], [1]) for _ in range(40)])
    found = advice_on(workload, 16)
    assert [a.kind for a in found] == ([kind] if kind else [])
    if kind == "pad":
        assert found[0].after[0] - found[0].before[0] == 39 * 16
        assert "by 1 token to 320 = 20 blocks of 16" in found[0].text
    if kind == "trim":
        assert found[0].after[0] == found[0].before[0]
        assert found[0].saved_tokens == 40 * 5


def test_documents_get_one_order():
    rows = [[(1, 96), *[(10 + int(d), 192) for d in RNG.permutation(5)], (1_000 + i, 40)] for i in range(30)]
    best = advice_on(atoms(rows), 16)[0]
    assert best.kind == "order"
    assert best.after[0] == 29 * (96 + 5 * 192)


def test_nothing_to_gain_is_no_advice():
    assert advice_on(token_rows([(RNG.integers(0, 90_000, size=64).tolist(), [1]) for _ in range(20)]), 16) == []
    assert advice_on(token_rows([([*SYSTEM[:288], *user()], [1]) for _ in range(np.int64(20))]), 16) == []
