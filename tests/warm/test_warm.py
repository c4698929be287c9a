"""Runs that do not begin cold: priming, warm-up, saved caches. Against joined runs without any of it, and by what must hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.errors import PrefixsimError, ScenarioError, TraceError
from prefixsim.pipeline.run import run_scenario
from prefixsim.records import (
    REQ_ADMITTED_NS,
    REQ_CACHED_TOKENS,
    REQ_FINISH_NS,
    REQ_FIRST_TOKEN_NS,
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_FINISHED,
    TL_START_NS,
)
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import scenario_from
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.numbering import Numbering
from prefixsim.workload.saved import read_saved
from prefixsim.workload.table import Source

TIMES = (REQ_RELEASED_NS, REQ_ADMITTED_NS, REQ_FIRST_TOKEN_NS, REQ_FINISH_NS, REQ_READY_NS)
ENGINES = """\
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: hash, kind: vllm@0.33, block_size: 16, num_gpu_blocks_override: 120}
  - {name: tree, kind: sglang@0.5.23, page_size: 1, max_total_tokens: 2000}
seed: 3
"""
GENERATED = """\
name: generated
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 8}
  requests: 240
  turns: {geometric: {mean: 2}}
  turn_tokens: 20
  think_time_s: 0.5
  output_tokens: 12
  templates:
    - {name: a, segments: [{shared: system, tokens: 150}, {unique: user, tokens: {uniform: {low: 10, high: 60}}}]}
    - {name: b, segments: [{shared: other, tokens: 90}, {unique: user, tokens: 30}]}
