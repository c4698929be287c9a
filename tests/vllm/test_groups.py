"""Sliding-window and hybrid groups: equal to the real engine, twin equal to kernels, and invariants at every change."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from groups_traces import branch_rows, case, rows_of

from prefixsim.engines.vllm import groups, groups_scheduler, groups_sequential
from prefixsim.engines.vllm import groups_kernels as kernels
from prefixsim.engines.vllm.groups import new_state, replay_groups, table_of
from prefixsim.engines.vllm.groups_sequential import replay_sequential
from prefixsim.engines.vllm.groups_twin import FULL, NULL, WINDOW, GroupCache, GroupRequest, GroupRules, Hit
from prefixsim.errors import InputError, NotModelledError, TraceError

GOLDEN = json.loads((Path(__file__).parent / "groups_golden.json").read_text())["cases"]


# ---- equal to the real engine


@pytest.mark.shared
@pytest.mark.parametrize("twin", [False, True])
def test_all_golden_cases(shared: Path, twin: bool) -> None:
    path = shared / "conformance" / "vllm" / "groups.jsonl"
    cases = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(cases) == 80
    wrong = [c["seed"] for c in cases if replay_groups(c["requests"], c["config"], twin=twin) != c["expected"]]
    assert wrong == []


@pytest.mark.parametrize("stored", GOLDEN, ids=lambda c: f"{c['mode']}-{c['seed']}")
def test_stored_answers(stored: dict[str, Any]) -> None:
    rows, config = case(stored["seed"], stored["mode"])
    expected = stored["expected"]
    got = replay_groups(rows, config)
    assert got["evicted_blocks"] == expected["evicted_blocks"]
    assert got["final_free_queue_cached"] == expected["queue"]
    assert [r["cached_tokens"] for r in got["requests"]] == expected["cached"]
    if stored["mode"] == "sequential":
        assert [int(r["rejected"]) for r in got["requests"]] == expected["rejected"]
        assert replay_groups(rows, config, twin=True) == got
    else:
        for key in ("preemptions", "admissions", "first_token_step", "finish_step"):
            assert [r[key] for r in got["requests"]] == expected[key], key
        assert [s for s in got["steps"] if s[1]] == expected["steps"]


@pytest.mark.parametrize("stored", GOLDEN, ids=lambda c: f"{c['mode']}-{c['seed']}")
def test_block_ids_are_the_engines(stored: dict[str, Any], checked_cache: list[CheckedCache]) -> None:
    rows, config = case(stored["seed"], stored["mode"])
    replay_groups(rows, config, twin=True)
    assert checked_cache[-1].pool.free_queue() == stored["expected"]["free_queue"]


def test_stored_answers_are_worth_something() -> None:
    layouts = Counter(case(c["seed"], c["mode"])[1]["layout"] for c in GOLDEN)
    assert min(layouts.values()) >= 10
    assert all(sum(h or 0 for h in c["expected"]["cached"]) and c["expected"]["evicted_blocks"] for c in GOLDEN)
    assert sum(sum(c["expected"].get("preemptions", ())) for c in GOLDEN) > 20


# What vLLM 0.33.0 gave for these rows (block size 16, window 64): a branch inside an earlier prompt.
MEASURED = {
    ("swa", 0): [0, 0, 0, 304],
    ("swa", -1): [0, 160, 160, 304],
    ("swa", 64): [0, 160, 160, 304],
    ("hybrid", 0): [0, 0, 160, 304],
    ("hybrid", -1): [0, 160, 160, 304],
    ("hybrid", 64): [0, 160, 160, 304],
}


@pytest.mark.parametrize(("layout", "retention"), MEASURED)
def test_branch_inside_an_earlier_prompt(layout: str, retention: int) -> None:
    config = {
        "mode": "sequential",
        "block_size": 16,
        "num_gpu_blocks": 200,
        "layout": layout,
        "sliding_window": 64,
        "prefix_cache_retention_interval": retention,
    }
    got = replay_groups(branch_rows(), config)
    assert [r["cached_tokens"] for r in got["requests"]] == MEASURED[layout, retention]


# ---- invariants of the cache, at every change of random runs


class CheckedCache(GroupCache):
    """A cache that knows the tokens each block holds and checks itself after everything that is done to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.content: dict[int, tuple[Any, ...]] = {}
        self.evicted_before = 0
        checked.append(self)

    __slots__ = ("content", "evicted_before")

    def prefix(self, request: GroupRequest, block: int) -> tuple[Any, ...]:
        return ROWS_BY_CHAIN[id(request.chain)][block]

    def lookup(self, request: GroupRequest) -> Hit:
        before = self.snapshot()
        hit = super().lookup(request)
        assert self.snapshot() == before, "a lookup changes nothing"
        size = self.rules.block_size
        assert hit.tokens % size == 0
        assert 0 <= hit.tokens < request.tokens
        for kind, blocks in zip(self.rules.groups, hit.blocks, strict=True):
            assert len(blocks) * size == hit.tokens
            for k, block in enumerate(blocks):
                if block == NULL:
                    assert kind == WINDOW
                    assert (k + 1) * size <= hit.tokens - self.rules.sliding_window + 1 + size - 1
                else:
                    assert self.content[block] == self.prefix(request, k), "a hit is a true token prefix"
            reach = -(-(self.rules.sliding_window - 1) // size)
            if kind == WINDOW and hit.tokens:
                assert NULL not in blocks[max(0, len(blocks) - reach) :], "all the window needs is there"
        assert hit.junction == 0 or hit.junction > hit.tokens
        return hit

    def allocate(self, request: GroupRequest, new_tokens: int, hit: Hit | None = None, **options: bool) -> bool:
        in_use = {b for b in range(1, self.pool.n) if self.pool.refs[b]}
        held = {b for table in self.tables for b in table.get(request.number, ())}
        keys = dict(self.pool.key)
        done = super().allocate(request, new_tokens, hit, **options)
        for b in in_use - held:
            assert self.pool.key.get(b) == keys.get(b), "a block in use by others is not evicted"
            assert self.pool.refs[b] > 0
        for table in self.tables:
            if done:
                slots = min(request.computed + (hit.tokens if hit else 0) + new_tokens, self.rules.max_model_len)
                assert len(table[request.number]) * self.rules.block_size >= slots
        if not done and hit is not None:
            assert keys == self.pool.key, "a refused admission changes nothing"
        self.check()
        return done

    def commit(self, request: GroupRequest, tokens: int) -> None:
        keys = dict(self.pool.key)
        super().commit(request, tokens)
        for table in self.tables:
            for k, block in enumerate(table.get(request.number, ())):
                if self.pool.key.get(block) != keys.get(block):
                    assert block not in keys, "a block gets its key once"
                    assert (k + 1) * self.rules.block_size <= tokens, "only computed tokens are committed"
                    self.content[block] = self.prefix(request, k)

    def free(self, request: GroupRequest) -> None:
        super().free(request)
        assert all(request.number not in table for table in self.tables)
        self.check()

    def snapshot(self) -> tuple[Any, ...]:
        pool = self.pool
        refs = {b: r for b, r in pool.refs.items() if r}
        return pool.free_queue(), refs, dict(pool.key), {k: list(v) for k, v in pool.holders.items()}

    def check(self) -> None:
        pool = self.pool
        refs = Counter(b for table in self.tables for blocks in table.values() for b in blocks if b != NULL)
        assert all(pool.refs[b] == refs[b] for b in range(1, pool.n)), "references are what tables say"
        queue = pool.free_queue()
        assert sorted(queue) == [b for b in range(1, pool.n) if not refs[b]], "allocated + free = total"
        assert pool.free == len(queue)
        assert pool.cached_flags() == "".join("1" if b in pool.key else "0" for b in queue)
        assert NULL not in pool.key
        findable = {b: key for key, blocks in pool.holders.items() for b in blocks}
        assert findable == pool.key
        assert pool.evicted >= self.evicted_before
        self.evicted_before = pool.evicted
        for group, kind in enumerate(self.rules.groups):
            for number, blocks in self.tables[group].items():
                real = [k for k, b in enumerate(blocks) if b != NULL]
                assert kind == WINDOW or len(real) == len(blocks)
                assert real == list(range(len(blocks) - len(real), len(blocks))), "NULLs come first, without holes"
                assert self.committed[group].get(number, 0) <= len(blocks)


checked: list[CheckedCache] = []
ROWS_BY_CHAIN: dict[int, list[tuple[Any, ...]]] = {}


@pytest.fixture
def checked_cache(monkeypatch: pytest.MonkeyPatch) -> list[CheckedCache]:
    """Replays run on `CheckedCache`; yields the caches made."""
    alive: list[list[int]] = []

    class Names(groups_sequential.ChainNames):
        def row(self, row: Any) -> list[int]:
            chain = super().row(row)
            tokens = [*row["tokens"], *(row.get("output_tokens") or [0])]
            salt = row.get("cache_salt") or ""
            ROWS_BY_CHAIN[id(chain)] = [(salt, *tokens[: (k + 1) * self.block_size]) for k in range(len(chain))]
            alive.append(chain)
            return chain

    for module in (groups_sequential, groups_scheduler):
        monkeypatch.setattr(module, "GroupCache", CheckedCache)
        monkeypatch.setattr(module, "ChainNames", Names)
    checked.clear()
    ROWS_BY_CHAIN.clear()
    return checked


@pytest.mark.parametrize("mode", ["sequential", "sync", "async"])
def test_invariants_at_every_change(mode: str, checked_cache: list[CheckedCache]) -> None:
    hits = evicted = preempted = 0
    for seed in range(1000, 1030):
        rows, config = case(seed, mode)
        config["max_num_batched_tokens"] = max(config.get("max_num_batched_tokens", 0), 8)
        got = replay_groups(rows, config, twin=True)
        hits += got["cached_tokens"]
        evicted += got["evicted_blocks"]
        preempted += got.get("preemptions", 0)
        cache = checked_cache[-1]
        if mode == "sequential" or not got["unfinished"]:
            assert cache.pool.free == config["num_gpu_blocks"] - 1, "everything came back"
            assert all(not table for table in cache.tables)
    assert len(checked_cache) == 30
    assert hits
    assert evicted
    assert preempted or mode == "sequential"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_scheduler_invariants(mode: str) -> None:
    for seed in range(2000, 2025):
        rows, config = case(seed, mode)
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], 8)
        got = replay_groups(rows, config)
        steps = got["steps"]
        assert all(a[0] < b[0] for a, b in pairwise(steps)), "the clock never goes back"
        assert all(s[1] <= config["max_num_batched_tokens"] and s[3] <= config["max_num_seqs"] for s in steps)
        assert got["preemptions"] == sum(s[2] for s in steps)
        assert [r["id"] for r in got["requests"]] == [row["id"] for row in rows], "no request is lost"
        for row, r in zip(rows, got["requests"], strict=True):
            if r["finish_step"] is not None:
                assert r["cached_tokens"] == r["admissions"][0][1]
                assert row["step"] <= r["admissions"][0][0] <= r["first_token_step"] <= r["finish_step"]
                first_row = next(s for s in steps if s[0] == r["admissions"][0][0])
                assert first_row[1] > 0


