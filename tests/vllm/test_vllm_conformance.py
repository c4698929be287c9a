"""Equality with the real vLLM 0.33.0, in every field: the cases kept beside the checkout when present, and always the small
ones whose numbers are kept here. Kernels and plain-Python twin, each on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_cases import small_case
from twin_replay import twin_replay

from prefixsim.engines.vllm.replay import replay

SMALL = json.loads((Path(__file__).parent / "golden_small.json").read_text(encoding="utf-8"))["cases"]
REPLAYS = {"kernels": replay, "twin": twin_replay}
FIELDS = {
    "sequential": ("cached_tokens", "rejected"),
    "scheduler": ("cached_tokens", "preemptions", "admissions", "first_token_step", "finish_step"),
}


def busy(steps: list[list[int]]) -> list[list[int]]:
    """Steps that scheduled or preempted something; the others are idle polls."""
    return [list(row) for row in steps if row[1] or row[2]]


def differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Fields of a golden case's `expected` that differ; idle polls left out."""
    out = []
    for key, value in want.items():
        if key == "requests":
            by_id = {row["id"]: row for row in got["requests"]}
            out += [
                f"{row['id']}.{field}: {row[field]} against {by_id[row['id']].get(field)}"
                for row in value
                for field in row
                if row[field] != by_id[row["id"]].get(field)
            ]
        elif key == "steps":
            if busy(value) != busy(got["steps"]):
                out.append("steps")
        elif value != got.get(key):
            out.append(f"{key}: {str(value)[:60]} against {str(got.get(key))[:60]}")
    return out


@pytest.mark.parametrize("seed", sorted(SMALL, key=int))
@pytest.mark.parametrize("name", REPLAYS)
def test_small_cases_equal_the_real_engine(name: str, seed: str) -> None:
    rows, config = small_case(int(seed))
    want = dict(SMALL[seed])
    fields = FIELDS[config["mode"]]
    want["requests"] = [
        {"id": row["id"], **dict(zip(fields, values, strict=True))}
        for row, values in zip(rows, want["requests"], strict=True)
    ]
    assert not differences(want, REPLAYS[name](rows, config))


def test_small_cases_reach_what_matters() -> None:
    """Anti-vacuity: preemptions, priorities, evictions, hits, refusals to chunk and both depths occur in them."""
    configs = [small_case(int(seed))[1] for seed in SMALL]
    assert sum(case.get("preemptions", 0) for case in SMALL.values()) > 10
    assert any(c.get("policy") == "priority" for c in configs)
    assert any(not c.get("enable_chunked_prefill", True) for c in configs)
    assert {c.get("async_scheduling") for c in configs} >= {True, False}
    assert all(case["evicted_blocks"] + case["cached_tokens"] > 0 for case in SMALL.values())


def named_cases(shared: Path) -> list[tuple[str, list[dict[str, Any]], dict[str, Any], dict[str, Any]]]:
    folder = shared / "conformance"
    cases = []
    for path in sorted((folder / "vllm").glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        lines = (folder / case["trace"]).read_text(encoding="utf-8").splitlines()
        cases.append((path.stem, [json.loads(line) for line in lines], case["config"], case["expected"]))
    for line in (folder / "vllm" / "fuzz.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        cases.append((f"fuzz {case['seed']}", case["requests"], case["config"], case["expected"]))
    return cases


@pytest.mark.shared
@pytest.mark.parametrize("name", REPLAYS)
def test_all_golden_cases(shared: Path, name: str) -> None:
    cases = named_cases(shared)
    assert len(cases) >= 200
    wrong = {}
    for label, rows, config, expected in cases:
        if config.get("layout", "full") == "full" and (found := differences(expected, REPLAYS[name](rows, config))):
            wrong[label, config["mode"]] = found[:3]
    assert not wrong


def test_prefix_rules_by_hand() -> None:
    """SPEC 3.2: at most floor((n - 1) / 16) blocks; 17 of 16 shared hit 16, an identical 32 hits 16, 48 hits 32, 16 hits 0."""
    base = iter(range(1000, 10**6, 1000))
    rows: list[dict[str, Any]] = []
    expected = []
    for shared_tokens, second, hit in (
        (16, 17, 16),
        (32, 33, 32),
        (16, 16, 0),
        (32, 32, 16),
        (48, 48, 32),
        (15, 40, 0),
    ):
        start = next(base)
        stem = list(range(start, start + shared_tokens))
        rows += [
            {"id": f"a{start}", "tokens": stem, "output_tokens": [1]},
            {"id": f"b{start}", "tokens": stem + [7] * (second - shared_tokens), "output_tokens": [2]},
        ]
        expected += [0, hit]
    got = replay(rows, {"mode": "sequential", "block_size": 16, "num_gpu_blocks": 1000})
    assert [row["cached_tokens"] for row in got["requests"]] == expected


@pytest.mark.parametrize(("outputs", "hit"), [(16, 16), (17, 32)])
def test_decode_blocks_are_cached_up_to_the_last_but_one_token(outputs: int, hit: int) -> None:
    """SPEC 2.3: the last output token never gets KV."""
    out = list(range(500, 500 + outputs))
    rows = [
        {"id": "0", "tokens": list(range(16)), "output_tokens": out},
        {"id": "1", "tokens": [*range(16), *out, 9, 9], "output_tokens": [1]},
    ]
    got = replay(rows, {"mode": "sequential", "block_size": 16, "num_gpu_blocks": 100})
    assert got["requests"][1]["cached_tokens"] == hit


def test_twins_in_one_step_share() -> None:
    """SPEC 2.1: blocks are committed when they are scheduled, so the second of two equal prompts hits 48 of 64."""
    rows = [{"id": str(i), "tokens": list(range(64)), "output_tokens": [1]} for i in range(2)]
    got = replay(rows, {"mode": "scheduler", "block_size": 16, "num_gpu_blocks": 100})
    assert [row["cached_tokens"] for row in got["requests"]] == [0, 48]
    assert got["steps"][0][:2] == [0, 64 + 16]