"""


def scenario(text, base=Path(), **overrides):
    return scenario_from(strict_yaml.parse(text, "test.yaml"), base, overrides)


def rows(n, seed, *, after=True, big=1, families=5):
    """Native rows: prompts of shared and own tokens; every fourth awaits the one before. big: factor of token numbers."""
    rng = np.random.default_rng(seed)
    out, clock = [], 0.0
    for i in range(n):
        clock += float(rng.integers(1, 60)) / 1000
        family = int(rng.integers(0, families))
        shared = [big * (1000 + 100 * family + k) for k in range(60)]
        own = [big * int(t) for t in rng.integers(5000, 9000, int(rng.integers(5, 50)))]
        row = {
            "id": f"r{seed}-{i}",
            "tokens": shared + own,
            "output_tokens": [big * int(t) for t in rng.integers(0, 900, int(rng.integers(1, 12)))],
            "session": f"s{family}",
        }
        if after and i % 4 == 3:
            row |= {"after": f"r{seed}-{i - 1}", "delay": 0.011}
        else:
            row["arrival"] = round(clock, 3)
        if i % 7 == 5:
            row["cache_salt"] = "tenant"
        out.append(row)
    return out


def write(path, lines):
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    write(folder / "before.jsonl", rows(40, 1))
    write(folder / "main.jsonl", rows(150, 2))
    return folder


def trace_text(prime="", more=""):
    return f"name: traced\nworkload: {{trace: {{path: main.jsonl}}}}\n{prime}\n{more}\n{ENGINES}"


PRIME = "prime: {trace: {path: before.jsonl}}"


@pytest.fixture(scope="module")
def primed(traces):
    return {n: run_scenario(scenario(trace_text(PRIME, f"replicas: {n}"), traces)) for n in (1, 2)}


@pytest.fixture(scope="module")
def cold(traces):
    return run_scenario(scenario(trace_text(), traces))


def joined_file(folder, start_ns):
    """Priming and workload as one native trace, the workload `start_ns` later: written from the files, not by the product's join."""
    lines = [json.loads(text) for text in (folder / "before.jsonl").read_text().splitlines()]
    for text in (folder / "main.jsonl").read_text().splitlines():
        row = json.loads(text)
        if "arrival" in row:
            ns = round(row["arrival"] * 1e9) + start_ns
            row["arrival"] = f"@{ns // 10**9}.{ns % 10**9:09d}@"
        lines.append(row)
    path = folder / f"joined-{start_ns}.jsonl"
    path.write_text("".join(json.dumps(row).replace('"@', "").replace('@"', "") + "\n" for row in lines))
    return path


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["hash", "tree"])
def test_priming_equals_a_joined_trace(traces, primed, cold, name, replicas):
    run = primed[replicas]
    i = [r.engine for r in run.records].index(name)
    start = round(run.summary["warm"]["prime"]["engines"][name]["lasted_s"] * 1e9)
    path = joined_file(traces, start)
    text = trace_text("", f"replicas: {replicas}").replace("main.jsonl", path.name)
    whole = run_scenario(scenario(text, traces), engines=[name])
    expected, got = whole.records[0].requests[40:], run.records[i].requests
    assert whole.records[0].requests[:40, REQ_FINISH_NS].max() < start
    for column in range(expected.shape[1]):
        wanted = expected[:, column] - (start if column in TIMES else 0)
        assert np.array_equal(got[:, column], wanted), column
    assert np.array_equal(run.ledgers[i], whole.ledgers[0][40:])
    part, all_of_it = run.summary["engines"][name], whole.summary["engines"][name]
    assert part["itl_s"]["mean"] > 0
    late = [r.timeline[r.timeline[:, TL_START_NS] >= start] for r in whole.records[0].replicas]
    for replica, table in zip(run.records[i].replicas, late, strict=True):
        assert np.array_equal(replica.timeline[:, TL_START_NS] + start, table[:, TL_START_NS])
    # what happened during the priming and what counts make up the whole
    alone = run_scenario(
        scenario(text.replace(path.name, "before.jsonl"), traces, name="alone"), engines=[name]
    ).summary["engines"][name]
    for key in (
        "steps",
        "evicted_tokens",
        "preemptions",
        "finished",
        "output_tokens",
        "cached_tokens",
        "prompt_tokens",
    ):
        assert part[key] + alone[key] == all_of_it[key], key
    for key, value in all_of_it["counters"].items():
        if "_total{" in key or key.endswith("_total") or key in ("vllm:prefix_cache_queries", "vllm:generation_tokens"):
            assert part["counters"][key] + alone["counters"][key] == pytest.approx(value), key
    assert alone["steps"] > 10
    assert part["steps"] > 10
    if replicas == 1:  # it matters: a cold run is another run
        was = next(r for r in cold.records if r.engine == name).requests
        assert not np.array_equal(was[:, REQ_CACHED_TOKENS], got[:, REQ_CACHED_TOKENS])


