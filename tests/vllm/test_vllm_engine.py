"""The engine by its contract and options: refusals, versions, defaults, statistics, routers' view, thinning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_cases import small_case
from test_vllm_twin import coefficients, timed_case, timed_engine
from typer.testing import CliRunner

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm import engine as engine_module
from prefixsim.engines.vllm import state as cols
from prefixsim.engines.vllm.engine import VllmEngine, build
from prefixsim.engines.vllm.facts import Settings, resolve
from prefixsim.engines.vllm.replay import make_engine, replay, replay_settings
from prefixsim.errors import DoesNotFitError, InputError, NotModelledError, ScenarioError
from prefixsim.hardware.steptime import HostCosts, StepCosts
from prefixsim.records import (
    NEVER,
    REQ_CACHED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_READY_NS,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    TL_END_NS,
    TL_SCHEDULED_TOKENS,
    TL_START_NS,
    new_request_rows,
)
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.table import Source, Workload


def work(rows: list[dict[str, Any]]) -> Workload:
    return workload_from_rows([{"id": str(i), **row} for i, row in enumerate(rows)], Source(kind="test"))


def started(w: Workload, options: VllmOptions, capacity: int, **more: Any) -> VllmEngine:
    chains = build_chains(build_trie(w, "vllm"), options.block_size)
    costs = more.pop("costs", StepCosts.steps())
    awaited = more.pop("awaited", np.zeros(w.n, dtype=np.bool_))
    inputs = EngineInputs(w, chains, costs, capacity, new_request_rows(w.n), awaited, **more)
    engine = build(options, inputs)
    engine.submit(np.arange(w.n), w.arrival_ns)
    return engine


def numbered(n: int, base: int = 0) -> list[int]:
    return list(range(base, base + n))


def test_prompts_that_never_fit_are_rejected_and_block_nobody() -> None:
    w = work([{"tokens": numbered(200)}, {"tokens": numbered(20, 500), "output_tokens": [1, 2]}])
    awaited = np.array([True, False])
    engine = started(w, VllmOptions(name="v", block_size=4), 11, awaited=awaited)
    progress = engine.advance(NEVER)
    assert progress.completed.tolist() == [[0, 0]]  # whoever waits for it is told at once
    assert engine.advance(NEVER).next_ns == NEVER
    rows = engine.inputs.rows
    assert rows[:, REQ_STATUS].tolist() == [STATUS_REJECTED, STATUS_FINISHED]
    record = engine.record()
    assert record.totals["rejected"] == 1
    assert "max_model_len = 40" in record.notes[0]


def test_outputs_end_at_max_model_len() -> None:
    w = work([{"tokens": numbered(10), "output_tokens": numbered(20, 50)}])
    engine = started(w, VllmOptions(name="v", block_size=4, max_model_len=16), 50)
    engine.advance(NEVER)
    assert engine.record().totals["output_tokens"] == 6
    assert engine.record().totals["cut_at_max_model_len"] == 1


@pytest.mark.parametrize(("reason", "scheduled"), [("length", 4 + 3), ("stop", 4 + 4)])
def test_a_stop_costs_one_more_decode_slot(reason: str, scheduled: int) -> None:
    """Two steps in flight: vLLM can't see an EOS coming, while it does see max_tokens."""
    w = work([{"tokens": numbered(4), "output_tokens": [1, 2, 3, 4], "finish_reason": reason}])
    engine = started(w, VllmOptions(name="v", block_size=4), 50)
    engine.advance(NEVER)
    assert engine.record().timeline[:, TL_SCHEDULED_TOKENS].sum() == scheduled
    assert engine.record().totals["output_tokens"] == 4
    assert engine.state[cols.I_FREE] == engine.blocks.shape[0] - 1


def test_caching_off_hits_nothing() -> None:
    w = work([{"tokens": numbered(40), "output_tokens": [1]}] * 3)
    engine = started(w, VllmOptions(name="v", block_size=4, enable_prefix_caching=False), 100)
    engine.advance(NEVER)
    assert not engine.inputs.rows[:, REQ_CACHED_TOKENS].any()
    assert engine.record().counters["vllm:prefix_cache_queries"] == 0
    assert engine.match_tokens(0) == 0