# ---- kernels: equal to the twin, and sound between requests


@st.composite
def replays(draw: st.DrawFn) -> tuple[list[dict[str, Any]], GroupRules]:
    block = draw(st.sampled_from((1, 2, 3, 4)))
    count = draw(st.integers(1, 10))
    rows: list[dict[str, Any]] = []
    grown: list[list[int]] = [[]]
    for number in range(count):
        stem = grown[draw(st.integers(0, len(grown) - 1))]
        stem = stem[: draw(st.integers(0, len(stem)))]
        tokens = stem + draw(st.lists(st.integers(0, 1), min_size=1, max_size=4 * block))
        outputs = draw(st.lists(st.integers(0, 1), max_size=3 * block))
        row = {"id": number, "tokens": tokens, "output_tokens": outputs, "cache_salt": draw(st.sampled_from(("", "a")))}
        row["skip_reading_prefix_cache"] = draw(st.integers(0, 9)) == 0
        rows.append(row)
        grown.append(tokens + outputs)
    rules = GroupRules(
        layout=draw(st.sampled_from(("swa", "hybrid"))),
        block_size=block,
        num_gpu_blocks=draw(st.integers(2, 40)),
        sliding_window=draw(st.integers(1, 6 * block)),
        retention=draw(st.sampled_from((0, None, block, 2 * block, 3 * block, 7 * block))),
    )
    return rows, rules


