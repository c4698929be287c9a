"""Scenario files: what is accepted, what is refused and how it is said; overrides; identity; schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prefixsim.errors import InputError, ScenarioError
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.identity import resolved, resolved_yaml, run_identity
from prefixsim.scenario.load import (
    find_scenario,
    load_scenario,
    parse_override,
    scenario_from,
    shipped_scenarios,
    split_key,
    variants,
)
from prefixsim.scenario.router import ROUTERS
from prefixsim.scenario.schema import schema_text

ROOT = Path(__file__).parents[2]
TEXT = """\
name: small
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 4}
  requests: 50
  templates:
    - name: support
      segments:
        - {shared: system, tokens: 120}
        - {unique: user, tokens: 30}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: hash, kind: vllm@0.33, block_size: 16}
  - {name: tree, kind: sglang@0.5.23, page_size: 1}
seed: 1
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)
    return file


def faults(path, overrides=None):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [str(p) for p in caught.value.problems]


def test_a_good_file(path):
    s = load_scenario(path)
    assert [e.name for e in s.engines] == ["hash", "tree"]
    assert s.n_replicas == 1
    assert s.router.kind == "round_robin"
    assert s.base_dir == path.parent.resolve()


@pytest.mark.parametrize(
    ("line", "new", "place", "words"),
    [
        ("seed: 1", "sead: 1", ":15:1", ["sead", "unknown key", "did you mean 'seed'"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: hash, kind: vllm@0.33, block_sizes: 16}", ":13:35", ["engines[0].block_sizes", "did you mean 'block_size'"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: hash, kind: vllm@0.33, block_size: 1.5}", ":13:47", ["engines[0].block_size", "valid integer", "1.5"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: hash, kind: vllm@9, block_size: 16}", ":13:24", ["engines[0].kind", "vllm@0.33", "vllm@9"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: hash, kind: trtllm}", ":13:5", ["engines[0]", "sglang@0.5.23"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: tree, kind: vllm}", ":1:1", ["two engines are called 'tree'"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: a.b, kind: vllm}", ":1:1", ["'a.b'"]),
        ("  - {name: hash, kind: vllm@0.33, block_size: 16}", "  - {name: hash, kind: vllm, speculative_config: {}}", ":13:30", ["not modelled", "speculative decoding"]),
        ("name: small", "name: ../../etc", ":1:7", ["name", "letters, digits"]),
        ("seed: 1", "seed: -1", ":15:7", ["seed", "greater than or equal to 0", "-1"]),
        ("seed: 1", "seed: no", ":15:7", ["seed", "'no'"]),
        ("seed: 1", "seed: 1\nseed: 2", ":16:1", ["seed", "duplicate key (first on line 15)"]),
        ("seed: 1", "replicas: 100000", ":15:11", ["replicas", "4096", "100000"]),
        ("seed: 1", "router: cash_aware", ":15:9", ["router", "cash_aware", "'cache_aware'"]),
        ("seed: 1", "expect:\n  - {metric: hash.hit_rate}", ":16:5", ["expect[0]", "at_least"]),
        ("hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}", "clock: time", ":1:1", ["hardware: missing"]),
        ("hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}", "clock: steps", ":1:1", ["num_gpu_blocks_override"]),
    ],
)  # fmt: skip
def test_each_fault_is_said_with_its_place(path, line, new, place, words):
    assert line in TEXT
    path.write_text(TEXT.replace(line, new))
    shown = "\n".join(faults(path))
    assert f"small.yaml{place}" in shown
    for word in words:
        assert word in shown


def test_all_faults_are_said_at_once(path):
    path.write_text(TEXT.replace("seed: 1", "seed: x\nclok: time").replace("requests: 50", "requests: 0"))
    shown = faults(path)
    assert len(shown) == 3
    assert ["requests" in s for s in shown].index(True) == 0  # in the order of the file


def test_overrides_set_lists_by_name_and_number_and_make_mappings(path):
    s = load_scenario(
        path,
        {"engines.hash.block_size": 32, "engines[1].page_size": 4, "output.report": False, "router": "cache_aware"},
    )
    assert s.engines[0].block_size == 32
    assert s.engines[1].page_size == 4
    assert s.output.report is False
    assert load_scenario(path, {"router": "cache_aware", "router.cache_threshold": 0.5}).router.cache_threshold == 0.5


def test_overrides_do_not_stay(path):
    before = load_scenario(path)
    changed = load_scenario(path, {"engines.hash.block_size": 128})
    assert changed != before
    assert load_scenario(path) == before


def test_a_wrong_override_is_blamed_itself(path):
    assert faults(path, {"engines.hash.block_size": "x"}) == [
        "engines.hash.block_size=x: engines[0].block_size: Input should be a valid integer, found 'x'"
    ]
    assert "did you mean 'hash'" in faults(path, {"engines.hush.block_size": 1})[0]
    assert "has 2 members" in faults(path, {"engines[7].block_size": 1})[0]
    assert "did you mean 'seed'" in faults(path, {"sead": 1})[0]


