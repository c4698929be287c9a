"""Real traces beside the checkout: the figures that are known of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from prefixsim.analysis.ceilings import ceilings
from prefixsim.scenario.workload import Trace
from prefixsim.workload.cache import check
from prefixsim.workload.describe import describe
from prefixsim.workload.load import load_trace
from prefixsim.workload.table import Workload

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="too much work for uncompiled kernels"),
]


def load(path: Path, **options) -> Workload:
    """Reads a trace, nothing kept."""
    w = load_trace(Trace(path=str(path), cache=False, **options), seed=1)
    check(w)
    return w


def decided(w: Workload) -> dict[str, str]:
    """Decisions by name."""
    return {d.name: d.value for d in w.source.decisions}


def test_mooncake_conversation(shared):
    """Rows, tokens and ceilings as published beside the trace; stamps quantised to about 3 s."""
    w = load(shared / "traces" / "mooncake" / "conversation_trace.jsonl")
    assert (w.n, int(w.prompt_tokens.sum())) == (12_031, 144_793_823)
    tops = ceilings(w, (1, 512))
    assert tops.total(512) == (54_063_104, 144_793_823)
    assert round(100 * tops.total(1)[0] / 144_793_823, 2) == 37.36
    assert decided(w) | {"block_size": "512", "tail": "ceil", "time_unit": "ms", "ids": "chained"} == decided(w)
    d = describe(w, None)
    assert d["arrivals"]["distinct_stamps"] == 1180
    assert d["arrivals"]["most_on_one_stamp"] == 28
    assert d["arrivals"]["quantised"]
    q = d["prompt_length"]
    assert (q["p50"], q["min"], q["max"]) == (6909, 891, 126_195)
    assert (d["output_length"]["p50"], d["output_length"]["max"]) == (350, 2000)
    spread = load(shared / "traces" / "mooncake" / "conversation_trace.jsonl", spread_arrivals="uniform")
    assert bool((np.diff(spread.arrival_ns) >= 0).all())
    assert spread.atom_id.tolist() == w.atom_id.tolist()
    assert int(np.abs(spread.arrival_ns - w.arrival_ns).max()) < 3_100_000_000


def test_azure_conversations(shared):
    w = load(shared / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv")
    assert w.n == 19_366
    assert not w.source.content_known
    d = describe(w, None)
    assert round(d["arrivals"]["rate_per_s"], 2) == 5.53
    assert round(d["arrivals"]["span_s"]) == 3502
    assert (d["prompt_length"]["p50"], d["prompt_length"]["max"]) == (1020, 14_050)
    assert (d["output_length"]["p50"], d["output_length"]["max"]) == (129, 1000)


def test_weka_conversations(shared):
    """Ids local to conversations; floor tails; every prompt but the first continues another."""
    w = load(shared / "traces" / "weka-claude-code", share_system_blocks=False)
    assert w.source.counts["files"] == 163
    assert decided(w)["block_size"] == "64"
    assert decided(w)["tail"] == "floor"
    tops = ceilings(w, (64,))
    hit, total = tops.by(w.session, len(w.session_names), 64)
    share = hit[:-1] / np.maximum(total[:-1], 1)
    assert 0.80 < np.median(share) < 0.98
    whole = ceilings(load(shared / "traces" / "weka-claude-code"), (64,)).total(64)[0]
    assert whole > tops.total(64)[0]


def test_lmcache_taubench(shared):
    w = load(shared / "traces" / "lmcache-agent" / "taubench")
    assert w.n == 471
    assert w.source.counts["empty_files"] == 1
    assert round((w.arrival_ns[-1] - w.arrival_ns[0]) / 1e9) == 181
    hit, total = ceilings(w, (1,)).total(1)
    assert 0.82 < hit / total < 0.88


def test_sharegpt_dummy(shared):
    w = load(shared / "traces" / "sharegpt" / "dummy_conversation.json", chat_template="plain")
    assert len(w.session_names) == 500
    assert ceilings(w, (64,)).total(64)[0] == 0  # prompts are shorter than a block
