"""Generators: what they promise about lengths, sharing, links, seeds and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.analysis.ceilings import ceilings
from prefixsim.errors import DoesNotFitError, PrefixsimError, ScenarioError
from prefixsim.scenario.workload import GENERATORS, WORKLOAD
from prefixsim.workload import reference
from prefixsim.workload.cache import check
from prefixsim.workload.generators.assemble import Pieces, assemble
from prefixsim.workload.generators.registry import generators
from prefixsim.workload.load import load_workload
from prefixsim.workload.streams import sample, sample_tokens, stream, zipf_choice
from prefixsim.workload.table import Workload

POISSON = {"process": "poisson", "rate_per_s": 10.0}
SUPPORT = {
    "name": "support",
    "segments": [
        {"shared": "system", "tokens": 1000},
        {"shared": "few-shot", "tokens": 37, "variants": 3},
        {"unique": "user", "tokens": {"lognormal": {"median": 80, "p95": 400}}},
    ],
}
SESSIONS = {
    "generator": "sessions",
    "arrivals": POISSON,
    "requests": 200,
    "templates": [SUPPORT],
    "turns": {"geometric": {"mean": 3}},
}
SMALL: dict[str, dict[str, Any]] = {
    "sessions": SESSIONS,
    "few_shot": {"generator": "few_shot", "arrivals": POISSON, "requests": 200, "sets": 5},
    "rag": {"generator": "rag", "arrivals": POISSON, "requests": 200, "documents": 50},
    "agents": {"generator": "agents", "arrivals": POISSON, "requests": 200, "kinds": 3, "sub_agent_probability": 0.3},
    "tree_of_thought": {"generator": "tree_of_thought", "arrivals": POISSON, "requests": 200},
    "scan": {"generator": "scan", "arrivals": POISSON, "requests": 200, "documents": 150},
    "reuse": {"generator": "reuse", "arrivals": POISSON, "requests": 200},
    "prefix_repetition": {"generator": "prefix_repetition", "num_prompts": 200, "request_rate": 5.0, "burstiness": 0.5},
    "generated-shared-prefix": {"generator": "generated-shared-prefix", "gsp_num_groups": 20, "gsp_prompts_per_group": 10},
    "shared_prefix": {"generator": "shared_prefix", "arrivals": POISSON, "requests": 200, "enable_multi_turn_chat": True},
    "mix": {"mix": [
        {"name": "chat", "workload": {**SESSIONS, "requests": 120}},
        {"name": "batch", "workload": {"generator": "scan", "arrivals": {"process": "constant", "rate_per_s": 3.0}, "requests": 80}},
    ]},
}  # fmt: skip


def make(section: dict[str, Any], seed: int = 1) -> Workload:
    """The workload of a section."""
    return load_workload(WORKLOAD.validate_python(section), base_dir=Path(), seed=seed)


def same(a: Workload, b: Workload) -> bool:
    """Equal in all that the simulator sees."""
    names = (
        "arrival_ns",
        "after",
        "delay_ns",
        "prompt_tokens",
        "output_tokens",
        "atom_offset",
        "atom_id",
        "atom_tokens",
        "session",
    )
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)


def test_every_generator_of_the_schema_exists_and_is_tested_here():
    assert set(generators()) == {*GENERATORS, "mix"} == set(SMALL)


@pytest.mark.parametrize("kind", SMALL)
def test_tables_are_sound_and_deterministic(kind):
    w = make(SMALL[kind])
    check(w)
    assert w.n == 200
    assert w.source.synthetic
    assert bool((w.after < np.arange(w.n)).all())
    assert bool((np.diff(w.arrival_ns) >= 0).all())
    assert bool((w.arrival_ns >= 0).all())
    later = w.after >= 0
    assert bool((w.arrival_ns[later] >= w.arrival_ns[w.after[later]] + w.delay_ns[later]).all())
    assert same(w, make(SMALL[kind]))
    if kind != "generated-shared-prefix":  # all at once, fixed lengths: the seed only orders equal groups
        assert not same(w, make(SMALL[kind], seed=2))
    assert make(SMALL[kind]).source.sha256 == w.source.sha256 != make(SMALL[kind], seed=2).source.sha256


@pytest.mark.parametrize("kind", [k for k in SMALL if k not in ("mix", "prefix_repetition", "generated-shared-prefix")])
@pytest.mark.parametrize("process", [
    {"process": "constant", "rate_per_s": 4.0}, {"process": "gamma", "rate_per_s": 4.0, "shape": 0.3},
    {"process": "weibull", "rate_per_s": 4.0, "shape": 0.7}, {"process": "all_at_once"},
    {"process": "closed_loop", "users": 7, "think_time_s": 2.0, "ramp_s": 3.5},
    {"process": "day_curve", "rate_per_s": 4.0, "curve": [0, 1, 3], "period_s": 30},
])  # fmt: skip
def test_every_arrival_process_goes_with_every_generator(kind, process):
    w = make({**SMALL[kind], "arrivals": process})
    check(w)
    if process["process"] == "closed_loop":
        assert int((w.after < 0).sum()) <= 7 * (6 if kind == "tree_of_thought" else 1)
        starts = sorted(set((w.arrival_ns[w.after < 0] / 1e9).tolist()))
        assert starts == [k * 0.5 for k in range(7)][: len(starts)]
        assert len(starts) > 3


def test_a_turn_carries_its_history():
    w = make({**SESSIONS, "think_time_s": {"exponential": {"mean": 5}}})
    for r in np.flatnonzero(w.after >= 0).tolist():
        p = int(w.after[r])
        before, answer = reference.atoms_of(w, p)
        prompt, _ = reference.atoms_of(w, r)
        assert prompt[: len(before) + len(answer)] == before + answer
        assert len(prompt) == len(before) + len(answer) + 1
        assert w.session[r] == w.session[p]
        assert w.turn[r] == w.turn[p] + 1


def test_thinking_is_stripped_from_later_prompts():
    section = {**SESSIONS, "output_tokens": 100, "thinking_tokens": 60}
    for strip in (True, False):
        w = make({**section, "strip_thinking": strip})
        for r in np.flatnonzero(w.after >= 0).tolist():
            before, answer = reference.atoms_of(w, int(w.after[r]))
            prompt, _ = reference.atoms_of(w, r)
            assert [t for _, t in answer] == [60, 40]
            assert prompt[: len(before)] == before
            kept = answer[1:] if strip else answer
            assert prompt[len(before) : len(before) + len(kept)] == kept


def test_a_timestamp_in_front_changes_with_every_request():
    template = {
        "name": "t",
        "segments": [
            {"unique": "now", "tokens": 7, "every": "request"},
            {"shared": "s", "tokens": 500},
            {"unique": "u", "tokens": 9},
        ],
    }
    w = make({**SESSIONS, "templates": [template]})
    assert ceilings(w, (1,)).total(1)[0] == 0
    behind = {**template, "segments": [template["segments"][k] for k in (1, 0, 2)]}
    hit, _ = ceilings(make({**SESSIONS, "templates": [behind]}), (1,)).total(1)
    assert hit == 500 * (w.n - 1)


def test_forks_continue_an_earlier_session():
    w = make({**SESSIONS, "fork_probability": 0.5, "requests": 400})
    forks = [r for r in range(w.n) if w.turn[r] == 0 and w.after[r] >= 0]
    assert len(forks) > 20
    for r in forks:
        before, answer = reference.atoms_of(w, int(w.after[r]))
        assert reference.atoms_of(w, r)[0][: len(before) + len(answer)] == before + answer


def test_long_prompts_end_their_session():
    w = make({**SESSIONS, "turns": 50, "max_prompt_tokens": 2500, "requests": 300})
    check(w)
    assert w.n == 300
    assert int(w.prompt_tokens.max()) <= 2500
    assert int(w.turn.max()) >= 3
    with pytest.raises(ScenarioError, match="max_prompt_tokens"):
        make({**SESSIONS, "max_prompt_tokens": 10})


def test_tenants_have_their_own_parts_and_salts():
    template = {
        "name": "t",
        "cache_salt": "per_tenant",
        "segments": [{"per_tenant": "kb", "tokens": 300}, {"unique": "u", "tokens": 9}],
    }
    w = make({**SESSIONS, "templates": [template], "tenants": 4, "turns": 1})
    first = w.atom_id[w.atom_offset[:-1]]
    assert (
        len(set(zip(first.tolist(), w.tenant.tolist(), w.salt.tolist(), strict=True))) == len(set(first.tolist())) == 4
    )
    assert all(w.salt_names[s] == w.tenant_names[t] for s, t in zip(w.salt.tolist(), w.tenant.tolist(), strict=True))


def test_adding_a_template_changes_no_other_draw():
    """Named streams: lengths of a template's sessions do not depend on the other templates."""
    other = {
        "name": "other",
        "weight": 0.5,
        "segments": [{"unique": "x", "tokens": {"uniform": {"low": 1, "high": 99}}}],
    }
    base = {**SESSIONS, "turns": 1}
    alone, both = make(base), make({**base, "templates": [SUPPORT, other]})
    mine = both.prompt_tokens[both.group == 0]
    assert 20 < mine.shape[0] < 200
    assert mine.tolist() == alone.prompt_tokens[: mine.shape[0]].tolist()
    assert both.arrival_ns.tolist() == alone.arrival_ns.tolist()


