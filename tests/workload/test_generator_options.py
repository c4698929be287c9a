"""What single options of generators promise, each against its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixsim.errors import ScenarioError
from prefixsim.scenario.workload import WORKLOAD, Sharing
from prefixsim.workload import reference
from prefixsim.workload.load import load_workload
from prefixsim.workload.sharing import shared_content
from prefixsim.workload.table import Source, Workload, make_workload

POISSON = {"process": "poisson", "rate_per_s": 10.0}


def make(section: dict[str, Any], seed: int = 1, base: Path = Path()) -> Workload:
    return load_workload(WORKLOAD.validate_python(section), base_dir=base, seed=seed)


def prompts(w: Workload) -> list[list[tuple[int, int]]]:
    """(content, tokens) of each prompt's parts."""
    return [reference.atoms_of(w, r)[0] for r in range(w.n)]


@pytest.mark.parametrize("sets", [None, 4])
def test_few_shot_order_changes_nothing_else(sets: int | None) -> None:
    section = {"generator": "few_shot", "arrivals": POISSON, "requests": 60, "examples": 30, "shots": 6, "sets": sets}
    fixed, shuffled = (prompts(make({**section, "order": order})) for order in ("fixed", "shuffled"))
    moved = 0
    for a, b in zip(fixed, shuffled, strict=True):
        assert sorted(a) == sorted(b)
        assert (a[0], a[-1]) == (b[0], b[-1]), "instruction first, question last"
        assert len({content for content, _ in b}) == len(b), "no example twice"
        moved += a != b
    assert moved > 40


def test_documents_in_a_fixed_order_stand_as_they_are_numbered() -> None:
    section = {"generator": "rag", "arrivals": POISSON, "requests": 80, "documents": 40, "documents_per_request": 6}
    fixed, shuffled = (prompts(make({**section, "order": order})) for order in ("fixed", "shuffled"))
    for a, b in zip(fixed, shuffled, strict=True):
        assert [content for content, _ in a[1:-1]] == sorted(content for content, _ in b[1:-1])
        assert (a[0], a[-1], sorted(a)) == (b[0], b[-1], sorted(b))
    assert fixed != shuffled


def test_agents_end_before_their_first_prompt_beyond_the_limit() -> None:
    section = {"generator": "agents", "arrivals": POISSON, "requests": 300, "kinds": 3, "sub_agent_probability": 0.3}
    whole = make(section)
    limit = int(np.median(whole.prompt_tokens))
    cut = make({**section, "max_prompt_tokens": limit})
    kept = []
    for session in range(int(whole.session.max()) + 1):
        mine = np.flatnonzero(whole.session == session)
        mine = mine[np.argsort(whole.turn[mine])]
        long = np.flatnonzero(whole.prompt_tokens[mine] > limit)
        kept += mine[: long[0] if long.shape[0] else None].tolist()
    kept.sort()
    assert 0 < len(kept) < whole.n
    assert cut.prompt_tokens.tolist() == whole.prompt_tokens[kept].tolist()
    assert cut.output_tokens.tolist() == whole.output_tokens[kept].tolist()
    with pytest.raises(ScenarioError, match="below every first prompt"):
        make({**section, "max_prompt_tokens": 1})