def test_parsing_of_overrides():
    assert parse_override("a.b=1e3") == ("a.b", 1000)
    assert parse_override("a={x: [1, two]}") == ("a", {"x": [1, "two"]})
    assert parse_override("a=b=c") == ("a", "b=c")
    assert parse_override("a=") == ("a", None)
    assert split_key("engines[0].x") == ["engines", 0, "x"]
    for bad in ("a", "=1"):
        with pytest.raises(InputError, match="KEY=VALUE"):
            parse_override(bad)
    with pytest.raises(InputError, match="YAML tools disagree"):
        parse_override("a=no")


def test_missing_files_and_names(tmp_path):
    with pytest.raises(ScenarioError, match="did you mean 'quickstart'"):
        find_scenario("quikstart")
    with pytest.raises(ScenarioError, match="folder"):
        find_scenario(tmp_path)
    (tmp_path / "e.yaml").write_text("")
    (tmp_path / "l.yaml").write_text("- 1")
    with pytest.raises(ScenarioError, match="empty"):
        load_scenario(tmp_path / "e.yaml")
    with pytest.raises(ScenarioError, match="mapping"):
        load_scenario(tmp_path / "l.yaml")
    with pytest.raises(ScenarioError):
        find_scenario("x" * 5000)
    with pytest.raises(ScenarioError):
        find_scenario("a\0b")


@pytest.mark.parametrize("name", shipped_scenarios())
def test_shipped_scenarios_are_valid_and_survive_resolving(name):
    for s in variants(name):
        again = scenario_from(strict_yaml.parse(resolved_yaml(s), "resolved"), s.base_dir)
        assert resolved(again) == resolved(s)
        assert run_identity(again, "w") == run_identity(s, "w")


def test_variants_change_what_they_say_and_explicit_overrides_win(path):
    path.write_text(TEXT + "also:\n  - {name: fast, set: {workload.arrivals.rate_per_s: 8, seed: 5}}\n")
    first, second = variants(path, {"seed": 9})
    assert (second.name, second.workload.arrivals.rate_per_s, second.seed) == ("small-fast", 8, 9)
    assert first.workload.arrivals.rate_per_s == 4


def test_identity_depends_on_what_decides_the_result_and_on_nothing_else(path):
    def identity(overrides=None, workload="w", hardware="h"):
        return run_identity(load_scenario(path, overrides), workload, hardware)

    same = identity()
    for key, value in (("description", "x"), ("granularity", "step"), ("output.report", False), ("expect", [])):
        assert identity({key: value}) == same
    different = [
        identity({"seed": 2}),
        identity({"engines.hash.block_size": 32}),
        identity({"replicas": 2}),
        identity({"router": "random"}),
        identity({"workload.requests": 51}),
        identity(workload="other"),
        identity(hardware="other"),
    ]
    assert len({same, *different}) == 8


def test_a_trace_counts_by_content_not_by_path(path):
    text = "{trace: {path: %s, format: mooncake}}"
    ids = []
    for name in ("a.jsonl", "b.jsonl"):
        path.write_text(
            f"name: t\nworkload: {text % name}\nhardware: {{gpu: h100-sxm-80g, model: llama-3.1-8b}}\nengines: [{{name: e, kind: vllm}}]\n"
        )
        ids.append(run_identity(load_scenario(path), "content"))
    assert ids[0] == ids[1]


def test_replica_groups(path):
    group = [{"count": 2}, {"count": 1, "hardware": {"gpu": "a100-sxm-80g", "model": "llama-3.1-8b"}}]
    s = load_scenario(path, {"replicas": group})
    assert s.n_replicas == 3
    assert s.replica_groups[1].hardware.gpu == "a100-sxm-80g"


def test_the_committed_schema_is_current_and_knows_every_router():
    committed = (ROOT / "docs" / "schema" / "scenario.schema.json").read_text()
    assert committed == schema_text(), "prefixsim schema > docs/schema/scenario.schema.json"
    for router in ROUTERS:
        assert f'"{router}"' in committed
    assert json.loads(committed)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("process: poisson", "process: poison", "poisson"),
        ("generator: rag", "generator: rga", "rag"),
        ("kind: vllm", "kind: vlm", "vllm"),
        ("router: cache_aware", "router: cache-aware", "cache_aware"),
        ("router: cache_aware", "router: other", None),
    ],
)
def test_a_word_that_is_not_among_those_allowed_names_the_nearest(path, old, new, meant):
    text = (
        "name: t\nworkload: {generator: rag, arrivals: {process: poisson, rate_per_s: 1}, requests: 2}\n"
        "hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}\nengines: [{name: e, kind: vllm}]\nreplicas: 2\nrouter: cache_aware\n"
    )
    path.write_text(text)
    load_scenario(path)
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    hint = re.search(r"did you mean '([^']*)'", str(caught.value))
    assert (hint and hint[1]) == meant


def test_a_segment_without_tokens_is_refused_rather_than_given_one(path):
    text = (
        "name: t\nworkload:\n  generator: sessions\n  arrivals: {process: all_at_once}\n  requests: 2\n"
        "  templates: [{name: a, segments: [{shared: s, tokens: 1}, {unique: u, tokens: 9}]}]\n"
        "hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}\nengines: [{name: e, kind: vllm}]\n"
    )
    path.write_text(text)
    load_scenario(path)
    path.write_text(text.replace("tokens: 1}", "tokens: 0}"))
    with pytest.raises(ScenarioError, match=r":6:\d+: .*at least one token, found tokens: 0; leave it out"):
        load_scenario(path)
