"""Kinds of input: profiles, operator tables, studies, baselines."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefixsim.paths import data_dir
from robustness.fuzzing import Kind, bent, broken, rewritten
from robustness.kinds_base import kind, number, put
from robustness.scenarios import SMALL

# ---- hardware ----------------------------------------------------------------------------------------------------


def _profile_use(gpu: Path, model: Path, host: Path) -> None:
    from prefixsim.errors import PrefixsimError
    from prefixsim.hardware.load import Hardware, engine_options, hardware_from_options

    hardware: Hardware = hardware_from_options(str(gpu), str(model), 8, host=str(host))
    hardware.provenance()
    failed = None
    for engine in ("vllm", "sglang"):
        try:
            found = hardware.kv_capacity(engine_options(engine, {}))
            assert found.blocks >= 2
            number(found.kv_gib)
            costs = hardware.step_costs(engine)
            for prefill, decode in (([(512, 0)], []), ([], [(64, 1024)]), ([(1, 4096)], [(3, 7)])):
                parts = costs.explain(prefill, decode)
                number(parts.total_us)
                number(parts.layers_us)
            for value in costs.coef.tolist():
                assert math.isfinite(value)
        except PrefixsimError as exc:
            failed = exc
    if failed is not None:
        raise failed


@kind
def profiles(folder: Path) -> Kind:
    """GPU, model and host profiles."""
    paths = []
    for what, name in (("gpus", "h100-sxm-80g"), ("models", "llama-3.1-8b"), ("hosts", "reference")):
        paths.append(put(folder / f"{name}.yaml", (data_dir("hw_profiles") / what / f"{name}.yaml").read_text()))
    return Kind(tuple((p, rewritten) for p in paths), lambda: _profile_use(*paths))


@kind
def moe_profile(folder: Path) -> Kind:
    """A model with experts and latent attention."""
    gpu, host = (data_dir("hw_profiles") / p for p in ("gpus/h200.yaml", "hosts/reference.yaml"))
    found = next(p for p in sorted((data_dir("hw_profiles") / "models").glob("*.yaml")) if "\nmoe:" in p.read_text())
    model = put(folder / found.name, found.read_text())
    return Kind(((model, rewritten),), lambda: _profile_use(gpu, model, host))


@kind
def model_config(folder: Path) -> Kind:
    """A Hugging Face config.json."""
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
        "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2, "quantization_config": {"quant_method": "fp8"},
        "layer_types": ["full_attention"] * 32, "head_dim": 128, "kv_lora_rank": None, "first_k_dense_replace": 1,
    }  # fmt: skip
    model = put(folder / "config.json", json.dumps(config))
    gpu, host = (data_dir("hw_profiles") / p for p in ("gpus/h200.yaml", "hosts/reference.yaml"))

    def mutate(raw: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return bent(raw, rng)
        from robustness.scenarios import mutated

        return json.dumps(mutated(json.loads(raw), rng)).encode("utf-8", "surrogatepass")

    return Kind(((model, mutate),), lambda: _profile_use(gpu, model, host))


@kind
def batches(folder: Path) -> Kind:
    """`step-time --steps`."""
    from prefixsim.hardware.batches import read_batches
    from prefixsim.hardware.load import hardware_from_options

    rows = [{"prefill": [[512, 0], [1, 4096]], "decode": [[64, 1024]]}, {"decode": [[1, 1]]}, {"prefill": [[7, 0]]}]
    path = put(folder / "steps.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    costs = hardware_from_options("h100-sxm-80g", "llama-3.1-8b", 1).step_costs("vllm")

    def use() -> None:
        for batch in read_batches(path):
            number(costs.explain(batch.prefill, batch.decode).total_us, least=1e-3)

    return Kind(((path, bent),), use)


@kind
def operator_tables(folder: Path) -> Kind:
    """`calibrate --fit`."""
    import gzip

    from prefixsim.hardware.calibrate.fit_profile import fit_profile
    from prefixsim.hardware.calibrate.tables import COLUMNS
    from prefixsim.hardware.calibrate.write import to_yaml
    from prefixsim.hardware.load import load_gpu

    rng = random.Random(1)
    files = []
    for name, (texts, numbers) in COLUMNS.items():
        lines = [",".join([*texts, *numbers])]
        for _ in range(24):
            words = [
                "h100" if t == "gpu" else "bfloat16" if t == "gemm_dtype" else "llama" if t == "model" else "vllm"
                for t in texts
            ]
            heads = rng.choice([1, 8])
            cells = [
                str(
                    {"num_key_value_heads": heads, "n_kv_heads": heads, "num_gpus": rng.choice([2, 4, 8])}.get(
                        c, rng.choice([8, 64, 1024])
                    )
                )
                for c in numbers[:-1]
            ]
            lines.append(",".join([*words, *cells, f"{rng.uniform(5, 500):.3f}"]))
        text = "\n".join(lines) + "\n"
        if name == "gemm":
            path = folder / f"{name}.csv.gz"
            path.write_bytes(gzip.compress(text.encode(), mtime=0))

            def packed(raw: bytes, rng: random.Random) -> bytes:
                return (
                    broken(raw, rng) if rng.random() < 0.5 else gzip.compress(bent(gzip.decompress(raw), rng), mtime=0)
                )

            files.append((path, packed))
        else:
            files.append((put(folder / f"{name}.csv", text), bent))
    base = load_gpu("h100-sxm-80g")

    def use() -> None:
        done = fit_profile(folder, base, table_gpu="h100", date="2026-01-01")
        text = to_yaml(done.profile)
        assert not re.search(r"(value|pct): -?(nan|inf)", text)  # a backend may be called so
        from prefixsim.hardware.load import read_profile

        path = folder / "fitted.yaml"
        path.write_text(text)
        read_profile(path, type(base))

    return Kind(tuple(files), use)


# ---- studies and checks ------------------------------------------------------------------------------------------

SUMMARY: dict[str, Any] = {
    "schema_version": 1, "run_id": "ab" * 32, "name": "small", "ceiling": {"token": 0.6, "16": 0.5}, "ceiling_tokens": {"token": 600},
    "prompt_tokens": 1000, "replicas": 1, "hardware": {"gpu": "h100-sxm-80g", "tensor_parallel_size": 1, "usd_per_replica_hour": 2.0},
    "workload": {"requests": 10, "sessions": 5, "prompt_tokens": 1000, "output_tokens": 100},
    "engines": {
        name: {
            "kind": kind_, "hit_rate": 0.4, "saturated": False, "rejected": 0, "ttft_s": {"p50": 0.1, "p99": 0.2}, "itl_s": {"p99": 0.01},
            "output_tokens_per_s": 100.0, "prompt_tokens_per_s": 1000.0, "prompt_tokens": 1000, "cached_tokens": 400, "kv_usage_peak": 0.5,
            "ledger": {"new": 600, "hit_device": 400}, "duration_s": 10.0, "replicas": [{"capacity_tokens": 3200, "granularity": 16}],
        }
        for name, kind_ in (("v", "vllm@0.33"), ("s", "sglang@0.5.23"))
    },
}  # fmt: skip


class Canned:
    """An executor that runs nothing: every point has the same result."""

    forks = False

    def map(self, task: Any, jobs: Any) -> Iterator[Any]:
        """One outcome a job."""
        from prefixsim.study.executors import Outcome

        for index, _ in enumerate(jobs):
            yield Outcome(index, json.loads(json.dumps(SUMMARY)))


STUDY = """\
name: sizes
description: what
base: small.yaml
set: {workload.turns: 3}
axes:
  - {key: engines.v.block_size, values: [16, 32]}
  - {key: hardware.gpu, values: [h100-sxm-80g, h200]}
  - zip:
      - {key: workload.arrivals.rate_per_s, range: {start: 1, stop: 2, step: 1}}
      - {key: seed, geometric: {start: 1, stop: 4, points: 2}}
