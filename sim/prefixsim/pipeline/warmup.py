"""Compiles kernels by using them: tiny runs that between them take every path a user's first run takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from prefixsim.paths import write_whole
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import load_scenario, scenario_from

GENERATED = """
name: warmup
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 200}
  requests: 3_000
  turns: 2
  output_tokens: 4
  templates:
    - {name: t, segments: [{shared: system, tokens: 64}, {unique: user, tokens: 20}]}
"""
FLEET = """
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: vllm, kind: vllm, num_gpu_blocks_override: 64}
  - {name: sglang, kind: sglang, page_size: 1, max_total_tokens: 1024}
"""


def warm(folder: Path, say: Callable[[str], None]) -> None:
    """Runs the tiny scenarios; files go to `folder`."""
    from prefixsim.pipeline.run import run_scenario

    rows = [{"id": f"r{i}", "arrival": i / 10, "tokens": [*range(40), i], "output_tokens": [i, 1, 2]} for i in range(8)]
    write_whole(folder / "native.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    blocks = [
        {"timestamp": 100 * i, "input_length": 1000, "output_length": 3, "hash_ids": [0, i + 1]} for i in range(8)
    ]
    write_whole(folder / "mooncake.jsonl", "".join(json.dumps(row) + "\n" for row in blocks))
    texts = [GENERATED + FLEET]
    texts += [f"{GENERATED}{FLEET}replicas: 2\nrouter: {name}\n" for name in ("cache_aware", "oracle")]
    texts += [
        f"name: warmup\nworkload: {{trace: {{path: {name}.jsonl, format: {name}, cache: false}}}}\n{FLEET}oversized: reject\n"
        for name in ("native", "mooncake")
    ]
    for i, text in enumerate(texts):
        say(f"warmup {i + 1} of {len(texts)}")
        scenario = scenario_from(strict_yaml.parse(text, "warmup"), folder, {"output.report": False})
        run_scenario(scenario, write=True, out=folder / f"run{i}")
    say("warmup: quickstart")
    run_scenario(load_scenario("quickstart", {"output.report": False}), write=True, out=folder / "quickstart")