def config_of(rules: GroupRules) -> dict[str, Any]:
    return {
        "mode": "sequential",
        "block_size": rules.block_size,
        "num_gpu_blocks": rules.num_gpu_blocks,
        "layout": rules.layout,
        "sliding_window": rules.sliding_window,
        "prefix_cache_retention_interval": -1 if rules.retention is None else rules.retention,
    }


@given(replays())
def test_kernel_equals_twin(drawn: tuple[list[dict[str, Any]], GroupRules]) -> None:
    rows, rules = drawn
    assert replay_groups(rows, config_of(rules)) == replay_sequential(rows, rules)


@given(replays())
def test_kernel_takes_the_same_blocks_as_the_twin(drawn: tuple[list[dict[str, Any]], GroupRules]) -> None:
    rows, rules = drawn
    made: list[GroupCache] = []

    class Kept(GroupCache):
        def __post_init__(self) -> None:
            super().__post_init__()
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_sequential, "GroupCache", Kept)
        replay_sequential(rows, rules)
    state = new_state(table_of(rows), rules)
    state.run(0, len(rows))
    assert state.free_queue().tolist() == made[0].pool.free_queue()


@given(replays())
def test_kernel_state_is_sound_between_requests(drawn: tuple[list[dict[str, Any]], GroupRules]) -> None:
    rows, rules = drawn
    state = new_state(table_of(rows), rules)
    key, refs = state.block[kernels.BLOCK_CHAIN], state.block[kernels.BLOCK_REFS]
    for r in range(len(rows)):
        state.run(r, r + 1)
        queue = state.free_queue().tolist()
        assert sorted(queue) == list(range(1, rules.num_gpu_blocks)), "everything is free between requests"
        assert state.count[kernels.COUNT_FREE] == len(queue)
        ahead, behind = state.block[kernels.BLOCK_PREV], state.block[kernels.BLOCK_NEXT]
        assert all(ahead[behind[b]] == b and behind[ahead[b]] == b for b in [NULL, *queue]), "links are consistent"
        assert not refs[1:].any()
        findable = {}
        for group in range(len(rules.groups)):
            for chain in range(state.chains.n_chains):
                older, b = NULL, int(state.holder[2 * group, chain])
                while b != NULL:
                    assert state.block[kernels.BLOCK_OLDER, b] == older
                    findable[b] = (group, chain)
                    older, b = b, int(state.block[kernels.BLOCK_NEWER, b])
                assert state.holder[2 * group + 1, chain] == older
        cached = {int(b) for b in np.flatnonzero(key != kernels.NIL)}
        assert set(findable) == cached
        assert all(findable[b] == (state.block[kernels.BLOCK_GROUP, b], key[b]) for b in cached)
        if rules.groups[0] == FULL:
            assert 0 <= state.out[r, kernels.OUT_CACHED] < len(rows[r]["tokens"])


