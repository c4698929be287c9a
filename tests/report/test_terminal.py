"""The terminal summary: words, width, colour, hostile names, missing parts."""

from __future__ import annotations

import copy
import io
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from run_folders import HOSTILE, engine_run, summary_of

from prefixsim.report import facts
from prefixsim.report.answer import answer
from prefixsim.report.terminal import print_summary, print_table


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summary_of({"vllm": engine_run("vllm", 40, 1, 16), "sglang": engine_run("sglang", 40, 2, 1)})


def shown(summary: dict[str, Any], **options: Any) -> str:
    out = io.StringIO()
    print_summary(summary, file=out, **options)
    return out.getvalue()


def test_first_sentence_answers() -> None:
    summary = {
        "ceiling": {"token": 0.61, "16": 0.58},
        "engines": {
            "hash": {
                "hit_rate": 0.554,
                "prompt_tokens": 1000,
                "block_size": 16,
                "ledger": {"new": 390, "granularity": 41, "evicted": 15, "hit_device": 554},
            },
            "radix": {"hit_rate": 0.581, "prompt_tokens": 1000},
        },
    }
    sentences = answer(summary)
    assert sentences[0] == "radix serves 58.1 % of prompt tokens from cache, hash 55.4 %; the ceiling is 61.0 %."
    assert sentences[1] == "hash loses 4.1 points to 16-token blocks and 1.5 to eviction."
    assert len(sentences) == 2


def first_sentences(*engines: dict[str, Any], **ceiling: float) -> list[str]:
    named = {f"e{i}": {"prompt_tokens": 1000} | e for i, e in enumerate(engines)}
    return answer({"ceiling": ceiling, "engines": named})


def served(tokens: int, **parts: int) -> dict[str, Any]:
    return {
        "hit_rate": tokens / 1000,
        "ledger": {"new": 1000 - tokens - sum(parts.values()), "hit_device": tokens} | parts,
    }


@pytest.mark.parametrize(
    ("engines", "ceiling", "says"),
    [
        (  # a tie is said once, and at the ceiling nothing more
            [served(613), served(613), served(613)],
            0.613,
            [
                "e0, e1 and e2 each serve 61.3 % of prompt tokens from cache, which is the ceiling.",
                "e0, e1 and e2 each lose nothing that could have been shared.",
            ],
        ),
        (  # a tie of two of three
            [served(400, evicted=213), served(613), served(400, evicted=213)],
            0.613,
            [
                "e1 serves 61.3 % of prompt tokens from cache, e0 and e2 40.0 %; the ceiling is 61.3 %.",
                "e1 loses nothing that could have been shared.",
                "e0 and e2 each lose 21.3 points to eviction.",
            ],
        ),
        (  # nothing is shared
            [served(0), served(0)],
            0.0,
            [
                "No prompt token can be served from cache: the ceiling is 0 %.",
                "No prompt begins like one that came before it.",
            ],
        ),
        (  # much is shared, nothing is served
            [served(0, engine_rule=613), served(0, engine_rule=613)],
            0.613,
            [
                "e0 and e1 serve no prompt tokens from cache; the ceiling is 61.3 %.",
                "e0 and e1 each lose 61.3 points to engine rules.",
            ],
        ),
        (
            [served(0, engine_rule=613), served(5, evicted=608)],
            0.613,
            [
                "e1 serves 0.5 % of prompt tokens from cache, e0 nothing; the ceiling is 61.3 %.",
                "e1 loses 60.8 points to eviction.",
                "e0 loses 61.3 points to engine rules.",
            ],
        ),
    ],
)
def test_ties_and_zeros_are_said_as_such(engines: list[dict[str, Any]], ceiling: float, says: list[str]) -> None:
    assert first_sentences(*engines, token=ceiling) == says


def test_rates_that_differ_never_look_alike() -> None:
    near = [{"hit_rate": 0.85192}, {"hit_rate": 0.85161}]
    assert first_sentences(*near)[0] == (
        "e0 serves 85.19 % of prompt tokens from cache, e1 85.16 %; the ceiling was not computed."
    )


def test_a_dozen_engines_are_still_one_sentence() -> None:
    alike = first_sentences(*[{"hit_rate": 0.5}] * 12, token=0.6)[0]
    assert alike == "e0, e1, e2, e3 and 8 more each serve 50.0 % of prompt tokens from cache; the ceiling is 60.0 %."
    apart = first_sentences(*[{"hit_rate": 0.9 - i / 100} for i in range(12)], token=0.95)[0]
    assert apart == (
        "e0 serves 90.0 % of prompt tokens from cache, e1 89.0 %, e2 88.0 %, e3 87.0 %, 8 more from 79.0 %; "
        "the ceiling is 95.0 %."
    )


