"""Every kind of file a person gives the program, as small good files and the function that the command calls on them."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prefixsim.paths import data_dir
from robustness.fuzzing import Kind, bent, broken, rewritten
from robustness.scenarios import SMALL

CASES: dict[str, Callable[[Path], Kind]] = {}


def kind(make: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
    """Registers a kind under its function's name."""
    CASES[make.__name__] = make
    return make


def put(path: Path, text: str) -> Path:
    """Writes a text file."""
    path.write_text(text, encoding="utf-8")
    return path


def number(value: Any, least: float = 0.0) -> None:
    """Asserts a finite number from `least` up."""
    assert isinstance(value, int | float), value
    assert math.isfinite(value), value
    assert value >= least, value


def sound_summary(summary: dict[str, Any]) -> None:
    """Asserts what no run can break: finite times, shares between 0 and 1, ledgers that sum up to the prompt tokens."""
    for name, part in summary["engines"].items():
        if part["hit_rate"] is not None:
            assert 0 <= part["hit_rate"] <= 1, name
        assert part["cached_tokens"] is None or 0 <= part["cached_tokens"] <= part["prompt_tokens"], name
        if part.get("ledger"):
            assert sum(part["ledger"].values()) == part["prompt_tokens"], name
            assert min(part["ledger"].values()) >= 0, name
        for metric in ("ttft_s", "e2e_s", "itl_s"):
            for q, value in (part.get(metric) or {}).items():
                if value is not None and q != "n":
                    number(value)
    json.dumps(summary, allow_nan=False, default=str)


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
        assert not re.search(r"\b(nan|inf)\b", text)
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


# ---- runs --------------------------------------------------------------------------------------------------------


@kind
def small_run(folder: Path) -> Kind:
    """A small scenario, run."""
    import prefixsim as ps

    path = put(folder / "s.yaml", SMALL)

    def use() -> None:
        sound_summary(ps.run(ps.load_scenario(path)).summary)

    return Kind(((path, rewritten),), use)