def test_skipping_the_lookup_still_says_what_was_there() -> None:
    rows = [{"tokens": numbered(40), "output_tokens": [1]}] * 2
    w = work([rows[0], {**rows[1], "arrival": 1e-6, "skip_reading_prefix_cache": True}])
    engine = started(w, VllmOptions(name="v", block_size=4), 100)
    engine.advance(NEVER)
    assert engine.inputs.rows[1, [REQ_CACHED_TOKENS, REQ_DEVICE_TOKENS]].tolist() == [0, 36]
    assert engine.record().counters["vllm:prefix_cache_queries"] == 40  # not in the statistics


def test_layouts_and_pools_that_are_not_modelled_are_refused() -> None:
    w = work([{"tokens": [1, 2]}])
    with pytest.raises(NotModelledError, match="swa"):
        started(w, VllmOptions(name="v", layout="swa", sliding_window=8, enable_prefix_caching=False), 10)
    with pytest.raises(ScenarioError, match="sliding_window is missing"):
        started(w, VllmOptions(name="v", layout="swa"), 10)
    with pytest.raises(DoesNotFitError, match="null block"):
        started(w, VllmOptions(name="v"), 1)


@pytest.mark.parametrize(
    ("gib", "architecture", "limits"),
    [
        (180, "blackwell", (16384, 1024)),
        (80, "hopper", (8192, 1024)),
        (80, "ampere", (2048, 256)),
        (0, "", (2048, 256)),
    ],
)
def test_defaults_are_vllms_own(gib: float, architecture: str, limits: tuple[int, int]) -> None:
    s = resolve(VllmOptions(name="v"), 10_000, gib, architecture, 0)
    assert (s.max_num_batched_tokens, s.max_num_seqs) == limits


def test_defaults_fit_each_other() -> None:
    """As `vllm serve` does: default max_num_seqs is cut to the tokens; without chunks a whole prompt must fit a step."""

    def limits(**options: Any) -> tuple[int, int, int]:
        s = resolve(VllmOptions(name="v", **options), 1001, 80, "hopper", 0)
        return s.max_num_batched_tokens, s.max_num_seqs, s.max_model_len

    assert limits(max_num_batched_tokens=512) == (512, 512, 16_000)
    assert limits(enable_chunked_prefill=False) == (16_000, 1024, 16_000)
    assert limits(enable_chunked_prefill=False, max_num_batched_tokens=4096) == (4096, 1024, 4096)
    assert limits(max_num_seqs=2, max_model_len=100) == (200, 2, 100)
    with pytest.raises(ScenarioError, match="does not start"):
        limits(max_num_seqs=10_000)


def test_versions_differ_only_in_named_switches() -> None:
    new = resolve(VllmOptions(name="v", kind="vllm"), 100, 0, "", 0)
    old = resolve(VllmOptions(name="v", kind="vllm@0.11"), 100, 0, "", 0)
    differing = {f for f in Settings.__slots__ if getattr(new, f) != getattr(old, f)}
    assert differing == {"async_scheduling", "scheduler_reserve_full_isl", "split_free_queue", "stats_count_retries"}
    mixed = resolve(
        VllmOptions.model_validate({"name": "v", "kind": "vllm@0.11", "facts": {"split_free_queue": True}}),
        100,
        0,
        "",
        0,
    )
    assert mixed.split_free_queue
    assert not mixed.async_scheduling


def test_old_statistics_count_every_retry() -> None:
    """A request that heads the queue for several steps is looked up in each; 0.11 counts all, 0.33 the admission."""
    rows = [
        {"tokens": numbered(30), "output_tokens": numbered(8, 900)},
        {"tokens": numbered(30, 100), "output_tokens": [1]},
    ]
    queries = {}
    for retries in (False, True):
        facts = {"stats_count_retries": retries}
        options = VllmOptions.model_validate(
            {"name": "v", "block_size": 4, "async_scheduling": False, "max_num_batched_tokens": 64, "facts": facts}
        )
        engine = started(work(rows), options, 12)
        engine.advance(NEVER)
        queries[retries] = engine.record().counters["vllm:prefix_cache_queries"]
    assert queries[False] == 60
    assert queries[True] > 60


