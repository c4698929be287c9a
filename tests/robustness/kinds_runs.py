"""Kinds of input: scenarios that are run, saved caches, run folders, servers' metrics, traces, tokenizers, replays."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from robustness.fuzzing import Kind, bent, broken, rewritten
from robustness.kinds_base import kind, put, sound_summary
from robustness.scenarios import SMALL

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
