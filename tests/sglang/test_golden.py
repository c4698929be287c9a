"""Golden cases of the real SGLang 0.5.23: kernels and twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixsim.engines.sglang.reference_replay import replay_reference
from prefixsim.engines.sglang.replay import replay, replay_workload
from prefixsim.workload.formats.native import read_native

from .cases import workload_of

SMALL = json.loads((Path(__file__).parent / "golden_small.json").read_text())["cases"]


def small_answer(result: dict[str, Any], mode: str) -> dict[str, Any]:
    """A result in the shape of golden_small.json."""
    second = "retracted" if mode == "scheduler" else "evicted_tokens"
    rows = [[r["cached_tokens"] if r["admitted"] else -1, r[second]] for r in result["requests"]]
    return {**{k: v for k, v in result.items() if k != "requests"}, "rows": rows}


@pytest.mark.parametrize("case", SMALL, ids=lambda c: str(c["seed"]))
@pytest.mark.parametrize("engine", ["kernels", "twin"])
def test_small_cases(case: dict[str, Any], engine: str) -> None:
    config = case["config"]
    run = replay_workload if engine == "kernels" else replay_reference
    assert small_answer(run(workload_of(case["requests"]), config), config["mode"]) == case["expected"]


@pytest.mark.parametrize(
    ("shared_tokens", "page", "hit"),
    [(17, 1, 17), (33, 1, 33), (37, 1, 37), (49, 1, 49), (17, 16, 16), (33, 16, 32), (37, 16, 32), (49, 16, 48)],
)
def test_shared_prefix(shared_tokens: int, page: int, hit: int) -> None:
    """Two prompts that share so many tokens and then differ (SGLang 0.5.23, trace `prefixes`)."""
    common = list(range(1000, 1000 + shared_tokens))
    rows = [
        {"id": str(i), "step": 0, "tokens": common + [i] * 40, "output_tokens": [7], "priority": 0} for i in range(2)
    ]
    result = replay(rows, {"page_size": page, "max_total_tokens": 4096})
    assert [r["cached_tokens"] for r in result["requests"]] == [0, hit]


def differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Keys of a golden case's `expected` that differ."""
    bad = [k for k, v in want.items() if k != "requests" and got.get(k) != v]
    rows = {r["id"]: r for r in got["requests"]}
    bad += [
        f"{r['id']}.{k}" for r in want["requests"] for k, v in r.items() if rows[str(r["id"])].get(k) != v and k != "id"
    ]
    return bad


@pytest.mark.shared
def test_all_named_cases(shared: Path) -> None:
    folder = shared / "conformance"
    paths = sorted((folder / "sglang").glob("*.json"))
    if not paths:
        pytest.skip(f"no golden cases in {folder}")
    traces: dict[str, Any] = {}
    wrong = {}
    for path in paths:
        case = json.loads(path.read_text())
        trace = case["trace"]
        if trace not in traces:
            traces[trace] = read_native(folder / trace)
        bad = differences(case["expected"], replay_workload(traces[trace], case["config"]))
        if bad:
            wrong[path.name] = bad[:4]
    assert not wrong


@pytest.mark.shared
@pytest.mark.parametrize("engine", ["kernels", "twin"])
def test_all_inline_cases(shared: Path, engine: str) -> None:
    path = shared / "conformance" / "sglang" / "fuzz.jsonl"
    if not path.exists():
        pytest.skip(f"no golden cases at {path}")
    run = replay_workload if engine == "kernels" else replay_reference
    wrong = {}
    for line in path.read_text().splitlines():
        case = json.loads(line)
        bad = differences(case["expected"], run(workload_of(case["requests"]), case["config"]))
        if bad:
            wrong[case["seed"], case["config"]["mode"]] = bad[:4]
    assert not wrong


@pytest.mark.shared
@pytest.mark.slow
def test_twin_on_named_cases(shared: Path) -> None:
    folder = shared / "conformance"
    wrong = {}
    for path in sorted((folder / "sglang").glob("*.json")):
        case = json.loads(path.read_text())
        bad = differences(case["expected"], replay_reference(read_native(folder / case["trace"]), case["config"]))
        if bad:
            wrong[path.name] = bad[:4]
    assert not wrong