def test_priming_with_the_first_requests_raises_their_hits():
    text = GENERATED + ENGINES.replace("120", "3000").replace("2000", "60000")
    cold = run_scenario(scenario(text))
    warm = run_scenario(scenario(text + "prime: {first_requests: 30}\n"))
    for was, now in zip(cold.records, warm.records, strict=True):
        a, b = was.requests[:30, REQ_CACHED_TOKENS], now.requests[:30, REQ_CACHED_TOKENS]
        assert (b >= a).all()
        assert b.sum() > a.sum() + 1000
        g = now.replicas[0].granularity
        prompt = warm.workload.prompt_tokens[:30]
        assert np.array_equal(b, (prompt - 1) // g * g)  # all that an engine can serve: the cache is large enough
        assert (
            warm.summary["engines"][now.engine]["ledger"]["new"] < cold.summary["engines"][now.engine]["ledger"]["new"]
        )
    assert warm.summary["ceiling"]["token"] > cold.summary["ceiling"]["token"]
    assert warm.summary["prompt_tokens"] == cold.summary["prompt_tokens"]
    assert warm.summary["workload"]["requests"] == warm.workload.n == 240
    assert any("primed with the first 30 requests" in note for note in warm.summary["notes"])


def test_priming_with_the_same_generator_shares_its_shared_parts_only():
    text = GENERATED + ENGINES.replace("120", "3000").replace("2000", "60000")
    part = GENERATED.partition("workload:\n")[2].replace("requests: 240", "requests: 20")
    cold, warm = run_scenario(scenario(text)), run_scenario(scenario(text + "prime:\n" + part))
    first = {w: r.requests[0, REQ_CACHED_TOKENS] for w, r in (("cold", cold.records[1]), ("warm", warm.records[1]))}
    shared = 150 if warm.workload.group[0] == 0 else 90
    assert (first["cold"], first["warm"]) == (0, shared)
    assert "names of shared parts" in warm.summary["warm"]["prime"]["contents_known_by"]


def test_ceilings_know_all_of_a_priming_trace_whose_times_are_squeezed(tmp_path):
    """Arrivals scaled to almost nothing, think times not: every priming request still comes before the workload."""
    only_later = list(range(100, 160))
    write(
        tmp_path / "before.jsonl",
        [
            {"id": "a", "tokens": [1, 2, 3], "output_length": 1, "arrival": 0},
            {"id": "b", "tokens": only_later, "output_length": 1, "after": "a", "delay": 30},
        ],
    )
    write(tmp_path / "main.jsonl", [{"tokens": [*only_later, 7], "output_length": 1, "arrival": 2}])
    for scale in ("1.0", "1.0e-6"):
        prime = f"prime: {{trace: {{path: before.jsonl, time_scale: {scale}}}}}"
        run = run_scenario(scenario(trace_text(prime), tmp_path), engines=["tree"])
        assert run.summary["ceiling_tokens"]["token"] == 60
        assert run.records[0].requests[:, REQ_CACHED_TOKENS].tolist() == [60]


def test_what_primes_with_other_contents_gives_no_hits(traces):
    text = trace_text(
        "prime: {generator: scan, requests: 30, arrivals: {process: constant, rate_per_s: 50}, document_tokens: 100}"
    )
    warm, cold = run_scenario(scenario(text, traces)), run_scenario(scenario(trace_text(), traces))
    assert warm.summary["ceiling_tokens"] == cold.summary["ceiling_tokens"]
    assert any("shares nothing with the workload" in n for n in warm.summary["notes"])
    assert warm.records[0].requests[0, REQ_CACHED_TOKENS] == 0
    evicted = [r.summary["engines"]["tree"]["evicted_tokens"] for r in (warm, cold)]
    assert evicted[0] > evicted[1]  # the workload finds a full cache, not an empty one


def test_large_token_numbers_keep_their_identity(tmp_path):
    """Numbers that readers count anew, in another order in each file: equal tokens must stay equal."""
    write(tmp_path / "before.jsonl", rows(20, 1, big=7_654_321_987))
    write(tmp_path / "main.jsonl", rows(30, 2, big=7_654_321_987))
    for small in ("before", "main"):
        write(tmp_path / f"small-{small}.jsonl", rows(20 if small == "before" else 30, 1 if small == "before" else 2))
    text = trace_text(PRIME)
    big = run_scenario(scenario(text, tmp_path))
    small = run_scenario(scenario(text.replace("main.", "small-main.").replace("before.", "small-before."), tmp_path))
    assert big.records[0].requests[0, REQ_CACHED_TOKENS] > 0
    for a, b in zip(big.records, small.records, strict=True):
        assert np.array_equal(a.requests, b.requests)


@pytest.mark.parametrize(
    ("prime", "words"),
    [
        ("prime: {trace: {path: moon.jsonl}}", "cannot be matched"),
        ("prime: {trace: {path: nothing.jsonl}}", "no such file"),
        ("prime: {saved: nothing.jsonl}", "no such file"),
        ("prime: {saved: main.jsonl}", "is no saved cache"),
        ("prime: {first_request: 3}", "a workload has"),
        ("prime: {first_requests: 0}", "greater than or equal to 1"),
        ("warm_up: {requests: 150}", "leaves none of the 150 requests"),
        ("warm_up: {requests: 5, seconds: 2}", "exactly one of"),
        ("warm_up: automatic", "'auto'"),
        ("warm_up: {seconds: 100000}", "leaves none"),
    ],
)
def test_what_cannot_be_is_said(traces, prime, words):
    row = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    write(traces / "moon.jsonl", [row, row])
    with pytest.raises(PrefixsimError, match=words):
        run_scenario(scenario(trace_text(prime), traces))


def test_generators_that_differ_in_variants_are_refused():
    text = GENERATED.replace("{shared: system, tokens: 150}", "{shared: system, tokens: 150, variants: 4}")
    part = GENERATED.partition("workload:\n")[2]
    with pytest.raises(ScenarioError, match="variants"):
        run_scenario(scenario(text + ENGINES + "prime:\n" + part))


# ---- warm-up


@pytest.mark.parametrize("rule", ["{requests: 50}", "{seconds: 1.5}"])
def test_warm_up_counts_the_rest_and_changes_nothing_else(traces, cold, rule):
    run = run_scenario(scenario(trace_text("", f"warm_up: {rule}"), traces))
    warm = run.summary["warm"]
    left_out = warm["warm_up"]["requests_left_out"]
    assert 20 < left_out < 120
    assert warm["requests_counted"] + left_out == warm["requests_simulated"] == 150
    assert run.workload.n == warm["requests_counted"]
    ids = [cold.workload.request_id(i) for i in range(150)]
    kept = [ids.index(run.workload.request_id(i)) for i in range(run.workload.n)]
    for i, name in enumerate(("hash", "tree")):
        whole, part = cold.records[i].requests, run.records[i].requests
        assert np.array_equal(part, whole[kept])
        assert np.array_equal(run.ledgers[i], cold.ledgers[i][kept])
        summary = run.summary["engines"][name]
        assert summary["prompt_tokens"] == run.workload.prompt_tokens.sum() == sum(summary["ledger"].values())
        since = round(warm["warm_up"]["counted_from_s"][name] * 1e9)
        assert since == part[:, REQ_RELEASED_NS].min() > 0
        if "seconds" in rule:
            others = np.setdiff1d(np.arange(150), kept)
            late = {n: r.requests[:, REQ_RELEASED_NS] for n, r in zip(("hash", "tree"), cold.records, strict=True)}
            assert (part[:, REQ_RELEASED_NS] >= 1.5e9).all()
            assert all(min(late[n][k] for n in late) < 1.5e9 for k in others)
        timeline = cold.records[i].replicas[0].timeline
        assert np.array_equal(
            run.records[i].replicas[0].timeline[:, TL_START_NS],
            timeline[timeline[:, TL_START_NS] >= since, TL_START_NS],
        )
        gaps = run.records[i].replicas[0].gaps[:, 1].sum()
        assert 0 < gaps < cold.records[i].replicas[0].gaps[:, 1].sum()
        assert 0 < summary["steps"] < cold.summary["engines"][name]["steps"]
    assert any(f"{left_out:,} requests" in n and "no metric" in n for n in run.summary["notes"])


def test_steps_as_a_clock(tmp_path):
    """Priming ends at a step, and the workload's own steps count from there; the ledger holds in every run."""
    lines = [{"tokens": list(range(40)) + [100 + i] * 9, "output_length": 2, "step": 3 * i} for i in range(30)]
    write(tmp_path / "main.jsonl", lines)
    text = trace_text("prime: {first_requests: 7}\nwarm_up: {requests: 4}", "clock: steps")
    for engine in ("hash", "tree"):
        run = run_scenario(scenario(text.replace("hardware:", "#"), tmp_path), engines=[engine])
        found = run.records[0].requests
        assert found[:, REQ_RELEASED_NS].tolist() == [3 * i for i in range(4, 30)]
        assert (found[:, REQ_CACHED_TOKENS] >= 32).all()
        assert run.summary["warm"]["prime"]["engines"][engine]["lasted_s"] > 18e-9


def test_unknown_keys_of_priming_have_a_place(tmp_path):
    with pytest.raises(ScenarioError, match=r"prime.trace.max_request: unknown key \(did you mean 'max_requests'"):
        scenario(trace_text("prime: {trace: {path: a.jsonl, max_request: 3}}"), tmp_path)


def test_nothing_is_left_out_unless_asked(cold):
    assert "warm" not in cold.summary
    assert cold.workload.n == cold.summary["engines"]["hash"]["requests"] == 150


def test_auto_finds_the_end_of_a_cold_start():
    """Prompts of one long shared part each: the first of each kind miss, all later ones hit."""
    from prefixsim.analysis.warm_rule import mser, warm_part
    from prefixsim.records import new_request_rows

    n = 1000
    table = new_request_rows(n)
    table[:, REQ_ADMITTED_NS] = np.arange(n)
    table[:, REQ_STATUS] = STATUS_FINISHED
    prompt = np.full(n, 1000, dtype=np.int64)
    rng = np.random.default_rng(1)
    table[:, REQ_CACHED_TOKENS] = rng.integers(700, 800, n)
    table[:180, REQ_CACHED_TOKENS] = rng.integers(0, 200, 180)
    part = warm_part("auto", [("e", table)], prompt)
    assert part.excluded.sum() == 180
    assert part.excluded[:180].all()
    assert "after 180 of 1,000" in part.words[0]
    flat = table.copy()
    flat[:, REQ_CACHED_TOKENS] = 500
    assert not warm_part("auto", [("e", flat)], prompt).excluded.any()
    rising = table.copy()
    rising[:, REQ_CACHED_TOKENS] = np.arange(n)
    assert "not settled" in warm_part("auto", [("e", rising)], prompt).words[0]
    few = warm_part("auto", [("e", table[:90])], prompt[:90])
    assert not few.excluded.any()
    assert "too few" in few.words[0]
    both = warm_part("auto", [("e", table), ("f", flat)], prompt)  # all engines leave the same requests out
    assert both.excluded.sum() == 180
    values = rng.random(60)
    b = len(values)
    errors = [values[d:].var() / (b - d) for d in range(b - 5)]
    assert mser(values) == int(np.argmin(errors))


def test_auto_with_priming_is_deterministic_and_says_what_it_did():
    text = GENERATED + ENGINES + "prime: {first_requests: 40}\nwarm_up: auto\n"
    a, b = run_scenario(scenario(text)), run_scenario(scenario(text))
    strip = lambda s: {k: v for k, v in s.items() if k not in ("timing_s", "provenance")}  # noqa: E731
    assert strip(a.summary) == strip(b.summary)
    warm = a.summary["warm"]
    assert warm["requests_simulated"] == 280
    assert warm["requests_counted"] + warm["warm_up"]["requests_left_out"] + 40 == 280
    assert len(warm["warm_up"]["found"]) == 2
    other = run_scenario(scenario(GENERATED + ENGINES + "prime: {first_requests: 41}\nwarm_up: auto\n"))
    assert other.run_id != a.run_id


# ---- saved caches


def saved(folder, text, engine, name="cache.jsonl", **overrides):
    path = folder / name
    run = run_scenario(scenario(text, folder, **overrides), engines=[engine], save_cache=path)
    return path, run


@pytest.mark.parametrize("engine", ["hash", "tree"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_saved_cache_is_there_again(traces, engine, replicas):
    text = trace_text("", f"replicas: {replicas}").replace("main.jsonl", "before.jsonl")
    path, _ = saved(traces, text, engine, f"{engine}{replicas}.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    header, sequences = lines[0], lines[1:]
    assert len(sequences) == header["sequences"] > 3
    assert {row["replica"] for row in sequences} == set(range(replicas))
    known = {tuple(r["tokens"] + r["output_tokens"]) for r in rows(40, 1)}
    for row in sequences:
        assert len(row["tokens"]) % header["granularity"] == 0
        assert any(k[: len(row["tokens"])] == tuple(row["tokens"]) for k in known)
    warm = run_scenario(
        scenario(trace_text(f"prime: {{saved: {path.name}}}", f"replicas: {replicas}"), traces), engines=[engine]
    )
    prime = warm.summary["warm"]["prime"]
    assert prime["requests"] == header["sequences"]
    resident = prime["engines"][engine]["sequences_resident"]
    assert resident >= 0.8 * header["sequences"]
    cold = run_scenario(scenario(trace_text("", f"replicas: {replicas}"), traces), engines=[engine])
    first = slice(0, 8)
    gained = warm.records[0].requests[first, REQ_CACHED_TOKENS].sum()
    assert gained > cold.records[0].requests[first, REQ_CACHED_TOKENS].sum()
    # the first request finds exactly what the first run had left on its replica
    w, here = warm.workload, int(warm.records[0].requests[0, REQ_REPLICA])
    prompt = tuple(rows(150, 2)[0]["tokens"])
    salt = rows(150, 2)[0].get("cache_salt", "")
    best = 0
    for row in sequences:
        if row["replica"] == here and row.get("cache_salt", "") == salt:
            same = 0
            while same < min(len(prompt) - 1, len(row["tokens"])) and prompt[same] == row["tokens"][same]:
                same += 1
            best = max(best, same // header["granularity"] * header["granularity"])
    assert w.request_id(0) == "r2-0"
    assert warm.records[0].requests[0, REQ_CACHED_TOKENS] == best > 0
    assert any("modelled: a saved cache is replayed" in n for n in warm.summary["notes"])


def test_hash_ids_are_the_same_content_in_two_files(tmp_path):
    """Mooncake rows with ids that readers number anew; the tail of a prompt has an id too."""

    def row(t, *ids, tail=88):
        return {"timestamp": t, "input_length": 512 * (len(ids) - 1) + tail, "output_length": 2, "hash_ids": list(ids)}

    big = 1 << 45
    write(tmp_path / "before.jsonl", [row(0, big + 9, big + 7, 3), row(5, big + 1, big + 2)])
    write(
        tmp_path / "main.jsonl", [row(0, big + 1, big + 2, big + 4), row(900, big + 9, big + 7, 4), row(5000, 11, 12)]
    )
    engines = ENGINES.replace("120", "3000").replace("2000", "60000")
    text = f"name: m\nworkload: {{trace: {{path: main.jsonl}}}}\n{engines}"
    path, _ = saved(tmp_path, text.replace("main.jsonl", "before.jsonl"), "tree", "moon.jsonl")
    assert json.loads(path.read_text().splitlines()[1])["segments"][0][0] in (big + 9, big + 1)
    for prime in ("{trace: {path: before.jsonl}}", "{saved: moon.jsonl}"):
        run = run_scenario(scenario(text + f"prime: {prime}\n", tmp_path), engines=["tree"])
        assert run.records[0].requests[:, REQ_CACHED_TOKENS].tolist() == [
            600,
            1024,
            0,
        ]  # an id is 512 tokens, a tail 88
        assert run.summary["ceiling_tokens"]["token"] == 1624


@pytest.mark.parametrize(("seed", "families"), [(1, 12), (5, 20), (9, 20)])
def test_a_saved_cache_does_what_the_run_before_would(tmp_path, seed, families):
    """In full LRU caches, where order of use decides: as if the trace before had been served right before."""
    write(tmp_path / "before.jsonl", rows(120, seed, families=families))
    write(tmp_path / "main.jsonl", rows(150, seed + 1, families=families))
    for engine in ("hash", "tree"):
        path, before = saved(tmp_path, trace_text().replace("main.jsonl", "before.jsonl"), engine, f"{engine}.jsonl")
        assert before.summary["engines"][engine]["evicted_tokens"] > 1000
        served, again, cold = (
            run_scenario(scenario(trace_text(prime), tmp_path), engines=[engine])
            .records[0]
            .requests[:, REQ_CACHED_TOKENS]
            for prime in (PRIME, f"prime: {{saved: {path.name}}}", "")
        )
        differ = int((served != again).sum())
        assert differ == 0 if engine == "hash" else differ <= 1  # where the tree's nodes begin is not saved
        assert (served != cold).sum() > 5


def test_a_generators_cache_serves_the_same_generator_only(tmp_path):
    text = GENERATED + ENGINES
    path, _ = saved(tmp_path, text, "tree")
    assert json.loads(path.read_text().splitlines()[0])["contents"] == "numbers"
    warm = run_scenario(scenario(text + "prime: {saved: cache.jsonl}\n", tmp_path), engines=["tree"])
    assert warm.records[0].requests[0, REQ_CACHED_TOKENS] > 0
    with pytest.raises(TraceError, match="another one"):
        run_scenario(scenario(text.replace("240", "241") + "prime: {saved: cache.jsonl}\n", tmp_path), engines=["tree"])
    with pytest.raises(TraceError, match="another"):
        run_scenario(
            scenario(text.replace("seed: 3", "seed: 4") + "prime: {saved: cache.jsonl}\n", tmp_path), engines=["tree"]
        )


def test_saving_needs_one_engine(traces, tmp_path):
    with pytest.raises(PrefixsimError, match="--engine"):
        run_scenario(scenario(trace_text(), traces), save_cache=tmp_path / "c.jsonl")
    with pytest.raises(PrefixsimError, match="no such folder"):
        run_scenario(scenario(trace_text(), traces), engines=["hash"], save_cache=tmp_path / "no" / "c.jsonl")


HEADER = {
    "prefixsim_cache": 1, "engine": "e", "kind": "vllm@0.33", "granularity": 16, "contents": "names", "source": "native",
    "block_tokens": 1, "content_key": "", "replicas": 1, "sequences": 1, "tokens": 2, "capacity_tokens": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is empty"),
        (["{"], "cache.jsonl:1: not JSON"),
        (["[" * 100_000], "not JSON"),
        (["3"], "expected an object"),
        ([HEADER | {"prefixsim_cache": 2}], "version 2"),
        ([HEADER | {"contents": "x"}], "names or numbers"),
        ([HEADER | {"granularity": "16"}], "granularity: expected int"),
        ([HEADER | {"sequences": 5}, {"tokens": [1, 2]}], "cut short"),
        ([HEADER | {"sequences": 0}], "no sequences"),
        ([HEADER, {"tokens": [1, 2], "segments": []}], "one of them"),
        ([HEADER, {"tokens": []}], "empty sequence"),
        ([HEADER, {"tokens": [1.5]}], "not a content"),
        ([HEADER, {"tokens": [1 << 70]}], "cache.jsonl:2"),
        ([HEADER, {"tokens": 7}], "expected a list"),
        ([HEADER, {"segments": [["a", 0]]}], "pairs"),
        ([HEADER, {"segments": [["a", 10**10]]}], "pairs"),
        ([HEADER, {"segments": [["a", 10**9], ["b", 10**9]]}], "more than"),
        ([HEADER, {"tokens": [1], "replica": -1}], "replica"),
        ([HEADER, {"tokens": [1], "replica": 3}], "replica 3"),
        ([HEADER, {"tokens": [1], "lora": 3}], "lora: expected a string"),
        ([HEADER, {"tokens": [1], "lore": "x"}], "unknown key 'lore'"),
        ([HEADER | {"source": "mooncake", "block_tokens": 512}, {"tokens": [1]}], "cannot be told"),
    ],
)
def test_hostile_files(traces, tmp_path, lines, words):
    path = tmp_path / "cache.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    with pytest.raises(PrefixsimError, match=words):
        run_scenario(scenario(trace_text(f"prime: {{saved: {path}}}"), traces), engines=["hash"])


def test_every_total_and_counter_is_a_sum_or_a_level(primed, cold):
    """A new one must be put on one side; a level must never be subtracted."""
    from prefixsim.analysis.since import is_level

    levels = {n for r in cold.records for e in r.replicas for n in (*e.totals, *e.counters) if is_level(n)}
    assert levels == {
        "available_tokens", "capacity_tokens", "evictable_tokens", "last_end_ns", "nodes", "peak_kv_tokens", "peak_nodes",
        "protected_tokens", "tree_bytes", "Prefix cache hit rate (log line)", "sglang:cache_hit_rate",
        "sglang:kv_available_tokens", "sglang:kv_evictable_tokens", "sglang:kv_used_tokens", "sglang:max_total_num_tokens",
        "sglang:new_token_ratio", "sglang:num_pages", "sglang:page_size", "sglang:token_usage", "vllm:kv_cache_usage_perc",
        "vllm:kv_cache_usage_perc (peak)", "vllm:num_requests_running",
    }  # fmt: skip
    for record in primed[1].records:
        for replica in record.replicas:
            assert min(replica.totals.values()) >= 0
            assert min(replica.counters.values()) >= 0


@given(st.data())
@settings(max_examples=300)
def test_damaged_files_are_refused_or_read(tmp_path_factory, data):
    """Bytes of a good file changed, cut or doubled: a message, or a workload that is whole. Nothing else."""
    good = "".join(
        json.dumps(line) + "\n"
        for line in (
            HEADER | {"sequences": 2},
            {"tokens": [1, 2, 3], "cache_salt": "x"},
            {"segments": [["a", 5], [7, 1], [None, 3]], "replica": 0},
        )
    ).encode()
    at = data.draw(st.integers(0, len(good) - 1))
    what = data.draw(st.sampled_from(["cut", "byte", "double", "drop"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    bad = {
        "cut": good[:at],
        "byte": good[:at] + byte + good[at + 1 :],
        "double": good + good[at:],
        "drop": good[:at] + good[at + 1 :],
    }
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(bad[what])
    main = workload_from_rows([{"tokens": [1, 2, 3, 4]}], Source(kind="native"))
    said = ""
    try:
        found = read_saved(path, Numbering(), main, "", True)
    except PrefixsimError as exc:
        said = str(exc)
    if said:
        assert "damaged.jsonl" in said
    else:
        assert found.workload.n == found.header["sequences"]
        assert found.workload.atom_tokens.sum() == found.workload.prompt_tokens.sum()


TIERED = """\
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: hash, kind: vllm@0.33, block_size: 16, num_gpu_blocks_override: 120, kv_offloading_size: 0.5}
  - {name: tree, kind: sglang@0.5.23, page_size: 1, max_total_tokens: 2000, enable_hierarchical_cache: true, hicache_ratio: 2}
seed: 3
"""


@pytest.mark.parametrize("case", ["tiered", "cache_aware", "power_of_two", "step"])
def test_looking_at_an_engine_in_passing_changes_nothing(tmp_path, case):
    """Host tiers, routers that look at state, several kernels for one fleet, single steps: rows are those of a plain run,
    and what came before the instant and what counts add up."""
    write(tmp_path / "main.jsonl", rows(150, 2, after=case == "tiered"))
    text = f"name: t\nworkload: {{trace: {{path: main.jsonl}}}}\n{TIERED if case == 'tiered' else ENGINES}"
    more = {
        "tiered": "",
        "cache_aware": "replicas: 2\nrouter: cache_aware\n",
        "power_of_two": "replicas: 3\nrouter: power_of_two\n",
        "step": "granularity: step\n",
    }[case]
    cold, warm = (run_scenario(scenario(text + more + rule, tmp_path)) for rule in ("", "warm_up: {requests: 60}\n"))
    for i, (was, now) in enumerate(zip(cold.records, warm.records, strict=True)):
        assert np.array_equal(now.requests, was.requests[60:])
        assert np.array_equal(warm.ledgers[i], cold.ledgers[i][60:])
        whole, part = cold.summary["engines"][now.engine], warm.summary["engines"][now.engine]
        assert 0 < part["steps"] < whole["steps"]
        if case == "tiered":
            assert whole["cached_host_tokens"] >= part["cached_host_tokens"] > 0
            assert 0 < part["totals"]["host_stored_tokens"] < whole["totals"]["host_stored_tokens"]
        for replica in now.replicas:
            assert min(replica.totals.values()) >= 0
            assert min(replica.counters.values()) >= 0
