"""A trace that has lengths only: latencies are simulated, hits are unknown rather than 0."""

from __future__ import annotations

from pathlib import Path

from prefixsim.pipeline.run import run_scenario
from prefixsim.scenario.load import load_scenario

SCENARIO = """\
name: lengths
workload: {trace: {path: t.csv%s}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm}, {name: sglang, kind: sglang}]
"""


def summary(folder: Path, more: str) -> dict[str, object]:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:17:{s:02d}.1234567,{500 + 7 * s},{10 + s}" for s in range(30)]
    (folder / "t.csv").write_text("\r\n".join(rows))
    (folder / "s.yaml").write_text(SCENARIO % more)
    return run_scenario(load_scenario(folder / "s.yaml")).summary


def test_hits_are_unknown(tmp_path: Path) -> None:
    found = summary(tmp_path, "")
    assert found["ceiling"] == {}
    for engine in found["engines"].values():  # type: ignore[attr-defined]
        assert engine["hit_rate"] is None
        assert engine["cached_tokens"] is None
        assert engine["ttft_s"]["p50"] > 0
        assert not any("hit" in name for name in engine["counters"])
        assert "ledger" not in engine


def test_with_a_sharing_model_they_are_known(tmp_path: Path) -> None:
    found = summary(tmp_path, ", sharing: {families: 2, prefix_tokens: 400}")
    for engine in found["engines"].values():  # type: ignore[attr-defined]
        assert engine["hit_rate"] > 0.2
        assert sum(engine["ledger"].values()) == engine["prompt_tokens"]
    assert found["workload"]["synthetic"]  # type: ignore[index]
