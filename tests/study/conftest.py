"""A tiny study: token rows in engine steps, so that a point takes milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BASE = """\
name: tiny
workload: {trace: {path: rows.jsonl, format: native}}
clock: steps
engines:
  - {name: vllm, kind: vllm@0.33, block_size: 4, num_gpu_blocks_override: 60, max_num_seqs: 8, max_num_batched_tokens: 64}
"""
STUDY = """\
name: grid
base: base.yaml
axes:
  - {key: engines.vllm.block_size, values: [2, 4, 8]}
  - {key: engines.vllm.num_gpu_blocks_override, values: [40, 80]}
repeats: 2
columns: [vllm.hit_rate, vllm.evicted_tokens]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with base.yaml, study.yaml and rows.jsonl."""
    rows = []
    for i in range(24):
        prefix = list(range(100 * (i % 3), 100 * (i % 3) + 22))
        tokens = prefix + [1000 + i * 10 + j for j in range(6)]
        rows.append({"id": f"r{i}", "arrival": i * 0.5, "step": i, "tokens": tokens, "output_tokens": [7, 8, 9]})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path