def test_kernels_compile_once() -> None:
    replay_groups(branch_rows(), config_of(GroupRules("hybrid", 16, 99, 64)))
    signatures = getattr(kernels.replay_rows, "signatures", None)
    if signatures is None:
        pytest.skip("kernels are not compiled in this lane")
    assert len(signatures) == 1


# ---- laws


@pytest.mark.parametrize("seed", range(3000, 3010))
def test_a_window_over_everything_is_full_attention(seed: int) -> None:
    rows = rows_of(random.Random(seed), 4)
    hits = {}
    for layout in ("swa", "hybrid"):
        rules = GroupRules(layout, 4, 5000, 10_000, None)
        hits[layout] = [r["cached_tokens"] for r in replay_groups(rows, config_of(rules))["requests"]]
    seen: set[tuple[Any, ...]] = set()
    expected = []
    for row in rows:
        salt, tokens = row.get("cache_salt", ""), row["tokens"]
        hit = 0
        if not row.get("skip_reading_prefix_cache"):
            while hit + 4 < len(tokens) and (salt, *tokens[: hit + 4]) in seen:
                hit += 4
        expected.append(hit)
        whole = tokens + row["output_tokens"][:-1]
        seen |= {(salt, *whole[:end]) for end in range(4, len(whole) + 1, 4)}
    assert hits["hybrid"] == hits["swa"] == expected
    assert sum(expected)


@pytest.mark.parametrize("seed", range(3100, 3110))
def test_keeping_more_never_loses_hits_where_nothing_is_evicted(seed: int) -> None:
    rows = rows_of(random.Random(seed), 4)
    by_retention = {}
    for retention in (0, 8, None):
        got = replay_groups(rows, config_of(GroupRules("swa", 4, 5000, 9, retention)))
        assert got["evicted_blocks"] == 0
        by_retention[retention] = [r["cached_tokens"] for r in got["requests"]]
    for a, b in ((0, 8), (8, None)):
        assert all(x <= y for x, y in zip(by_retention[a], by_retention[b], strict=True))
    assert sum(by_retention[0]) < sum(by_retention[None])


def test_a_window_of_one_token_keeps_nothing() -> None:
    for retention in (0, None):
        got = replay_groups(branch_rows(), config_of(GroupRules("hybrid", 16, 500, 1, retention)))
        assert got["cached_tokens"] == 0


# ---- refusals


