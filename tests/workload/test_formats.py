"""Every reader on tiny files in its format: what is read, what is decided and why, what is refused where."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixsim.analysis.ceilings import ceilings
from prefixsim.errors import NotModelledError, TraceError
from prefixsim.scenario.workload import Trace
from prefixsim.workload.cache import check
from prefixsim.workload.describe import describe, describe_text
from prefixsim.workload.formats.registry import detect, formats
from prefixsim.workload.intern import build_trie
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Workload
from prefixsim.workload.write_native import native_lines

NATIVE = [
    {"id": "a", "arrival": 1.5, "tokens": [5, 6, 7, 8], "output_tokens": [9, 10], "session": "s", "group": "g"},
    {"id": "b", "after": "a", "delay": 2, "tokens": [5, 6, 7, 8, 9, 10, 11], "output_length": 3, "max_tokens": 50,
     "finish_reason": "stop", "session": "s", "cache_salt": "x", "lora": "l", "extra_key": "k", "priority": -3,
     "skip_reading_prefix_cache": True, "tenant": "t", "cached_tokens": 4},
    {"id": "c", "arrival": 0.25, "segments": [["sys", 2000], ["u", 40]], "output_segments": [["o", 7]]},
]  # fmt: skip
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 20, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]},
]
BAILIAN = [
    {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 61.114,
        "input_length": 30,
        "output_length": 132,
        "type": "text",
        "turn": 1,
        "hash_ids": [1089, 1090],
    },
    {
        "chat_id": 2,
        "parent_chat_id": 1,
        "timestamp": 65.5,
        "input_length": 60,
        "output_length": 9,
        "type": "text",
        "turn": 2,
        "hash_ids": [1089, 1091, 1092, 1093],
    },
    {
        "chat_id": 7,
        "parent_chat_id": 99,
        "timestamp": 62.0,
        "input_length": 16,
        "output_length": 9,
        "type": "search",
        "turn": 5,
        "hash_ids": [1089],
    },
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,374,44\r\n2023-11-16 18:17:05.0319601,91,0"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,0,ChatGPT,100,20,120,Conversation log\n9,,1,GPT-4,300,0,300,API log\n12,1,7,ChatGPT,150,30,180,Conversation log\n13,,2,GPT-4,40,5,45,API log\n"
)
SHAREGPT = [
    {"id": "x", "conversations": [{"from": "human", "value": "Who are you?"}, {"from": "gpt", "value": "I am a test."},
                                  {"from": "human", "value": "Thanks"}, {"from": "gpt", "value": "You are welcome"}]},
    {"id": "y", "conversations": [{"from": "human", "value": "Who are you?"}, {"from": "assistant", "value": "Somebody else."}]},
]  # fmt: skip
CHAT = [
    {"timestamp": 1700000000.5, "session_id": "a", "tools": [{"type": "function", "function": {"name": "f"}}],
     "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi there"}],
     "response": {"choices": [{"message": {"role": "assistant", "content": "hello!"}, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 30, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}}},
    {"timestamp": 1700000003.5, "session_id": "a", "tools": [{"type": "function", "function": {"name": "f"}}],
     "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi there"},
                  {"role": "assistant", "content": "hello!"}, {"role": "user", "content": [{"type": "text", "text": "and now?"}]}],
     "usage": {"completion_tokens": 7}},
]  # fmt: skip
LMCACHE = [
    {"timestamp": 1760587847195094, "input": "Hello there. What now?", "output": "Nothing", "session_id": "s1"},
    {"timestamp": 1760587846195094, "input": "Hello there.", "output": " What now?", "session_id": "s1"},
    {"timestamp": 1760587846695094, "input": "", "output": "x", "session_id": "s2"},
]
AIPERF = [
    {"session_id": "s1", "timestamp": 0, "input_length": 1300, "output_length": 20, "hash_ids": [1, 2, 3]},
    {"session_id": "s1", "delay": 500, "input_length": 1400, "output_length": 20, "hash_ids": [1, 2, 4]},
    {"session_id": "s2", "timestamp": 100.5, "input_length": 600, "output_length": 20, "hash_ids": [1, 9]},
]
WEKA = {
    "id": "trace_1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 100, "system_tokens": 40, "requests": [
        {"t": 0.0, "type": "n", "model": "m", "in": 200, "out": 10, "hash_ids": [1, 2, 3], "stop": "tool_use", "api_time": 4.0, "think_time": 0.0},
        {"t": 5.0, "type": "subagent", "agent_id": "z", "requests": [
            {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [50, 51], "api_time": 2.0}]},
        {"t": 9.0, "type": "s", "model": "m", "in": 260, "out": 30, "hash_ids": [1, 2, 3, 4], "api_time": 1.0, "think_time": 2.0}]}  # fmt: skip


def lines(rows: list[Any]) -> str:
    """JSON lines."""
    return "".join(json.dumps(r) + "\n" for r in rows)


FILES = {
    "native": ("t.jsonl", lines(NATIVE)), "mooncake": ("t.jsonl", lines(MOONCAKE)), "bailian": ("t.jsonl", lines(BAILIAN)),
    "azure": ("t.csv", AZURE), "burstgpt": ("t.csv", BURST), "sharegpt": ("t.json", json.dumps(SHAREGPT)),
    "openai": ("t.jsonl", lines(CHAT)), "lmcache": ("t.jsonl", lines(LMCACHE)), "aiperf": ("t.jsonl", lines(AIPERF)),
    "weka": ("t.json", json.dumps(WEKA)),
}  # fmt: skip


def write(folder: Path, kind: str) -> Path:
    """The tiny file of a format."""
    name, text = FILES[kind]
    (folder / name).write_bytes(text.encode())
    return folder / name


def load(path: Path, **options: Any) -> Workload:
    """Reads a trace, nothing kept."""
    return load_trace(Trace(path=str(path), cache=False, **options), seed=1)


def decision(w: Workload, name: str) -> tuple[str, str]:
    """(value, evidence) of a decision."""
    return next((d.value, d.evidence) for d in w.source.decisions if d.name == name)


def hits(w: Workload, granularity: int = 1) -> int:
    """Hit tokens of an infinite cache."""
    return ceilings(w, (granularity,)).total(granularity)[0]


def test_every_format_is_tested_here():
    assert set(formats()) == set(FILES)


@pytest.mark.parametrize("kind", FILES)
def test_formats_are_told_apart_and_described(tmp_path, kind):
    path = write(tmp_path, kind)
    found, why = detect(path)
    assert found.name == kind
    assert why.evidence
    w = load(path)
    check(w)
    assert w.source.kind == kind
    assert bool((np.diff(w.arrival_ns) >= 0).all())
    assert bool((w.after < np.arange(w.n)).all())
    trie = build_trie(w, "vllm") if w.source.content_known else None
    text = " ".join(describe_text(describe(w, trie)).split())  # its lines are wrapped
    assert kind in text
    assert [d.evidence for d in w.source.decisions if d.evidence not in text] == []
    compressed = tmp_path / (path.name + ".gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    again = load(compressed)
    assert again.prompt_tokens.tolist() == w.prompt_tokens.tolist()
    assert again.atom_id.tolist() == w.atom_id.tolist()


@pytest.mark.parametrize("kind", [k for k in FILES if k not in ("azure", "burstgpt")])
def test_converted_traces_are_the_same_workload(tmp_path, kind):
    w = load(write(tmp_path, kind))
    native = tmp_path / "native.jsonl"
    native.write_bytes(b"".join(native_lines(w)))
    back = load(native, format="native")
    for name in ("arrival_ns", "after", "delay_ns", "prompt_tokens", "output_tokens", "max_tokens", "stop", "priority", "step", "turn",
                 "skip_reading_prefix_cache"):  # fmt: skip
        assert getattr(back, name).tolist() == getattr(w, name).tolist(), name
    for name in ("session", "group", "tenant", "salt", "lora", "extra_key"):
        codes, names = getattr(w, name).tolist(), getattr(w, f"{name}_names")
        theirs, their_names = getattr(back, name).tolist(), getattr(back, f"{name}_names")
        assert [names[c] if c >= 0 else None for c in codes] == [their_names[c] if c >= 0 else None for c in theirs], (
            name
        )
    for rule in ("vllm", "sglang"):
        a, b = build_trie(w, rule), build_trie(back, rule)
        assert a.element_end.tolist() == b.element_end.tolist()
        assert a.run_start.tolist() == b.run_start.tolist()
    cached = [None if x.reported_cached_tokens is None else x.reported_cached_tokens.tolist() for x in (w, back)]
    assert cached[0] == cached[1]


def test_native_everything(tmp_path):
    w = load(write(tmp_path, "native"))
    assert w.ids == ("c", "a", "b")
    assert w.arrival_ns.tolist() == [250_000_000, 1_500_000_000, 3_500_000_000]
    assert w.after.tolist() == [-1, -1, 1]
    assert w.delay_ns.tolist() == [0, 0, 2_000_000_000]
    assert w.prompt_tokens.tolist() == [2040, 4, 7]
    assert w.output_tokens.tolist() == [7, 2, 3]
    assert w.max_tokens.tolist() == [7, 2, 50]
    assert w.max_tokens_assumed
    assert w.stop.tolist() == [False, False, True]
    assert (w.priority[2], w.skip_reading_prefix_cache[2], w.turn[2]) == (-3, True, 1)
    assert (w.salt_names[w.salt[2]], w.lora_names[w.lora[2]], w.extra_key_names[w.extra_key[2]]) == ("x", "l", "k")
    assert w.reported_cached_tokens is not None
    assert w.reported_cached_tokens.tolist() == [-1, -1, 4]


@pytest.mark.parametrize(("rows", "words"), [
    ([{"tokens": []}], "the prompt is empty"), ([{"id": "a"}], "neither tokens nor segments"),
    ([{"tokens": [1], "segments": [["a", 1]]}], "not both"), ([{"segments": [["a", 0]]}], "segment 'a'"),
    ([{"segments": [["a"]]}], "pairs"), ([{"segments": {"a": 3}}], "found an object"),
    ([{"id": "a", "tokens": [1]}, {"id": "a", "tokens": [1]}], "was the id of line 1 too"),
    ([{"tokens": [1], "after": "zz"}], "no request has the id 'zz'"),
    ([{"id": "a", "after": "b", "tokens": [1]}, {"id": "b", "after": "a", "tokens": [1]}], "in a circle"),
    ([{"tokens": [1], "arrival": -1}], "not a time"), ([{"tokens": [1], "arrival": 1e10}], "not a time"),
    ([{"tokens": [1], "finish_reason": "bored"}], "'length' or 'stop'"), ([{"tokens": [1], "output_tokens": [1, 2], "max_tokens": 1}], "below the 2"),
    ([{"tokens": [1], "output_tokens": [1], "output_length": 3}], "3 given, but 1"), ([{"tokens": [1], "output_length": -3}], "whole number"),
    ([{"tokens": [1], "output_length": 2.5}], "whole number"), ([{"tokens": [1.5]}], "found 1.5"), ([{"tokens": [1], "delay": -1}], "not a time"),
])  # fmt: skip
def test_native_refuses_with_line_and_key(tmp_path, rows, words):
    path = tmp_path / "t.jsonl"
    path.write_text("\n" + lines([{"id": "first", "tokens": [1, 2]}, *rows]))
    with pytest.raises(TraceError) as caught:
        load(path, format="native")
    assert words.replace("line 1", "line 3") in str(caught.value)
    assert f"{path}:" in str(caught.value)
    if "circle" not in words:
        w = load(path, format="native", on_bad_row="skip")
        assert w.n == len(rows)
        assert w.source.counts["bad_rows"] == 1
        assert any("left out" in n for n in w.source.notes)


def test_after_may_point_forward_and_nobody_comes_before_whom_it_awaits(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines(
            [
                {"id": "x", "after": "y", "tokens": [1]},
                {"id": "y", "arrival": 4, "tokens": [1]},
                {"id": "z", "arrival": 4, "tokens": [2]},
            ]
        )
    )
    w = load(path)
    assert w.ids == ("y", "x", "z")
    assert w.after.tolist() == [-1, 0, -1]
    assert w.arrival_ns.tolist() == [4_000_000_000] * 3


def test_tokens_and_named_segments_in_one_file_share_nothing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines([{"tokens": [0, 1]}, {"segments": [["0", 2]]}, {"tokens": [0, 1, 2]}, {"segments": [["0", 3]]}])
    )
    assert hits(load(path)) == 4


def test_mooncake_blocks_tail_and_ceiling(tmp_path):
    w = load(write(tmp_path, "mooncake"))
    assert decision(w, "block_size")[0] == "512"
    assert "3 of 3 rows" in decision(w, "block_size")[1]
    assert w.source.block_tokens == 512
    assert w.arrival_ns.tolist() == [0, 1_500_000_000, 1_500_000_000]
    assert w.atom_tokens is not None
    assert w.atom_tokens.tolist() == [512, 512, 276, 512, 512, 512, 188]
    assert hits(w) == 1024 + 512
    assert hits(w, 16) == 1024 + 512


@pytest.mark.parametrize(("tail", "block"), [("ceil", 16), ("floor", 64), ("ceil", 512), ("floor", 512), ("ceil", 48)])
def test_block_size_and_tail_are_inferred_from_all_rows(tmp_path, tail, block):
    rng = np.random.default_rng(block)
    rows = []
    for k in range(60):
        n = int(rng.integers(block, 40 * block))
        count = -(-n // block) if tail == "ceil" else n // block
        rows.append(
            {"timestamp": k, "input_length": n, "output_length": 1, "hash_ids": list(range(1000 * k, 1000 * k + count))}
        )
    path = tmp_path / "t.jsonl"
    path.write_text(lines(rows))
    w = load(path)
    assert (decision(w, "block_size")[0], decision(w, "tail")[0]) == (str(block), tail)
    assert w.prompt_tokens.tolist() == [r["input_length"] for r in rows]
    rows[7]["hash_ids"].append(1)
    path.write_text(lines(rows))
    with pytest.raises(TraceError, match=r":8: hash_ids: \d+ ids for input_length"):
        load(path)
    assert load(path, on_bad_row="skip").n == 59


def test_a_stated_block_size_is_checked(tmp_path):
    with pytest.raises(TraceError, match=r"ceil\(1300 / 16\) = 82 expected"):
        load(write(tmp_path, "mooncake"), block_size=16)


def test_ids_are_opaque_64_bit(tmp_path):
    """Ids that agree in their lower 32 bits are different content."""
    path = tmp_path / "t.jsonl"
    wide = [(1 << 63) + 5, 5, (1 << 32) + 5, (1 << 64) - 1]
    path.write_text(
        lines(
            [{"timestamp": k, "input_length": 512, "output_length": 1, "hash_ids": [i]} for k, i in enumerate(wide * 2)]
        )
    )
    assert hits(load(path)) == 4 * 512


def test_failed_rows_are_dropped_and_counted(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(lines([*MOONCAKE, {"timestamp": 9, "input_length": 5, "output_length": 0, "hash_ids": [77]}]))
    w = load(path)
    assert (w.n, w.source.counts["failed_rows"]) == (3, 1)
    kept = load(path, failed_rows="keep")
    assert (kept.n, int(kept.output_tokens.min())) == (4, 1)


def test_bailian_sessions(tmp_path):
    w = load(write(tmp_path, "bailian"))
    assert w.arrival_ns.tolist() == [61_114_000_000, 62_000_000_000, 65_500_000_000]
    assert [w.session_names[s] for s in w.session] == ["chat-1", "chat-7", "chat-1"]
    assert w.turn.tolist() == [0, 0, 1]
    assert w.source.counts["missing_parents"] == 1
    assert hits(w) == 16 + 16
    assert [w.group_names[g] for g in w.group] == ["text", "search", "text"]


def test_bailian_circles_and_repeated_ids_are_cut_and_counted(tmp_path):
    rows = [
        dict(BAILIAN[0], chat_id=1, parent_chat_id=2),
        dict(BAILIAN[0], chat_id=2, parent_chat_id=1),
        dict(BAILIAN[0], chat_id=1),
    ]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    w = load(tmp_path / "t.jsonl")
    assert w.source.counts["repeated_ids"] == 1
    assert any("circle" in n for n in w.source.notes)


def test_azure_is_lengths_only(tmp_path):
    w = load(write(tmp_path, "azure"))
    assert w.arrival_ns.tolist() == [0, 52_000_000]
    assert w.prompt_tokens.tolist() == [4808, 374]
    assert not w.source.content_known
    assert w.source.counts["failed_rows"] == 1
    with pytest.raises(NotModelledError):
        ceilings(w, (1,))
    with pytest.raises(NotModelledError):
        list(native_lines(w))
    shared = load(write(tmp_path, "azure"), sharing={"families": 1, "prefix_tokens": 300})
    assert shared.source.content_known
    assert shared.source.synthetic
    assert hits(shared) == 300
    assert shared.prompt_tokens.tolist() == w.prompt_tokens.tolist()


def test_burstgpt_sessions_and_failures(tmp_path):
    w = load(write(tmp_path, "burstgpt"))
    assert w.prompt_tokens.tolist() == [100, 150, 40]
    assert w.session.tolist() == [0, 0, -1]
    assert decision(w, "turns")[0] == "cumulative"
    assert w.source.counts["failed_rows"] == 1
    shared = load(write(tmp_path, "burstgpt"), sharing={"prefix_tokens": 0, "families": 3})
    assert hits(shared) == 119  # the second turn holds the first turn's prompt and answer (its last token has no KV)


def test_sharegpt_turns(tmp_path):
    w = load(write(tmp_path, "sharegpt"), chat_template="plain")
    assert w.n == 3
    assert w.after.tolist() == [-1, 0, -1]
    assert w.source.synthetic
    assert decision(w, "conversation starts")[0].startswith("constant")
    assert hits(w) > w.prompt_tokens[0]
    w = load(write(tmp_path, "sharegpt"), arrivals={"process": "constant", "rate_per_s": 0.5})
    assert sorted(set(w.arrival_ns.tolist())) == [0, 2_000_000_000]


@pytest.mark.parametrize("template", ["chatml", "llama-3", "plain"])
def test_chat_history_is_a_prefix(tmp_path, template):
    w = load(write(tmp_path, "openai"), chat_template=template)
    assert w.reported_cached_tokens is not None
    assert w.reported_cached_tokens.tolist() == [16, -1]
    assert w.output_tokens[1] == 7
    assert hits(w) >= int(w.prompt_tokens[0]) + int(w.output_tokens[0]) - 1
    assert w.arrival_ns.tolist() == [0, 3_000_000_000]


def test_mistral_moves_tools_and_loses_the_prefix_there(tmp_path):
    a, b = (load(write(tmp_path, "openai"), chat_template=t) for t in ("chatml", "mistral"))
    assert hits(b) / int(b.prompt_tokens[0]) < 0.3 < hits(a) / int(a.prompt_tokens[0])


def test_strip_thinking_removes_thoughts_from_history(tmp_path):
    rows = json.loads(json.dumps(CHAT))
    rows[0]["response"]["choices"][0]["message"]["content"] = "<think>long thoughts here</think>hello!"
    rows[1]["messages"][2]["content"] = "<think>long thoughts here</think>hello!"
    (tmp_path / "t.jsonl").write_text(lines(rows))
    kept, stripped = (load(tmp_path / "t.jsonl", strip_thinking=s) for s in (False, True))
    # finish_reason is stop: an engine may have computed one token more, so the last output token counts as known
    assert kept.stop[0]
    assert hits(kept) == int(kept.prompt_tokens[0]) + int(kept.output_tokens[0])
    assert hits(stripped) == int(stripped.prompt_tokens[0])


@pytest.mark.parametrize("row", [
    {"messages": []}, {"messages": [{"content": "x"}]}, {"messages": [{"role": "user", "content": 5}]}, {"messages": [5]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"messages": [{"role": "user", "content": "x"}], "usage": {"completion_tokens": -1}},
])  # fmt: skip
def test_chat_rows_are_refused_with_their_line(tmp_path, row):
    (tmp_path / "t.jsonl").write_text(lines([CHAT[0], row]))
    with pytest.raises(TraceError, match=r"t\.jsonl:2: "):
        load(tmp_path / "t.jsonl")
    assert load(tmp_path / "t.jsonl", on_bad_row="skip").n == 1


def test_lmcache_order_and_empty_inputs(tmp_path):
    w = load(write(tmp_path, "lmcache"))
    assert w.n == 2
    assert w.arrival_ns.tolist() == [0, 1_000_000_000]
    assert w.source.counts["empty_inputs"] == 1
    assert w.turn.tolist() == [0, 1]
    assert hits(w) == w.prompt_tokens[0] + w.output_tokens[0] - 1


def test_aiperf_delays(tmp_path):
    w = load(write(tmp_path, "aiperf"))
    assert w.after.tolist() == [-1, -1, 0]
    assert w.delay_ns.tolist() == [0, 0, 500_000_000]
    assert hits(w) == 512 + 1024
    (tmp_path / "u.jsonl").write_text(lines([{"input_length": 1024, "hash_ids": [1, 2, 3]}, *AIPERF]))
    with pytest.raises(TraceError, match=r":1: hash_ids: 3 ids for input_length 1,024"):
        load(tmp_path / "u.jsonl", format="aiperf")
    (tmp_path / "v.jsonl").write_text(lines([{"text_input": "a b", "input_length": 3}]))
    with pytest.raises(TraceError, match="exactly one of"):
        load(tmp_path / "v.jsonl", format="aiperf")
    (tmp_path / "w.jsonl").write_text(
        lines([{"text_input": "one two three", "output_length": 4}, {"messages": [{"role": "user", "content": "x"}]}])
    )
    assert load(tmp_path / "w.jsonl").output_tokens.tolist() == [4, 1]


def test_weka_links_shared_blocks_and_sub_agents(tmp_path):
    folder = tmp_path / "weka"
    folder.mkdir()
    for name in ("trace_1", "trace_2"):
        (folder / f"{name}.json").write_text(json.dumps(dict(WEKA, id=name)))
    w = load(folder)
    assert w.n == 6
    first = w.session == 0
    assert w.prompt_tokens[first].tolist() == [200, 130, 260]
    index = np.flatnonzero(first)
    assert w.after[first].tolist() == [-1, index[0], index[1]]  # main, sub-agent, then main again after the sub-agent
    assert (w.delay_ns[first] / 1e9).tolist() == [0.0, 1.0, 2.0]
    assert w.source.counts["sub_agent_requests"] == 2
    assert hits(w) == 2 * 192 + 128  # within conversations; the first two blocks (tools and system) also across
    assert hits(load(folder, share_system_blocks=False)) == 2 * 192
    (folder / "trace_3.json").write_text(json.dumps(WEKA)[:-30])
    with pytest.raises(TraceError, match=r"trace_3\.json:1: not a WEKA conversation"):
        load(folder)
    assert load(folder, on_bad_row="skip").source.counts["bad_rows"] == 1


def test_spread_scale_head_and_caps(tmp_path):
    rows = [{"timestamp": 3000 * (k // 10), "input_length": 5, "output_length": 1, "hash_ids": [k]} for k in range(50)]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    w = load(tmp_path / "t.jsonl", spread_arrivals="uniform", time_scale=10.0)
    assert bool((np.diff(w.arrival_ns) >= 0).all())
    assert len(set(w.arrival_ns.tolist())) == 50
    assert w.atom_id.tolist() == list(range(50))  # file order is kept
    assert (w.arrival_ns // 30_000_000_000).tolist() == [k // 10 for k in range(50)]
    assert "5 distinct stamps for 50 requests" in decision(w, "spread_arrivals")[1]
    assert decision(w, "time_scale")[0] == "10"
    assert load(tmp_path / "t.jsonl", max_requests=7).n == 7
    (tmp_path / "n.jsonl").write_text(lines(NATIVE))
    capped = load(tmp_path / "n.jsonl", max_delay_s=0.5, reuse_outputs=False)
    assert int(capped.delay_ns.max()) == 500_000_000
    assert np.diff(capped.atom_offset).tolist() == capped.prompt_atoms.tolist()


@pytest.mark.parametrize(("name", "data", "words"), [
    ("t.jsonl", b"", "is empty"), ("t.jsonl", b"\n\n", "is empty"), ("t.jsonl", b'{"a": 1}\n', "cannot be told"),
    ("t.csv", b"a,b\n1,2\n", "cannot be told"), ("t.bin", bytes(range(256)) * 20, "cannot be told"),
])  # fmt: skip
def test_what_is_no_trace_is_said(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TraceError, match=words):
        load(tmp_path / name)


def test_missing_files_and_unknown_names(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        load(tmp_path / "nothing")
    with pytest.raises(TraceError, match="did you mean 'mooncake'"):
        load(write(tmp_path, "mooncake"), format="moncake")
    with pytest.raises(TraceError, match="folder without"):
        detect(_empty(tmp_path))
    with pytest.raises(TraceError, match="unknown tokenizer"):
        load(write(tmp_path, "sharegpt"), tokenizer="gpt9")
    with pytest.raises(TraceError, match="no such tokenizer file"):
        load(write(tmp_path, "sharegpt"), tokenizer="tiktoken:none.tiktoken")
    with pytest.raises(TraceError, match="unknown chat template"):
        load(write(tmp_path, "sharegpt"), chat_template="lama-3")


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_aiperf_delta_rows_get_their_history(tmp_path):
    """Rows that hold only what is new: prompts grow by the answer before and the row's own tokens."""
    rows = [
        {"session_id": "s", "timestamp": 0, "input_length": 100, "output_length": 20},
        {"session_id": "s", "delay": 500, "input_length": 30, "output_length": 10},
        {"session_id": "s", "delay": 500, "input_length": 7, "output_length": 10},
    ]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    w = load(tmp_path / "t.jsonl", turns="delta")
    assert w.prompt_tokens.tolist() == [100, 150, 167]
    check(w)
    assert load(tmp_path / "t.jsonl").prompt_tokens.tolist() == [100, 30, 7]


