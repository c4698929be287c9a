"""Mutated files through every reader: a workload that is sound, or a message with the file's name. Nothing else."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import pytest
from test_formats import FILES, WEKA

from prefixsim.errors import PrefixsimError
from prefixsim.scenario.workload import Trace
from prefixsim.workload.cache import check
from prefixsim.workload.intern import build_chains, build_trie
from prefixsim.workload.load import load_trace

ROUNDS = 250
"""Mutated files for each reader in the default lane."""

TOKENS = [
    "-1", "1e999", "NaN", "null", "true", "[]", "{}", '""', '"x"', "1.5", "99999999999999999999", "18446744073709551615", "-0", "1e18",
    "[" * 3000, '{"a":' * 3000, "9" * 4000, "0", "[1,2,3]", '[["a",1]]', '[["a",-1]]', "\\ud800", '"\\ud800"', "2147483648", "1e-300",
]  # fmt: skip
BYTES = [
    b"\x00",
    b"\xff",
    b"\xc3\x28",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b",",
    b":",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b"\\",
    b"e",
    b"-",
    b" ",
]


def mutate(text: str, rng: random.Random) -> bytes:
    """One to four edits: values replaced by hostile ones, bytes changed, pieces cut, doubled or moved."""
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1) if data else 0
        if kind == 0 and data:  # a JSON value or CSV field
            import re

            spots = [m.span() for m in re.finditer(rb"-?\d+(\.\d+)?|\[[^\[\]]*\]|\"[^\"]*\"|null", data)]
            if spots:
                a, b = rng.choice(spots)
                data = data[:a] + rng.choice(TOKENS).encode() + data[b:]
        elif kind == 1:
            data = data[:at] + rng.choice(BYTES) + data[at:]
        elif kind == 2:
            data = data[:at] + rng.choice(BYTES) + data[at + 1 :]
        elif kind == 3:
            data = data[:at]
        elif kind == 4:
            b = min(len(data), at + rng.randint(1, 60))
            data = data[:at] + data[b:]
        elif kind == 5:
            b = min(len(data), at + rng.randint(1, 200))
            data = data[:b] + data[at:b] + data[b:]
        else:
            rows = data.split(b"\n")
            rng.shuffle(rows)
            data = b"\n".join(rows)
    return data


def run(path: Path, kind: str | None, skip: bool) -> str:
    """Reads and interns; returns what happened."""
    options = Trace(path=str(path), format=kind, cache=False, on_bad_row="skip" if skip else "error")
    try:
        w = load_trace(options)
    except PrefixsimError as exc:
        text = str(exc)
        assert path.name in text or path.parent.name in text, text
        assert len(text) < 6000
        return "refused"
    check(w)
    assert w.n >= 1
    if w.atom_id.shape[0] < 100_000:
        build_chains(build_trie(w, "vllm"), 16)
    return "read"


@pytest.mark.parametrize("kind", FILES)
def test_mutated_files_are_read_or_refused(tmp_path, kind):
    rng = random.Random(kind)
    name, text = FILES[kind]
    path = tmp_path / name
    seen = {"read": 0, "refused": 0}
    for k in range(ROUNDS):
        path.write_bytes(mutate(text, rng))
        seen[run(path, kind if k % 3 else None, skip=k % 2 == 0)] += 1
    assert min(seen.values()) > ROUNDS // 20, seen  # both happen, or the test says nothing


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_many_mutated_files_are_read_or_refused(tmp_path, kind):
    rng = random.Random("slow " + kind)
    name, text = FILES[kind]
    for k in range(5000):
        (tmp_path / name).write_bytes(mutate(text, rng))
        run(tmp_path / name, kind if k % 3 else None, skip=k % 2 == 0)


@pytest.mark.parametrize("kind", FILES)
def test_random_bytes_are_refused(tmp_path, kind):
    rng = random.Random(7)
    path = tmp_path / FILES[kind][0]
    for size in (1, 10, 1000, 70_000):
        path.write_bytes(rng.randbytes(size))
        assert run(path, kind, skip=False) == "refused"
        assert run(path, kind, skip=True) == "refused"


HUGE = {
    "mooncake": '{"timestamp": 0, "input_length": %d, "output_length": 1, "hash_ids": [1]}\n',
    "native": '{"segments": [["a", %d]], "output_length": 1}\n',
    "bailian": '{"chat_id": 1, "timestamp": 0, "input_length": %d, "output_length": 1, "hash_ids": [1]}\n',
    "aiperf": '{"input_length": %d, "output_length": 1, "delay": 1}\n',
}


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("tokens", [10**9, 10**9 + 1, 2**31, 2**63, 10**30])
def test_huge_lengths_cost_no_memory(tmp_path, kind, tokens):
    path = tmp_path / "t.jsonl"
    path.write_text(HUGE[kind] % tokens)
    tracemalloc.start()
    try:
        outcome = run(path, kind, skip=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 150 << 20
    if tokens > 10**9:
        assert outcome == "refused"


def test_a_prompt_of_a_billion_tokens_is_one_atom(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"segments": [["a", 1000000000]], "output_length": 1}\n' * 3)
    w = load_trace(Trace(path=str(path), cache=False))
    chains = build_chains(build_trie(w, "vllm"), 1)
    assert chains.n_chains == 1_000_000_003
    assert chains.run_start.shape[0] <= 6


def test_deeply_nested_weka_and_foreign_files_in_the_folder(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(WEKA))
    (tmp_path / "b.json").write_text('{"requests": ' + "[" * 200_000)
    (tmp_path / "notes.txt").write_text("not a trace")
    assert run(tmp_path, "weka", skip=False) == "refused"
    assert run(tmp_path, "weka", skip=True) == "read"