def test_adding_a_part_to_a_mix_changes_no_other():
    both, one = make(SMALL["mix"]), make({"mix": SMALL["mix"]["mix"][:1]})
    chat = np.flatnonzero([both.group_names[g].startswith("chat/") for g in both.group])
    assert both.prompt_tokens[chat].tolist() == one.prompt_tokens.tolist()
    assert both.arrival_ns[chat].tolist() == one.arrival_ns.tolist()
    assert ceilings(both, (1,)).total(1)[0] == ceilings(one, (1,)).total(1)[0] + 50 * 79  # the scan's instruction


@pytest.mark.parametrize(("share", "granularity"), [(0.62, 16), (0.0, 16), (0.3, 64), (0.85, 1), (0.62, 512)])
def test_requested_hit_rate_is_reached(share, granularity):
    w = make({"generator": "reuse", "arrivals": POISSON, "requests": 3000, "prompt_tokens": {"lognormal": {"median": 2000, "p95": 8000}},
              "hit_rate": {"share": share, "granularity": granularity}})  # fmt: skip
    hit, total = ceilings(w, (granularity,)).total(granularity)
    assert abs(hit / total - share) < 0.005


def test_a_hit_rate_that_cannot_be_reached_says_what_can():
    with pytest.raises(ScenarioError, match=r"cannot be reached.*nearest"):
        make(
            {
                "generator": "reuse",
                "arrivals": POISSON,
                "requests": 50,
                "prompt_tokens": 20,
                "hit_rate": {"share": 0.9, "granularity": 64},
            }
        )


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 60), st.integers(0, 10)),
        min_size=1,
        max_size=25,
    )
)
@settings(max_examples=200)
def test_reuse_takes_what_it_says(rows):
    """The longest earlier prefix of every prompt is what the rows ask for, or what its source has."""
    rows = [[p, o, min(s, p), b] for p, o, s, b in rows]
    length = [p + o for p, o, *_ in rows]
    source, taken = reference.choose_sources(
        length, [r[0] for r in rows], [r[2] for r in rows], [r[3] for r in rows], 64
    )
    from prefixsim.workload.generators.reuse import _rows
    from prefixsim.workload.generators.reuse_kernels import choose_sources

    columns = [np.array(c, dtype=np.int64) for c in zip(*rows, strict=True)]
    found = [np.zeros(len(rows), np.int64) for _ in range(2)]
    choose_sources(np.array(length, dtype=np.int64), columns[0], columns[2], columns[3], *found)
    assert found[0].tolist() == source
    assert found[1].tolist() == taken
    offset, ids, tokens, prompt_atoms = _rows(*found, columns[0], columns[1])
    spelt = []
    for r in range(len(rows)):
        a, b = int(offset[r]), int(offset[r + 1])
        spelt.append([(i, j) for i, t in zip(ids[a:b].tolist(), tokens[a:b].tolist(), strict=True) for j in range(t)])
        assert len(spelt[r]) == length[r]
        assert prompt_atoms[r] == b - a - 1
        common = 0
        for q in range(r):  # outputs less their last token
            k = 0
            while k < rows[r][0] and k < length[q] - 1 and spelt[r][k] == spelt[q][k]:
                k += 1
            common = max(common, k)
        assert common >= taken[r]
        if taken[r] < rows[r][0]:
            assert common == taken[r]


