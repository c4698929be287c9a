"""Compiles kernels by using them: tiny runs that between them take every path a user's first run takes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

from prefixsim.paths import write_whole
from prefixsim.scenario import strict_yaml
from prefixsim.scenario.load import load_scenario, scenario_from
from prefixsim.scenario.models import Scenario

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
    from prefixsim.jit import kernel_cache_dir
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
    many = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if many > 1 and kernel_cache_dir() is not None:
        start = multiprocessing.get_context("spawn").Process
        helper = start(target=_compile_sglang, args=(folder, texts[0]), daemon=True)
        helper.start()  # both processes put what they compile in the same folder, and find there what the other one has
        say("warmup: vLLM, and SGLang beside it")
        _simulate(folder, texts[0], "vllm")
        helper.join()
    for i, text in enumerate(texts):
        say(f"warmup {i + 1} of {len(texts)}")
        run_scenario(_scenario(folder, text), write=True, out=folder / f"run{i}")
    say("warmup: quickstart")
    run_scenario(load_scenario("quickstart", {"output.report": False}), write=True, out=folder / "quickstart")


def _scenario(folder: Path, text: str) -> Scenario:
    return scenario_from(strict_yaml.parse(text, "warmup"), folder, {"output.report": False})


def _simulate(folder: Path, text: str, engine: str) -> None:
    """One engine alone, without analysis."""
    from prefixsim.pipeline.prepare import prepare, replica_hardware
    from prefixsim.pipeline.simulate import simulate

    scenario = _scenario(folder, text)
    options = next(e for e in scenario.engines if e.name == engine)
    simulate(scenario, options, prepare(scenario), replica_hardware(scenario))


def _compile_sglang(folder: Path, text: str) -> None:
    """In a second process. Ctrl-C is for the first one, which ends this one; what fails here the first one does itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Exception):
        _simulate(folder, text, "sglang")
