"""Too little room: pools in which requests don't fit, and arrays that begin with next to none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import small_case
from test_vllm_twin import coefficients, timed_case, timed_engine
from twin_replay import twin_replay

from prefixsim.engines.vllm.replay import replay
from prefixsim.records import NEVER


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), fewer=st.integers(1, 6))
def test_pools_too_small_equal_the_twin(seed: int, fewer: int) -> None:
    """From just enough for the longest request to too little for several; `max_steps` bounds those that wait for ever."""
    rows, config = small_case(seed)
    config["num_gpu_blocks"] = max(2, config["num_gpu_blocks"] - fewer)
    if config["mode"] == "scheduler":
        config["max_steps"] = 200
    assert replay(rows, config) == twin_replay(rows, config)


@pytest.mark.parametrize("block_size", [1, 4])
def test_the_largest_prompt_that_fits(block_size: int) -> None:
    """Sequentially, a prompt of every block but the null block is served; one token more is not."""
    for more in (0, 1):
        tokens = list(range(6 * block_size + more))
        rows = [{"id": "a", "step": 0, "tokens": tokens, "output_tokens": [1]}]
        config = {"mode": "sequential", "block_size": block_size, "num_gpu_blocks": 7}
        got = replay(rows, config)
        assert got == twin_replay(rows, config)
        assert bool(got["requests"][0]["rejected"]) == bool(more)


@pytest.mark.parametrize("mode", ["sequential", "scheduler"])
@pytest.mark.parametrize("tokens", [4, 5, 7, 8, 9])
def test_the_last_token_is_always_computed(mode: str, tokens: int) -> None:
    """Of a prompt that is there in whole blocks of 4, the last block is not a hit."""
    rows = [
        {"id": name, "step": step, "tokens": list(range(tokens)), "output_tokens": [1] * 3}
        for name, step in (("a", 0), ("b", 50))
    ]
    config = {"mode": mode, "block_size": 4, "num_gpu_blocks": 20}
    got = replay(rows, config)
    assert got == twin_replay(rows, config)
    assert [r["cached_tokens"] for r in got["requests"]] == [0, (tokens - 1) // 4 * 4]


@pytest.mark.parametrize("seed", range(8))
def test_growing_arrays_changes_nothing(seed: int) -> None:
    _, w, s = timed_case(seed)
    roomy, tight = (timed_engine(w, s, coefficients()) for _ in range(2))
    for name in ("gaps", "timeline", "queue", "heap"):
        tight.replace_array(name, getattr(tight, name)[:1].copy())
    for engine in (roomy, tight):
        engine.submit(np.arange(w.n), w.arrival_ns)
        engine.advance(NEVER)
    assert min(tight.gaps.shape[0], tight.timeline.shape[0], tight.queue.shape[0]) > 1
    assert np.array_equal(roomy.inputs.rows, tight.inputs.rows)
    a, b = roomy.record(), tight.record()
    assert np.array_equal(a.timeline, b.timeline)
    assert np.array_equal(a.gaps, b.gaps)
    assert a.totals == b.totals