def test_log_line_window_keeps_the_newest_thousand_requests() -> None:
    """2,500 requests one after another, one update each: cold prompts first, then repeats of one prompt."""
    rows: list[dict[str, Any]] = [{"tokens": numbered(8, 100 * i)} for i in range(1600)]
    rows += [{"tokens": numbered(8, 7)} for _ in range(900)]
    w = work([{**row, "arrival": i * 1e-6, "output_tokens": [1]} for i, row in enumerate(rows)])
    engine = started(w, VllmOptions(name="v", block_size=4), 1 << 14)
    engine.advance(NEVER)
    counters = engine.record().counters
    # The newest 1,000: 100 cold ones and 900 repeats, the first of which is cold too; the others hit 4 of 8 tokens.
    assert counters["Prefix cache hit rate (log line)"] == pytest.approx(899 * 4 / 8000)
    assert counters["vllm:prefix_cache_hits"] == 899 * 4


def test_statistics_are_those_of_admissions() -> None:
    for seed in (3, 7, 10):
        rows, config = small_case(seed)
        engine = make_engine(work([{k: v for k, v in r.items() if k != "id"} for r in rows]), replay_settings(config))
        w = engine.inputs.workload
        order = np.argsort(w.step, kind="stable")
        engine.submit(order, w.step[order])
        engine.advance(400)
        seen: set[int] = set()
        want = [0, 0, 0, 0]
        for request, _, cached, looked_up in engine.admissions[: engine.state[cols.I_ADMISSIONS]].tolist():
            again = 2 if request in seen else 0
            seen.add(request)
            if not w.skip_reading_prefix_cache[request]:
                want[again] += looked_up
                want[again + 1] += cached
        s = engine.state
        assert [s[c] for c in (cols.I_QUERIES, cols.I_HITS, cols.I_AGAIN_QUERIES, cols.I_AGAIN_HITS)] == want


def test_hashing_delays_readiness_in_order_of_arrival() -> None:
    w = work([{"tokens": numbered(100), "output_tokens": [1]}, {"tokens": numbered(10, 900), "output_tokens": [1]}])
    costs = StepCosts(StepCosts.steps().coef, np.zeros(2), np.zeros(2), HostCosts(hash_ns_per_token=10.0))
    engine = started(w, VllmOptions(name="v", block_size=4), 100, costs=costs)
    engine.advance(NEVER)
    assert engine.inputs.rows[:, REQ_READY_NS].tolist() == [1000, 1100]  # one thread hashes


def test_routers_see_the_load_of_steps_finished_by_then() -> None:
    w = work([{"tokens": numbered(16), "output_tokens": [1, 2, 3]}])
    engine = started(w, VllmOptions(name="v", block_size=4, async_scheduling=False), 100, costs=StepCosts.steps(1000))
    engine.advance(2500)  # the third step, with the last token, ends at 3000
    assert engine.load() == (1, 0, 20)
    assert engine.advance(3001).next_ns == NEVER
    assert engine.load() == (0, 0, 0)
    assert engine.match_tokens(0) == 12


