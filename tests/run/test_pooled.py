"""Counters of a fleet: counts are added up, shares averaged, by whole words of their names."""

from __future__ import annotations

import numpy as np
import pytest

from prefixsim.analysis.summary import pooled_counters
from prefixsim.records import EngineRecord

EMPTY = np.zeros((0, 12), dtype=np.int64)


@pytest.mark.parametrize(
    ("name", "pooled"),
    [
        ("vllm:generation_tokens", 30.0),  # "gene-ratio-n" is no ratio
        ("vllm:prefix_cache_hits", 30.0),
        ("vllm:kv_cache_usage_perc", 15.0),
        ("sglang:cache_hit_rate", 15.0),
        ("sglang:new_token_ratio", 15.0),
    ],
)
def test_pooling(name: str, pooled: float) -> None:
    records = tuple(
        EngineRecord("e", "vllm", i, 16, 0, EMPTY, np.zeros((0, 2), dtype=np.int64), {}, {name: value})
        for i, value in enumerate((10.0, 20.0))
    )
    assert pooled_counters(records) == {name: pooled}