@pytest.mark.parametrize(("n", "expected"), [(3, [0, 40, 100]), (6, [0, 40, 100, 300, 400, 440])])
def test_replayed_arrivals_start_again_after_a_mean_gap(tmp_path: Path, n: int, expected: list[int]) -> None:
    rows = [
        f'{{"timestamp": {t}, "input_length": 10, "output_length": 1, "hash_ids": [{t}]}}' for t in (0, 40, 100, 300)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows) + "\n")
    arrivals = {"process": "replay", "path": "t.jsonl", "format": "mooncake"}
    w = make({"generator": "scan", "arrivals": arrivals, "requests": n}, base=tmp_path)
    assert (w.arrival_ns // 1_000_000).tolist() == expected


def test_users_of_a_system_prompt_without_chat_share_it_and_nothing_else() -> None:
    section = {"generator": "shared_prefix", "arrivals": POISSON, "system_prompt_len": 70, "question_len": 9,
               "num_unique_system_prompts": 4, "num_users_per_system_prompt": 3}  # fmt: skip
    w = make(section)
    rows = prompts(w)
    assert w.n == 12
    assert sorted(np.bincount(w.group).tolist()) == [3, 3, 3, 3]
    heads = {row[0] for row in rows}
    assert len(heads) == 4
    assert {tokens for _, tokens in heads} == {70}
    assert [row[0] for row in rows] == [rows[int(np.flatnonzero(w.group == g)[0])][0] for g in w.group]
    assert len({row[1] for row in rows}) == 12
    assert {len(row) for row in rows} == {2}
    assert (w.after < 0).all()


SESSIONS = {
    "generator": "sessions",
    "arrivals": POISSON,
    "requests": 4000,
    "templates": [{"name": "t", "segments": [{"shared": "s", "tokens": 50}, {"unique": "u", "tokens": 10}]}],
}


def test_abandoned_sessions_are_geometric_up_to_their_turns() -> None:
    w = make({**SESSIONS, "turns": 6, "abandon_probability": 0.25})
    turns = np.bincount(w.session)[:-1]  # the last session is cut at `requests`
    expected = [0.25 * 0.75**k for k in range(5)]
    expected.append(1 - sum(expected))
    found = np.bincount(turns, minlength=7)[1:] / turns.shape[0]
    assert found.shape == (6,)
    error = 4 * np.sqrt(np.array(expected) / turns.shape[0])  # four standard deviations, fixed seed
    assert (np.abs(found - expected) < error).all()


def test_drawn_max_tokens_never_cut_an_output() -> None:
    w = make({**SESSIONS, "requests": 300, "output_tokens": {"uniform": {"low": 1, "high": 50}},
              "max_tokens": {"uniform": {"low": 20, "high": 30}}})  # fmt: skip
    assert (w.max_tokens >= w.output_tokens).all()
    assert (w.max_tokens >= 20).all()
    assert (w.max_tokens == w.output_tokens).any()
    assert (w.max_tokens[w.output_tokens < 20] <= 30).all()
    assert not w.max_tokens_assumed


def test_forks_need_an_open_loop() -> None:
    closed = {"process": "closed_loop", "users": 3}
    with pytest.raises(ScenarioError, match="fork_probability"):
        make({**SESSIONS, "arrivals": closed, "fork_probability": 0.5, "turns": 2})


@pytest.mark.parametrize("open_sessions", [400, 2])
def test_requests_of_a_lengths_only_trace_continue_open_sessions(open_sessions: int) -> None:
    """Each continues at most one, in its family, whole: its prompt is longer than that one's prompt and output."""
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(20, 2000, 400), rng.integers(1, 100, 400)
    model = Sharing.model_validate(
        {"families": 5, "prefix_tokens": 30, "continue_probability": 0.7, "open_sessions": open_sessions}
    )
    columns, decision = shared_content(prompt, output, model, seed=9)
    w = make_workload(source=Source(kind="test"), **columns)
    assert w.prompt_tokens.tolist() == prompt.tolist()
    rows = [reference.atoms_of(w, r) for r in range(w.n)]
    by_answer = {answer[-1][0]: r for r, (_, answer) in enumerate(rows)}
    assert len(by_answer) == w.n, "each answer is new"
    parents = {}
    for r, (mine, _) in enumerate(rows):
        earlier = [by_answer[content] for content, _ in mine if content in by_answer]
        if earlier:
            parents[r] = earlier[-1]
            before, answer = rows[earlier[-1]]
            assert mine[: len(before) + len(answer)] == before + answer
            assert earlier[-1] < r
    assert len(set(parents.values())) == len(parents) > 30, "a session has one end, which is continued once"
    assert f"{len(parents):,} continue an earlier request" in decision.evidence
    firsts = [mine[0][0] for mine, _ in rows]
    for family in range(5):  # of a family's sessions, only the latest so many stay open
        ends: list[int] = []
        for r in (r for r in range(w.n) if firsts[r] == family):
            if r in parents:
                ends[ends.index(parents[r])] = r
            else:
                ends = [*ends, r][-open_sessions:]
