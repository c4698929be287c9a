"""The same requests, spelled in other ways that a format allows, are the same workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixsim.errors import TraceError
from prefixsim.scenario.workload import Trace
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Workload

USER = [{"role": "user", "content": "What is a trie?"}]
ANSWER = {"role": "assistant", "content": "A tree of prefixes."}
USAGE = {"prompt_tokens": 9, "completion_tokens": 5}
CHOICES = [{"message": ANSWER, "finish_reason": "stop"}]


def load(folder: Path, rows: list[Any] | str, **options: Any) -> Workload:
    text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
    path = folder / "t.jsonl"
    path.write_text(text)
    return load_trace(Trace(path=str(path), **options), base_dir=folder, seed=1)


def same(a: Workload, b: Workload) -> bool:
    columns = ("prompt_tokens", "output_tokens", "atom_offset", "atom_id", "arrival_ns", "session", "after", "stop")
    return all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": USER, "response": {"body": {"choices": CHOICES, "usage": USAGE}}},
        {"body": {"messages": USER}, "response": {"choices": CHOICES, "usage": USAGE}},
        {"request": {"messages": USER}, "choices": CHOICES, "usage": USAGE},
        {"messages": USER, "response": ANSWER["content"], "usage": USAGE},
        {"messages": [*USER, ANSWER], "usage": USAGE},
    ],
)
def test_where_chat_rows_keep_the_answer(tmp_path: Path, row: dict[str, Any]) -> None:
    plain = {"messages": USER, "response": {"choices": CHOICES, "usage": USAGE}}
    stamps = ({"timestamp": 10.0}, {"timestamp": 11.5})
    want = load(tmp_path, [{**plain, **s} for s in stamps], format="openai")
    assert want.n == 2
    assert same(load(tmp_path, [{**row, **s} for s in stamps], format="openai"), want)


def test_dates_are_numbers_of_seconds(tmp_path: Path) -> None:
    rows = [{"messages": USER, "usage": USAGE} for _ in range(3)]
    numbers = [1700000000.25, 1700000001.5, 1700003600.0]
    dates = ["2023-11-14T22:13:20.25Z", "2023-11-14 22:13:21.5", "2023-11-14T23:13:20+00:00"]
    a, b = (
        load(tmp_path, [{**r, "timestamp": t} for r, t in zip(rows, stamps, strict=True)], format="openai")
        for stamps in (numbers, dates)
    )
    assert a.arrival_ns.tolist() == [0, 1_250_000_000, 3_599_750_000_000]
    assert same(a, b)
    assert not a.source.synthetic
    assert not b.source.synthetic


def test_failed_requests_are_kept_or_left_out(tmp_path: Path) -> None:
    rows = [
        {"messages": USER, "response": {"choices": CHOICES}, "timestamp": 1.0},
        {"messages": USER, "error": {"message": "overloaded"}, "timestamp": 2.0},
        {"messages": [*USER, ANSWER, *USER], "response": {"choices": CHOICES}, "timestamp": 4.0},
    ]
    kept, left = (load(tmp_path, rows, format="openai", failed_rows=what) for what in ("keep", "drop"))
    assert (kept.n, left.n) == (3, 2)
    assert kept.source.counts["failed_rows"] == left.source.counts["failed_rows"] == 1
    assert same(left, load(tmp_path, [rows[0], rows[2]], format="openai"))


CONVERSATIONS = [
    {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]},
    {"id": "y", "conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]},
]


def test_sharegpt_as_a_list_as_lines_and_alone(tmp_path: Path) -> None:
    want = load(tmp_path, json.dumps(CONVERSATIONS), format="sharegpt")
    assert want.n == 2
    assert same(load(tmp_path, CONVERSATIONS, format="sharegpt"), want)
    assert load(tmp_path, json.dumps(CONVERSATIONS[0]), format="sharegpt").n == 1
    with pytest.raises(TraceError, match="not valid JSON") as caught:
        load(tmp_path, json.dumps(CONVERSATIONS[0]) + "\n{\n", format="sharegpt")
    assert ":2" in str(caught.value)
    with pytest.raises(TraceError, match="expected a list of conversations"):
        load(tmp_path, "7", format="sharegpt")


def test_a_day_that_does_not_exist_is_named_with_its_line(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-02-{day} 10:00:00.0000000,10,1" for day in (27, 28, 30)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(TraceError, match="no such date and time") as caught:
        load_trace(Trace(path=str(tmp_path / "t.csv"), format="azure"), base_dir=tmp_path, seed=1)
    assert ":4" in str(caught.value)