def test_every_engine_value_is_in_the_table(summary: dict[str, Any]) -> None:
    text = shown(summary)
    for engine in summary["engines"].values():
        assert f"{engine['cached_tokens']:,}" in text
        assert f"{100 * engine['hit_rate']:.2f} %" in text
        assert f"{engine['ledger']['evicted']:,}" in text
    for label in ("saturated", "TTFT p99", "ITL p50", "output tokens/s", "peak KV use", "preemptions", "own blocks"):
        assert label in text
    assert "fitted on batches up to 256" in text
    assert "synthetic" in text


@pytest.mark.parametrize("engines", [0, 1, 2, 3, 5, 9])
def test_fits_80_plain_columns_when_piped(summary: dict[str, Any], engines: int) -> None:
    many = copy.deepcopy(summary)
    model = many["engines"]["vllm"]
    many["engines"] = {f"engine-with-a-very-long-name-{i}": copy.deepcopy(model) for i in range(engines)}
    text = shown(many)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    assert sum(line.startswith("hit rate") for line in text.splitlines()) == -(-engines // 4)


def test_names_cannot_reach_the_terminal_as_control_codes(summary: dict[str, Any]) -> None:
    bad = copy.deepcopy(summary)
    bad["name"] = "\x1b[31mred\x07"
    bad["engines"] = {"[bold]x[/bold]": bad["engines"]["vllm"], HOSTILE: bad["engines"]["sglang"]}
    text = shown(bad)
    assert "\x1b" not in text
    assert "\\x1b[31mred\\x07" in text
    assert "[bold]x[/bold]" in text
    assert HOSTILE in text


def test_letters_the_encoding_lacks_are_escaped(summary: dict[str, Any]) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_summary(summary | {"name": "größe"}, file=out, run_folder="/tmp/ü")
    out.flush()
    assert b"gr\\xf6" in raw.getvalue()


def test_saturation_and_a_broken_ledger_are_said(summary: dict[str, Any]) -> None:
    bad = copy.deepcopy(summary)
    bad["engines"]["vllm"] |= {"saturated": True, "saturation_note": "queue grows by 3 requests/s"}
    bad["engines"]["sglang"]["ledger"]["new"] += 1
    text = " ".join(shown(bad, show_notes=False).split())
    assert "vllm is saturated" in text
    assert "queue grows by 3 requests/s" in text
    assert "DEFECT" in text
    assert "DEFECT" not in shown(summary)
    assert "true output lengths assumed" not in text


@pytest.mark.parametrize("drop", ["ceiling", "workload", "hardware", "engines", "run_id", "name"])
def test_missing_parts_are_dashes_not_errors(summary: dict[str, Any], drop: str) -> None:
    poor = {k: v for k, v in summary.items() if k != drop}
    assert shown(poor)


def test_wrong_types_are_absent() -> None:
    odd = {
        "engines": {
            "a": {
                "hit_rate": "high",
                "ttft_s": 3,
                "ledger": [],
                "prompt_tokens": float("nan"),
                "saturated": 1,
                "replicas": {},
            },
            "b": None,
        },
        "ceiling": [],
        "workload": "x",
        "name": 7,
    }
    text = shown(odd)
    assert "has no hit rate" in text
    assert "nan" not in text


def test_a_trace_without_content_claims_no_hit_rate(summary: dict[str, Any]) -> None:
    poor = copy.deepcopy(summary)
    poor["workload"]["content_known"] = False
    assert answer(poor)[0].startswith("The trace has lengths only")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0412, "41.2 ms"), (0.045, "45.0 ms"), (0.1, "100 ms"), (3.5, "3.50 s"), (4000, "66.7 min"), (0, "0 s"), (12e-6, "12.0 us"),
     (36_001, "10.0 h"), (None, "-")],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert facts.seconds(value) == text


def _on_a_terminal(summary: dict[str, Any], **env: str) -> str:
    code = (
        "import json,sys; from prefixsim.report.terminal import print_summary; print_summary(json.loads(sys.argv[1]))"
    )
    main, side = pty.openpty()
    base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(summary)], stdout=side, env=base | {"TERM": "xterm-256color"} | env
    )
    os.close(side)
    chunks = []
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:
            break
        if not data:
            break
        chunks.append(data)
    os.close(main)
    assert process.wait() == 0
    return b"".join(chunks).decode()


def test_colour_on_a_terminal_and_no_color(summary: dict[str, Any]) -> None:
    assert "\x1b[32m" in _on_a_terminal(summary)  # green hits
    assert "\x1b[32m" not in _on_a_terminal(summary, NO_COLOR="1")


def test_plain_table() -> None:
    out = io.StringIO()
    print_table(["metric", "real"], [["a\x1b", "1"]], console=Console(file=out, width=80, color_system=None))
    assert "a\\x1b" in out.getvalue()


def test_a_percent_sign_stays_with_its_number(summary: dict[str, Any]) -> None:
    for length in range(1, 40):
        renamed = {"engines": {"e" * length: {"hit_rate": 0.5, "prompt_tokens": 1}}, "ceiling": {"token": 0.6}}
        lines = shown(renamed).splitlines()
        assert not any(line.startswith("%") for line in lines)
        assert "50.0 % of prompt tokens" in " ".join(lines)