piece = st.tuples(st.integers(0, 9), st.integers(1, 9))


@given(st.data())
def test_assemble_is_its_twin(data):
    n = data.draw(st.integers(1, 8))
    parent = [data.draw(st.integers(-1, r - 1)) for r in range(n)]
    heads = [data.draw(st.lists(piece, max_size=2)) for _ in range(n)]
    tails = [data.draw(st.lists(piece, min_size=1, max_size=2)) for _ in range(n)]
    outputs = [data.draw(st.integers(1, 9)) for _ in range(n)]
    thinking = [data.draw(st.integers(0, o - 1)) for o in outputs]

    def flat(lists: list, k: int) -> np.ndarray:
        return np.array([x[k] for row in lists for x in row], dtype=np.int64)

    skip = [min(len(heads[p]), data.draw(st.integers(0, 2))) if p >= 0 else 0 for p in parent]
    p = Pieces(
        parent=np.array(parent), head_count=np.array([len(h) for h in heads]), head_id=flat(heads, 0), head_tokens=flat(heads, 1),
        tail_count=np.array([len(t) for t in tails]), tail_id=flat(tails, 0), tail_tokens=flat(tails, 1), skip=np.array(skip),
        skip_tokens=np.zeros(n, np.int64), output_id=np.arange(n) + 100, output_tokens=np.array(outputs),
        thinking_id=np.arange(n) + 200, thinking_tokens=np.array(thinking), keep_thinking=data.draw(st.booleans()),
    )  # fmt: skip
    twin = reference.assemble(p)
    dropped = [sum(t for _, t in twin[q][0][: skip[r]]) if (q := parent[r]) >= 0 else 0 for r in range(n)]
    p = Pieces(**{f: getattr(p, f) for f in p.__slots__} | {"skip_tokens": np.array(dropped, dtype=np.int64)})
    columns = assemble(p)
    for r in range(n):
        a, b = columns["atom_offset"][r], columns["atom_offset"][r + 1]
        atoms = list(zip(columns["atom_id"][a:b].tolist(), columns["atom_tokens"][a:b].tolist(), strict=True))
        assert atoms == twin[r][0] + twin[r][1]
        assert columns["prompt_atoms"][r] == len(twin[r][0])
        assert columns["prompt_tokens"][r] == sum(t for _, t in twin[r][0])