def test_id_scope_of_a_conversation(tmp_path):
    rows = [dict(BAILIAN[0], chat_id=k, parent_chat_id=-1 if k < 2 else k - 2) for k in range(4)]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    assert hits(load(tmp_path / "t.jsonl")) == 3 * 30
    assert hits(load(tmp_path / "t.jsonl", id_scope="conversation")) == 2 * 30
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(WEKA))
    (tmp_path / "t.jsonl").unlink()
    apart = load(tmp_path, share_system_blocks=False)
    assert hits(load(tmp_path, share_system_blocks=False, id_scope="file")) > hits(apart)


def test_keys_without_effect_are_said(tmp_path):
    w = load(write(tmp_path, "mooncake"), turns="delta", tokenizer="builtin")
    assert any("without effect on mooncake traces: turns, tokenizer" in n for n in w.source.notes)
    assert not any("without effect" in n for n in load(write(tmp_path, "mooncake"), block_size=512).source.notes)


def test_real_tokenizers_from_local_files(tmp_path):
    """Needs the extra; a byte-level tiktoken file and a word-level tokenizer.json of our own."""
    import base64

    pytest.importorskip("tiktoken")
    tokenizers = pytest.importorskip("tokenizers")
    ranks = [bytes([b]) for b in range(256)] + [b"th", b"the"]
    (tmp_path / "own.tiktoken").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % k for k, t in enumerate(ranks)))
    path = write(tmp_path, "lmcache")
    w = load(path, tokenizer="tiktoken:own.tiktoken")
    assert w.prompt_tokens[0] == len("Hello there.") - 2
    assert "258 tokens" in decision(w, "tokenizer")[1]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"Hello": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    assert load(path, tokenizer="tokenizers:tokenizer.json").prompt_tokens[0] == 3
    (tmp_path / "bad.tiktoken").write_text("nonsense here too\n")
    with pytest.raises(TraceError, match="not a tiktoken file"):
        load(path, tokenizer="tiktoken:bad.tiktoken")


def test_missing_tokenizer_packages_are_named(tmp_path, monkeypatch):
    import sys

    from prefixsim.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "tiktoken", None)
    (tmp_path / "x").write_text("")
    with pytest.raises(MissingExtraError, match=r"prefixsim\[tokenizers\]"):
        load(write(tmp_path, "lmcache"), tokenizer="tiktoken:x")


def test_labels_may_be_numbers(tmp_path):
    rows = [
        {"id": 1, "tokens": [1, 2], "session": 7},
        {"id": 2, "after": 1, "tokens": [1, 2, 3], "session": 7, "cache_salt": 5},
    ]
    (tmp_path / "t.jsonl").write_text(lines(rows))
    w = load(tmp_path / "t.jsonl")
    assert w.ids == ("1", "2")
    assert w.after.tolist() == [-1, 0]
    assert w.session_names == ("7",)
    assert w.salt_names == ("", "5")