exclude:
  - {engines.v.block_size: 32, seed: 4}
repeats: 2
columns: [v.hit_rate, s.ttft_s.p99]
cost: v.output_tokens_per_s
latency: v.ttft_s.p99
"""
PLAN = """\
name: rates
base: small.yaml
find: max_rate
engines: [v, s]
limits:
  - {metric: ttft_s.p99, at_most: 0.5}
  - {metric: v.hit_rate, at_least: 0.1}
rate: [1, 50]
window_s: 20
tolerance: 0.1
repeats: 2
over:
  - {key: hardware.gpu, values: [h100-sxm-80g, h200]}
prices: {h200: {usd_per_hour: 4.0, source: list, date: 2026-01-01}}
compare_without_caching: true
"""


@kind
def sweep_study(folder: Path) -> Kind:
    """`sweep`: the study file; nothing is simulated."""
    import shutil

    from prefixsim.report.study_html import write_study_report
    from prefixsim.scenario.study import StudySpec
    from prefixsim.study.load import load_study
    from prefixsim.study.sweep import run_sweep
    from prefixsim.study.tables import points_table, write_tables

    put(folder / "small.yaml", SMALL)
    path = put(folder / "study.yaml", STUDY)

    def use() -> None:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        result = run_sweep(load_study(path, StudySpec), Canned(), out, max_points=300)
        write_tables(result, out)
        points_table(result)
        write_study_report(out)

    return Kind(((path, rewritten),), use)


@kind
def plan_study(folder: Path) -> Kind:
    """`plan`: the study file; nothing is simulated."""
    import shutil

    from prefixsim.scenario.study import PlanSpec
    from prefixsim.study import plan
    from prefixsim.study.load import load_study
    from prefixsim.study.store import PointStore

    put(folder / "small.yaml", SMALL)
    path = put(folder / "plan.yaml", PLAN)

    def use() -> None:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        plan._TURNS.clear()
        answers = plan.run_plan(load_study(path, PlanSpec), Canned(), PointStore(out))
        assert answers
        json.dumps([a.as_json() for a in answers], allow_nan=False)

    return Kind(((path, rewritten),), use)


@kind
def sweep_folder(folder: Path) -> Kind:
    """`report` of a finished sweep."""
    from prefixsim.report.study_html import write_study_report
    from prefixsim.scenario.study import StudySpec
    from prefixsim.study.load import load_study
    from prefixsim.study.sweep import run_sweep
    from prefixsim.study.tables import write_tables

    put(folder / "small.yaml", SMALL)
    out = folder / "out"
    result = run_sweep(load_study(put(folder / "study.yaml", STUDY), StudySpec), Canned(), out)
    write_tables(result, out)

    def mutate(raw: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return bent(raw, rng)
        from robustness.scenarios import mutated

        lines = [json.loads(line) for line in raw.splitlines()]
        k = rng.randrange(len(lines))
        lines[k] = mutated(lines[k], rng)
        return "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8", "surrogatepass")

    def use() -> None:
        write_study_report(out)

    return Kind(tuple((out / name, mutate) for name in ("study.json", "points.jsonl")), use)


@kind
def baseline(folder: Path) -> Kind:
    """`check --baseline`."""
    from prefixsim.report import checks
    from prefixsim.scenario.expect import Baseline, read_baseline, write_baseline
    from prefixsim.scenario.load import load_scenario
    from prefixsim.study.check import Done, judge

    put(folder / "small.yaml", SMALL)
    scenario = load_scenario(folder / "small.yaml")
    point = {
        "depth_tokens": 10, "kind": "unique", "kind_meaning": "all differ", "lost_tokens": 100, "differing": 3, "branches": 3,
        "piece_tokens": {"median": 4}, "sentence": "at token 10", "groups": [{"name": "a", "lost_tokens": 100}],
    }  # fmt: skip
    done = Done(SUMMARY, [point], 0.1)
    _, entry = judge(str(folder / "small.yaml"), scenario, [done], None)
    path = folder / "b.json"
    write_baseline(path, Baseline(scenarios={"small": entry}))

    def use() -> None:
        result, new = judge(str(folder / "small.yaml"), scenario, [done], read_baseline(path))
        checks.text([result])
        json.dumps(checks.as_dict([result]), allow_nan=False)
        new.model_dump_json()

    return Kind(((path, rewritten),), use)