DISTRIBUTIONS = [
    ({"uniform": {"low": 10, "high": 20}}, 15, 10), ({"normal": {"mean": 100, "std": 5}}, 100, None), ({"exponential": {"mean": 50}}, 50, 0),
    ({"lognormal": {"median": 80, "p95": 400}}, 80 * np.exp(np.log(5) ** 2 / 1.6448536**2 / 2), None), ({"geometric": {"mean": 4}}, 4, 1),
    ({"poisson": {"mean": 7}}, 7, 0), ({"choice": {"values": [1, 3], "weights": [3, 1]}}, 1.5, 1), ({"quantiles": {"values": [0, 10, 30]}}, 12.5, 0),
    ({"lognormal": {"mean": 50, "sigma": 0.5}}, 50, None), (12, 12, 12), ({"exponential": {"mean": 50}, "min": 40, "max": 60}, None, 40),
]  # fmt: skip


@pytest.mark.parametrize(("section", "mean", "least"), DISTRIBUTIONS)
def test_distributions_have_their_mean(section, mean, least):
    from prefixsim.scenario.distribution import Distribution

    d = Distribution.model_validate(section)
    drawn = sample(d, 40_000, stream(3, "x"))
    if mean is not None:
        assert abs(drawn.mean() - mean) < 0.03 * mean
    if least is not None:
        assert drawn.min() >= least
    tokens = sample_tokens(d, 1000, stream(3, "x"))
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    assert sample(d, 100, stream(3, "x")).tolist() == sample(d, 100, stream(3, "x")).tolist()


def test_zipf_weights():
    drawn = np.bincount(zipf_choice(4, 1.0, 50_000, stream(1, "z")), minlength=4) / 50_000
    assert np.abs(drawn - np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)).max() < 0.01