ODD = [0, 1, 2, 3, 7, 1000, 1 << 20, 1 << 31, 1 << 40, 0.0, 1e-9, 1e-3, 0.5, 0.999, 1.0, 1.5, 1e3, 1e6, 1e9]
SIZES = ("requests", "replicas")
"""Keys that say how long a run takes."""
UNSET = [
    *((0, k) for k in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")),
    *((1, k) for k in ("max_running_requests", "chunked_prefill_size", "context_length")),
]
"""Numbers of the two engines that are not set by default."""


@kind
def odd_run(folder: Path) -> Kind:
    """A small scenario with every default written out and one to three numbers at the ends of what they may be, run."""
    import yaml

    import prefixsim as ps
    from prefixsim.scenario.identity import resolved
    from robustness.scenarios import places

    path = put(folder / "s.yaml", SMALL)
    path.write_text(yaml.safe_dump(resolved(ps.load_scenario(path)) | {"expect": []}))

    def mutate(raw: bytes, rng: random.Random) -> bytes:
        data = yaml.safe_load(raw)

        def at(place: tuple[Any, ...]) -> Any:
            here = data
            for key in place:
                here = here[key]
            return here

        numbers = [p for p in places(data) if type(at(p)) in (int, float) and p[-1] not in SIZES]
        for place in rng.sample(numbers, rng.randint(1, 3)):
            old = at(place)
            at(place[:-1])[place[-1]] = rng.choice([v for v in ODD if isinstance(old, float) or isinstance(v, int)])
        if rng.random() < 0.6:
            engine, key = rng.choice(UNSET)
            data["engines"][engine][key] = rng.choice([v for v in ODD if isinstance(v, int)])
        if rng.random() < 0.3:
            switches = [p for p in places(data) if type(at(p)) is bool]
            place = rng.choice(switches)
            at(place[:-1])[place[-1]] = not at(place)
        return yaml.safe_dump(data).encode()

    def use() -> None:
        sound_summary(ps.run(ps.load_scenario(path)).summary)

    return Kind(((path, mutate),), use)


@kind
def router(folder: Path) -> Kind:
    """Options of routers, run on three replicas."""
    import yaml

    import prefixsim as ps
    from prefixsim.scenario.router import ROUTERS
    from robustness.scenarios import mutated

    base = yaml.safe_load(SMALL) | {"replicas": 3}
    path = put(folder / "s.yaml", yaml.safe_dump(base))
    defaults = {k: {n: f.default for n, f in c.model_fields.items()} for k, c in ROUTERS.items()}

    def mutate(raw: bytes, rng: random.Random) -> bytes:
        data = yaml.safe_load(raw)
        data["router"] = mutated(defaults[rng.choice(sorted(defaults))], rng)
        return yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")

    def use() -> None:
        sound_summary(ps.run(ps.load_scenario(path)).summary)

    return Kind(((path, mutate),), use)


def native_rows(n: int = 20) -> list[dict[str, Any]]:
    """Native token rows that share prefixes."""
    rng = random.Random(5)
    out: list[dict[str, Any]] = []
    for i in range(n):
        tokens = [1000 + k for k in range(rng.choice([20, 40]))] + [
            rng.randrange(9000) for _ in range(rng.randint(1, 20))
        ]
        row = {
            "id": f"r{i}",
            "step": i,
            "arrival": i / 10,
            "tokens": tokens,
            "output_tokens": [rng.randrange(9) for _ in range(3)],
        }
        out.append(row | ({"cache_salt": "t"} if i % 7 == 5 else {}) | ({"priority": i % 3}))
    return out


@kind
def saved_cache(folder: Path) -> Kind:
    """`prime: {saved: FILE}`."""
    import prefixsim as ps
    from robustness.driving import prefixsim

    put(folder / "t.jsonl", "".join(json.dumps(r) + "\n" for r in native_rows()))
    text = """\
name: warm
workload: {trace: {path: t.jsonl, cache: false}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {kind: vllm, name: v, num_gpu_blocks_override: 60}
"""
    cold = put(folder / "cold.yaml", text)
    done = prefixsim(
        "run", cold, "--save-cache", folder / "kept.cache", "--out", folder / "cold", "--quiet", seconds=600
    )
    assert done.code == 0, done.err
    warm = put(folder / "warm.yaml", text + "prime: {saved: kept.cache}\n")

    def use() -> None:
        sound_summary(ps.run(ps.load_scenario(warm)).summary)

    return Kind(((folder / "kept.cache", bent),), use)


# ---- run folders -------------------------------------------------------------------------------------------------


def _read_all(folder: Path) -> None:
    from prefixsim.report.compare_runs import compare_engines, engine_pairs, in_words
    from prefixsim.report.export import export
    from prefixsim.report.folder import open_run
    from prefixsim.report.html import render

    run, good = open_run(folder), open_run(folder.parent / "good")
    assert "<h1>" in render(run)
    for form in ("prometheus", "openmetrics", "chrome-trace", "csv"):
        export(run, form, folder.parent / "out")
    for left, right in engine_pairs(good, run, []):
        in_words(compare_engines(good, run, left, right))


def _run_folder(folder: Path, form: str) -> Kind:
    import shutil

    from prefixsim.report.export import export
    from prefixsim.report.folder import open_run
    from robustness.driving import prefixsim

    put(folder / "s.yaml", SMALL + f"output: {{requests: {'npz' if form == 'npz' else 'csv'}}}\n")
    good, place = folder / "good", folder / "place"
    done = prefixsim("run", folder / "s.yaml", "--out", good, "--quiet", seconds=600)
    assert done.code == 0, done.err
    shutil.copytree(good, place)
    if form == "parquet":
        run = open_run(good)
        for table in sorted(place.glob("*.csv")):
            export(run, "parquet", place / f"{table.stem}.parquet", table=table.stem)
            table.unlink()
    files: list[tuple[Path, Any]] = []
    for path in sorted(place.iterdir()):
        if path.suffix in (".npz", ".parquet"):
            files.append((path, broken))
        elif form == "csv" and path.suffix != ".html":
            files.append((path, rewritten if path.suffix == ".json" else bent))
    return Kind(tuple(files), lambda: _read_all(place))


@kind
def run_folder(folder: Path) -> Kind:
    """`report`, `export`, `compare` of a run with CSV tables."""
    return _run_folder(folder, "csv")


@kind
def run_folder_npz(folder: Path) -> Kind:
    """The same with NumPy tables."""
    return _run_folder(folder, "npz")


@kind
def run_folder_parquet(folder: Path) -> Kind:
    """The same with Parquet tables."""
    return _run_folder(folder, "parquet")


@kind
def server_metrics(folder: Path) -> Kind:
    """`compare-metrics` with a scrape and logs."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
    from run_folders import write_run

    from prefixsim.report.compare_metrics import compare
    from prefixsim.report.export import export
    from prefixsim.report.folder import open_run
    from prefixsim.report.terminal import print_comparison

    run = open_run(write_run(folder / "run", n=12))
    scrape, before = folder / "m.txt", folder / "before.txt"
    export(run, "prometheus", scrape, engines=["vllm"])
    before.write_bytes(scrape.read_bytes())
    rows = [
        {"id": f"r{i}", "usage": {"prompt_tokens": 900 + i, "prompt_tokens_details": {"cached_tokens": 16 * i}}}
        for i in range(12)
    ]
    log = put(folder / "log.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    table = put(
        folder / "log.csv",
        "id,prompt_tokens,cached_tokens\n" + "".join(f"r{i},{900 + i},{16 * i}\n" for i in range(12)),
    )

    def use() -> None:
        import io

        for path, earlier in ((scrape, before), (scrape, None), (log, None), (table, None)):
            found = compare(run, path, engine="vllm", before=earlier)
            json.dumps(found.as_dict(), allow_nan=False)
            print_comparison(found, file=io.StringIO())
            for what, real, simulated, share in found.rows:
                for value in (real, simulated):
                    if value is not None:
                        assert math.isfinite(value), (what, value)
                        assert not share or 0 <= value <= 1, (what, value)

    return Kind(tuple((p, bent) for p in (scrape, before, log, table)), use)


# ---- traces and texts --------------------------------------------------------------------------------------------


def _packed_trace(folder: Path, ending: str) -> Kind:
    import gzip

    from prefixsim.scenario.workload import Trace
    from prefixsim.workload.cache import check
    from prefixsim.workload.load import load_trace

    text = "".join(json.dumps(r) + "\n" for r in native_rows(40)).encode()
    path = folder / f"t.jsonl.{ending}"
    if ending == "gz":
        path.write_bytes(gzip.compress(text, mtime=0))
    else:
        import zstandard

        path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text))
    right = load_trace(Trace(path=str(path), cache=False))

    def use() -> None:
        w = load_trace(Trace(path=str(path), cache=False))
        check(w)
        assert w.n == right.n  # what a checksum guards does not change without a word

    return Kind(((path, broken),), use)


@kind
def gzip_trace(folder: Path) -> Kind:
    """A compressed trace."""
    return _packed_trace(folder, "gz")


@kind
def zstd_trace(folder: Path) -> Kind:
    """A compressed trace."""
    return _packed_trace(folder, "zst")


@kind
def tokenizers(folder: Path) -> Kind:
    """Tokenizer files."""
    import base64

    from prefixsim.workload.text.tokenizers import load

    ranks = "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256))
    ranks += "".join(
        f"{base64.b64encode(w).decode()} {256 + i}\n" for i, w in enumerate((b"he", b"ll", b"hell", b"lo", b" w"))
    )
    tik = put(folder / "ranks.tiktoken", ranks)
    vocab = {chr(c): i for i, c in enumerate(range(32, 127))} | {"he": 95, "ll": 96, "[UNK]": 97}
    fast = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "NFC"}, "post_processor": None,
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": ["h e", "l l"]},
    }  # fmt: skip
    hug = put(folder / "tokenizer.json", json.dumps(fast))

    def use() -> None:
        for name in (f"tiktoken:{tik}", f"tokenizers:{hug}"):
            ids = load(name, folder).encode("hello world, one 123 é")
            assert all(isinstance(i, int) and 0 <= i < 1 << 31 for i in ids), ids

    return Kind(((tik, bent), (hug, rewritten)), use)


# ---- replay ------------------------------------------------------------------------------------------------------

REPLAYS: list[tuple[str, dict[str, Any]]] = [
    ("vllm", {"mode": "sequential", "block_size": 4, "num_gpu_blocks": 60}),
    ("vllm", {"mode": "scheduler", "block_size": 4, "num_gpu_blocks": 60, "max_steps": 3000}),
    ("vllm", {"layout": "hybrid", "sliding_window": 8, "mode": "sequential", "block_size": 4, "num_gpu_blocks": 90}),
    ("vllm", {"layout": "swa", "sliding_window": 8, "mode": "scheduler", "block_size": 4, "num_gpu_blocks": 90, "max_steps": 3000}),
    ("sglang", {"mode": "sequential", "page_size": 1, "max_total_tokens": 300}),
    ("sglang", {"mode": "scheduler", "page_size": 4, "max_total_tokens": 400}),
]  # fmt: skip


@kind
def replay_rows(folder: Path) -> Kind:
    """`replay TRACE`."""
    import importlib

    path = put(folder / "rows.jsonl", "".join(json.dumps(r) + "\n" for r in native_rows(12)))
    for engine, config in REPLAYS:  # compiled here, not within a deadline
        importlib.import_module(f"prefixsim.engines.{engine}.replay").replay(path, dict(config))
    turn = iter(range(1 << 40))

    def use() -> None:
        engine, config = REPLAYS[next(turn) % len(REPLAYS)]
        result = importlib.import_module(f"prefixsim.engines.{engine}.replay").replay(path, dict(config))
        json.dumps(result, allow_nan=False)
        for row in result["requests"]:
            if row.get("cached_tokens") is not None:
                assert 0 <= row["cached_tokens"] <= row["prompt_tokens"]

    return Kind(((path, bent),), use)


@kind
def replay_cases(folder: Path) -> Kind:
    """`replay --cases`."""
    import importlib

    from prefixsim.cli.cmd_replay import _replay_cases
    from robustness.scenarios import mutated

    cases = [{"engine": e, "config": c, "requests": native_rows(6)} for e, c in REPLAYS]
    for engine, config in REPLAYS:  # compiled here, not within a deadline
        importlib.import_module(f"prefixsim.engines.{engine}.replay").replay(native_rows(6), dict(config))
    path = put(folder / "cases.jsonl", "".join(json.dumps(c) + "\n" for c in cases))

    def mutate(raw: bytes, rng: random.Random) -> bytes:
        line = rng.choice(raw.splitlines())
        if rng.random() < 0.5:
            return bent(line, rng)
        return json.dumps(mutated(json.loads(line), rng)).encode("utf-8", "surrogatepass")

    def use() -> None:
        for _, result in _replay_cases(path):
            json.dumps(result, allow_nan=False)

    return Kind(((path, mutate),), use)