GOOD = config_of(GroupRules("hybrid", 16, 100, 64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefix_cache_retention_interval": 24}, "multiple of block_size 16"),
        ({"prefix_cache_retention_interval": -2}, "from -1 to"),
        ({"sliding_window": None}, "sliding_window: is missing"),
        ({"sliding_window": 0}, "sliding_window: found 0"),
        ({"block_size": "16"}, "block_size: found '16'"),
        ({"num_gpu_blocks": 1 << 60}, "num_gpu_blocks: found"),
        ({"mode": "scheduler", "async_scheduling": "yes"}, "async_scheduling: found 'yes'"),
        ({"sliding_windov": 3}, "did you mean 'sliding_window'"),
        ({"mode": "scheduler", "max_num_seqs": 8, "max_num_batched_tokens": 4}, "less than max_num_seqs"),
        ({"mode": "scheduler", "max_num_seqs": 1, "max_num_batched_tokens": 4, "policy": "fifo"}, "fcfs"),
        ({"mode": "scheduler", "max_num_seqs": 1, "max_num_batched_tokens": 4, "watermark": 2}, "watermark"),
    ],
)
def test_bad_options_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        replay_groups(branch_rows(), GOOD | change)
    assert words in str(caught.value)


def test_other_layouts_are_refused_by_name() -> None:
    with pytest.raises(NotModelledError, match="mamba"):
        replay_groups(branch_rows(), GOOD | {"layout": "mamba"})
    with pytest.raises(NotModelledError, match="overlap"):
        replay_groups(branch_rows(), GOOD | {"mode": "overlap"})


@pytest.mark.parametrize("key", ["enable_prefix_caching", "split_free_queue"])
def test_switches_that_groups_do_not_have_are_refused(key: str) -> None:
    with pytest.raises(NotModelledError, match=key):
        replay_groups(branch_rows(), GOOD | {key: False})
    assert replay_groups(branch_rows(), GOOD | {key: True}) == replay_groups(branch_rows(), GOOD)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": "x", "tokens": []}, "tokens: row 2 (id 'x'): is empty"),
        ({"id": "x"}, "tokens: row 2 (id 'x'): is missing"),
        ({"tokens": [1]}, "id: row 2: is missing"),
        ({"id": "x", "tokens": "abc"}, "found 'abc'; expected a list of token ids"),
        ({"id": "x", "tokens": [1, 2.5]}, "not a whole number"),
        ({"id": "x", "tokens": [1], "output_tokens": [True]}, "output_tokens: row 2"),
        ({"id": "x", "tokens": [1], "step": "0"}, "step: row 2"),
        ({"id": "x", "tokens": [1], "cache_salt": 3}, "cache_salt: row 2"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        replay_groups([{"id": "fine", "tokens": [1, 2]}, row], GOOD)
    assert words in str(caught.value)


def test_a_line_that_is_not_a_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "tokens": [1]}\n\nnope\n')
    with pytest.raises(TraceError, match=r"rows.jsonl:3: not JSON"):
        groups.read_rows(path)
    path.write_text("[1]\n")
    with pytest.raises(TraceError, match="JSON object"):
        groups.read_rows(path)
    path.write_text('{"id": "a", "tokens": [1]}\n')
    assert groups.read_rows(path) == [{"id": "a", "tokens": [1]}]


def test_token_ids_may_be_any_integers() -> None:
    rows = [{"id": i, "tokens": [-5, 1 << 60, 7, 3 + i], "output_tokens": None} for i in range(2)]
    config = config_of(GroupRules("hybrid", 1, 50, 3))
    assert replay_groups(rows, config) == replay_groups(rows, config, twin=True)
    assert replay_groups(rows, config)["requests"][1]["cached_tokens"] == 3


def test_no_rows() -> None:
    got = replay_groups([], GOOD)
    assert got["requests"] == []
    assert got["final_free_queue_cached"] == "0" * 99


def test_a_window_model_fits_where_full_attention_does_not() -> None:
    rows = [{"id": 0, "step": 0, "tokens": list(range(400)), "output_tokens": [1]}]
    chunked = {"mode": "scheduler", "max_num_seqs": 1, "max_num_batched_tokens": 32, "num_gpu_blocks": 14}
    window = replay_groups(rows, GOOD | chunked | {"layout": "swa"})
    assert window["unfinished"] == 0
    both = replay_groups(rows, GOOD | chunked)
    assert both["unfinished"] == 1
    assert groups.group_rules(GOOD | chunked).window_admission_blocks == -(-(63 + 64) // 16) + 1