@pytest.mark.parametrize("process", [
    {"process": "poisson"}, {"process": "constant"}, {"process": "gamma", "shape": 0.25}, {"process": "weibull", "shape": 0.6},
    {"process": "day_curve", "curve": [1, 0, 5, 2], "period_s": 20},
])  # fmt: skip
def test_arrival_processes_have_their_rate_and_burstiness(process):
    w = make({"generator": "scan", "requests": 20_000, "arrivals": {**process, "rate_per_s": 50.0}})
    gaps = np.diff(w.arrival_ns) / 1e9
    assert abs(gaps.mean() - 0.02) < 0.0008
    cv = gaps.std() / gaps.mean()
    wanted = {"poisson": 1.0, "constant": 0.0, "gamma": 2.0}.get(process["process"])
    if wanted is not None:
        assert abs(cv - wanted) < 0.08
    if process["process"] == "day_curve":
        slot = (w.arrival_ns / 1e9 % 20 / 5).astype(int)
        assert np.abs(np.bincount(slot, minlength=4) / w.n - np.array([1, 0, 5, 2]) / 8).max() < 0.02


@pytest.mark.parametrize("section", [
    {}, {"generator": "nope"}, {"trace": {}}, {**SESSIONS, "requests": 0}, {**SESSIONS, "arrivals": {"process": "poisson"}},
    {**SESSIONS, "arrivals": {**POISSON, "users": 3}}, {**SESSIONS, "templates": []}, {**SESSIONS, "templates": [SUPPORT, SUPPORT]},
    {**SESSIONS, "turns": {"geometric": {"mean": 0.5}}}, {**SESSIONS, "output_tokens": {"uniform": {"low": 5, "high": 1}}},
    {**SESSIONS, "output_tokens": {"constant": 1, "poisson": {"mean": 3}}}, {**SESSIONS, "output_tokens": -1},
    {"generator": "reuse", "arrivals": POISSON, "requests": 5, "rows": [[1, 1, 2, 0]]}, {"mix": []},
    {**SESSIONS, "requests": 10**12},
])  # fmt: skip
def test_impossible_sections_are_refused(section):
    with pytest.raises(ValueError, match=r".+"):
        WORKLOAD.validate_python(section)


@pytest.mark.parametrize("section", [
    {"generator": "prefix_repetition", "num_prompts": 5}, {**SESSIONS, "templates": [{"name": "t", "segments": [{"shared": "s", "tokens": 5}]}]},
    {"generator": "scan", "arrivals": {"process": "poisson", "rate_per_s": 1e-9}, "requests": 100},
    {**SESSIONS, "turns": 60, "turn_tokens": 100_000_000, "requests": 60},
])  # fmt: skip
def test_impossible_workloads_are_refused_in_words(section):
    with pytest.raises(PrefixsimError) as caught:
        make(section)
    assert len(str(caught.value)) > 20


requests = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=25)


@given(requests)
def test_requests_that_ask_for_too_much_come_later(rows):
    from prefixsim.workload.generators.reuse_kernels import put_feasible_first

    prompts, outputs, shared = (np.array(c, dtype=np.int64) for c in zip(*rows, strict=True))
    order = np.arange(len(rows), dtype=np.int64)
    put_feasible_first(order, prompts + outputs, prompts, shared)
    assert sorted(order.tolist()) == list(range(len(rows)))
    longest, stuck = 0, False
    for k, r in enumerate(order.tolist()):
        want = min(shared[r], prompts[r])
        waiting = [q for q in order[k:].tolist() if min(shared[q], prompts[q]) <= longest]
        stuck = stuck or not waiting
        assert want <= longest or not waiting
        longest = max(longest, prompts[r] + outputs[r] - 1)


def test_more_than_memory_holds_is_refused_at_once(monkeypatch):
    monkeypatch.setattr("prefixsim.machine.free_bytes", lambda: 8 << 30)
    with pytest.raises(DoesNotFitError, match=r"200,000,000 requests need at least 112 GiB .* 8\.0 GiB are free"):
        make({**SESSIONS, "requests": 200_000_000})
    with pytest.raises(ScenarioError, match=r"prompts would have .* parts"):
        make({**SMALL["few_shot"], "requests": 5_000_000, "sets": None, "shots": 900})


def test_fewer_requests_than_asked_for_are_said():
    asked = SMALL["agents"]["requests"]
    cut = make({**SMALL["agents"], "max_prompt_tokens": int(np.median(make(SMALL["agents"]).prompt_tokens))})
    assert cut.n < asked
    said = f"{asked:,} requests were asked for, the generator agents made {cut.n:,}: sessions end where max_prompt_tokens is reached"
    assert said in cut.source.notes
    assert not any("were asked for" in note for note in make(SMALL["agents"]).source.notes)