def test_a_long_timeline_is_thinned_without_losing_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_TIMELINE_ROWS", 4096)
    w = work([{"tokens": [1, 2, 3], "output_tokens": [5] * 10_000}])
    engine = started(w, VllmOptions(name="v", block_size=16), 1000)
    engine.advance(NEVER)
    record = engine.record()
    assert record.timeline_stride == 4
    assert record.timeline.shape[0] == -(-10_000 // 4)
    assert record.timeline[:, TL_SCHEDULED_TOKENS].sum() == 3 + 9_999
    assert (record.timeline[1:, TL_START_NS] >= record.timeline[:-1, TL_END_NS]).all()
    assert record.gaps.tolist() == [[1, 9_999]]


def test_a_pool_larger_than_the_workload_changes_nothing() -> None:
    """The block table is as long as the workload can use; an enormous pool costs no memory."""
    _, w, s = timed_case(5)
    results = []
    for blocks in (4000, 1 << 30):
        big = Settings(**{f: getattr(s, f) for f in Settings.__slots__} | {"num_gpu_blocks": blocks, "watermark": 0.0})
        engine = timed_engine(w, big, coefficients())
        engine.submit(np.arange(w.n), w.arrival_ns)
        engine.advance(NEVER)
        assert engine.blocks.shape[0] < 4000
        results.append(engine.inputs.rows[:, [REQ_CACHED_TOKENS, REQ_FIRST_TOKEN_NS, REQ_FINISH_NS]].tolist())
    assert results[0] == results[1]


def test_zero_hits_are_said_in_words() -> None:
    w = work([{"tokens": numbered(240), "output_tokens": [1]}] * 2)
    engine = started(w, VllmOptions(name="v", block_size=784), 10)
    engine.advance(NEVER)
    assert "0 hits are certain: the longest prompt has 240" in engine.record().notes[-1]
    w = work([{"tokens": numbered(900, 1000 * i)[:240] + numbered(900, 5000 * (i + 9))} for i in range(2)])
    engine = started(w, VllmOptions(name="v", block_size=784), 10)
    engine.advance(NEVER)
    assert "no two requests share a whole block of 784" in engine.record().notes[-1]
    w = work([{"tokens": numbered(900)}] * 2)
    engine = started(w, VllmOptions(name="v", block_size=784), 10)
    engine.advance(NEVER)
    assert not engine.record().notes
    assert engine.inputs.rows[1, REQ_CACHED_TOKENS] == 784


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_gpu_blocks": 1}, "from 2 to"),
        ({"block_size": "16"}, "whole number"),
        ({"policy": "fcfs2"}, "did you mean 'fcfs'"),
        ({"blok_size": 4}, "did you mean 'block_size'"),
        ({"watermark": 1.5}, "watermark"),
        ({"mode": "scheduler", "max_num_seqs": 9, "max_num_batched_tokens": 8}, "less than max_num_seqs"),
    ],
)
def test_wrong_replay_options_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replay([{"id": "0", "tokens": [1]}], {"mode": "sequential", "block_size": 4, "num_gpu_blocks": 9} | change)


@pytest.fixture
def app() -> Any:
    import typer

    from prefixsim.cli import cmd_replay

    app = typer.Typer()
    cmd_replay.register(app)
    return app


def test_replay_command_and_cases_agree(app: Any, tmp_path: Path) -> None:
    rows, config = small_case(3)
    trace, cases = tmp_path / "t.jsonl", tmp_path / "c.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cases.write_text(json.dumps({"engine": "vllm", "config": config, "requests": rows}) + "\n")
    flags = ["--engine", "vllm", "--mode", config["mode"], "--scheduling-policy", config["policy"], "--json"]
    flags += ["--async-scheduling" if config["async_scheduling"] else "--no-async-scheduling"]
    flags += ["--reserve-full-isl" if config["scheduler_reserve_full_isl"] else "--no-reserve-full-isl"]
    for key in (
        "block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "watermark", "long_prefill_token_threshold",
    ):  # fmt: skip
        flags += [f"--{key.replace('_', '-')}", str(config[key])]
    one = CliRunner().invoke(app, [str(trace), *flags], catch_exceptions=False)
    many = CliRunner().invoke(app, ["--cases", str(cases), "--json"], catch_exceptions=False)
    assert json.loads(one.stdout) == json.loads(many.stdout) == replay(rows, config)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"engine": "vlm"}', "did you mean 'vllm'"),
        ('{"engine": "vllm", "config": 3}', "config"),
        ('{"engine": "vllm", "config": {"block_size": 0, "num_gpu_blocks": 5}, "requests": []}', "block_size"),
    ],
)
def test_wrong_cases_are_errors_with_their_line(app: Any, tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(InputError, match=words) as caught:
        CliRunner().invoke(app, ["--cases", str(path)], catch_exceptions=False)
    assert caught.value.problems[0].line == 2


def test_options_of_the_other_engine_are_refused(app: Any) -> None:
    with pytest.raises(InputError, match="--page-size"):
        CliRunner().invoke(app, ["t.jsonl", "--engine", "vllm", "--page-size", "4"], catch_exceptions=False)
