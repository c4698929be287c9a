"""A small scenario, and generated mutations of the shipped ones."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import yaml

from prefixsim.paths import data_dir

SMALL = """\
name: small
seed: 1
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {kind: vllm, name: v, num_gpu_blocks_override: 200}
  - {kind: sglang, name: s, max_total_tokens: 3000, page_size: 1}
workload:
  generator: sessions
  requests: 30
  arrivals: {process: poisson, rate_per_s: 20}
  turns: 2
  output_tokens: 20
  think_time_s: 1
  templates:
    - {name: a, segments: [{shared: sys, tokens: 200}, {unique: q, tokens: 50}]}
expect:
  - {metric: v.hit_rate, at_least: 0.1}
"""

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, float("inf"), float("nan"), 10**30, 2**63, 2**31, -(2**63), "", "x", "\x00",
    "a\x1b[31m", "<script>", "../..", "/dev/zero", "\u00e9" * 50, "y" * 5000, [], {}, [[]], [1], ["a"], {"a": 1}, {"": 1}, [{}],
    [None], {"kind": "vllm"}, {"constant": -1}, {"uniform": {"low": 3, "high": 1}}, "1e999", ".inf", "0x10",
]  # fmt: skip
KEYS = ["foo", "x\x07", 1, None, True, "kind", "name", "trace", "generator", "mix", "also"]


def shipped() -> list[Any]:
    """The shipped scenarios as plain data."""
    return [yaml.safe_load(p.read_text(encoding="utf-8")) for p in sorted(data_dir("scenarios").glob("*.yaml"))]


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key path in the data, the empty one included."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(p for key, value in below for p in places(value, (*path, key)))]


def mutated(data: Any, rng: random.Random) -> Any:
    """A copy with one or two values replaced by hostile ones, left out, or added."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 2)):
        path = rng.choice(places(data))
        value = copy.deepcopy(rng.choice(HOSTILE))
        if not path:
            data = value if rng.random() < 0.1 else data
            continue
        above = data
        for key in path[:-1]:
            above = above[key]
        kind = rng.random()
        if kind < 0.8:
            above[path[-1]] = value
        elif kind < 0.9:
            del above[path[-1]]
        elif isinstance(above, dict):
            above[rng.choice(KEYS)] = value
    return data


def put(data: Any, key: str, value: Any) -> None:
    """Sets "engines.0.block_size" and the like in scenario data."""
    *above, last = [int(k) if k.isdecimal() else k for k in key.split(".")]
    for part in above:
        data = data[part]
    data[last] = value


def write(path: Path, data: Any) -> Path:
    """The data as a YAML file."""
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return path
