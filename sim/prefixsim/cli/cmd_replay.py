"""`prefixsim replay`: cache or scheduler semantics alone, request by request, as in the golden cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prefixsim.wrap import fitted

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = ("vllm", "sglang")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(replay)


def replay(
    trace: Path | None = typer.Argument(None, metavar="[TRACE.jsonl]", help="Native token rows; arrivals by `step`."),
    cases: Path | None = typer.Option(
        None, "--cases", help="Replay inline cases instead, one a line ({engine, config, requests}), in one process."
    ),
    engine: str | None = typer.Option(None, "--engine", help="vllm or sglang."),
    mode: str | None = typer.Option(
        None, "--mode", help="sequential: one request at a time; scheduler; overlap (sglang). Default: sequential."
    ),
    block_size: int | None = typer.Option(None, help="vllm: tokens a block (default 16)."),
    num_gpu_blocks: int | None = typer.Option(None, help="vllm: blocks in the pool, the null block included."),
    max_num_seqs: int | None = typer.Option(None, help="vllm: running requests at most (default 256)."),
    max_num_batched_tokens: int | None = typer.Option(None, help="vllm: tokens a step (default 2048)."),
    async_scheduling: bool | None = typer.Option(
        None,
        "--async-scheduling/--no-async-scheduling",
        help="vllm: two steps in flight. Default here: no, as in the golden cases; `run` takes the engine's own, yes.",
    ),
    watermark: float | None = typer.Option(None, help="vllm: share of the pool kept free at admission (default 0)."),
    reserve_full_isl: bool | None = typer.Option(
        None, "--reserve-full-isl/--no-reserve-full-isl", help="vllm: the whole prompt must fit (default yes)."
    ),
    chunked_prefill: bool | None = typer.Option(
        None, "--chunked-prefill/--no-chunked-prefill", help="vllm: prompts may be cut into chunks (default yes)."
    ),
    long_prefill_token_threshold: int | None = typer.Option(None, help="vllm: tokens a chunk at most (0: no limit)."),
    scheduling_policy: str | None = typer.Option(None, help="vllm: fcfs (default) or priority."),
    prefix_caching: bool | None = typer.Option(
        None, "--enable-prefix-caching/--no-enable-prefix-caching", help="vllm: the cache itself (default yes)."
    ),
    max_model_len: int | None = typer.Option(None, help="vllm: prompt and outputs of one request at most."),
    layout: str | None = typer.Option(None, help="vllm: full (default), swa or hybrid."),
    sliding_window: int | None = typer.Option(None, help="vllm: window in tokens, for swa and hybrid."),
    prefix_cache_retention_interval: int | None = typer.Option(None, help="vllm: for swa and hybrid; -1: none."),
    page_size: int | None = typer.Option(None, help="sglang: tokens a page (default 1)."),
    max_total_tokens: int | None = typer.Option(None, help="sglang: tokens in the pool."),
    radix_eviction_policy: str | None = typer.Option(
        None, help="sglang: lru (default), lfu, fifo, mru, filo, priority, slru or tlru."
    ),
    radix_eviction_policy_config: str | None = typer.Option(None, help="sglang: JSON, parameters of slru and tlru."),
    schedule_policy: str | None = typer.Option(
        None, help="sglang: fcfs, lpm, dfs-weight, lof, hrrn or shortest-prefill-first."
    ),
    schedule_conservativeness: float | None = typer.Option(None, help="sglang: (default 1)."),
    max_running_requests: int | None = typer.Option(None, help="sglang: running requests at most."),
    chunked_prefill_size: int | None = typer.Option(None, help="sglang: tokens a chunk at most (-1: no chunks)."),
    max_prefill_tokens: int | None = typer.Option(None, help="sglang: prefill tokens a batch at most."),
    overlap_schedule: bool | None = typer.Option(
        None, "--overlap-schedule/--no-overlap-schedule", help="sglang: results are processed one iteration late."
    ),
    width: int | None = typer.Option(None, help="sglang, mode overlap: requests in the window."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Replay cache or scheduler semantics alone, request by request, in steps instead of time."""
    from prefixsim.errors import InputError, nearest

    if cases is not None:
        if trace is not None or engine is not None:
            raise InputError("--cases: engine and options come from each case; leave TRACE and --engine out")
        for name, result in _replay_cases(cases):
            typer.echo(_json(result) if json_ else fitted(_summary(name, result)))
        return
    if trace is None:
        raise InputError("replay needs a TRACE.jsonl, or --cases FILE.jsonl")
    if engine is None:
        raise InputError("replay needs --engine vllm or --engine sglang")
    if engine not in ENGINES:
        raise InputError(f"--engine: found '{engine}'{nearest(engine, ENGINES)}")
    both = {"mode": mode or "sequential"}
    vllm = {
        "block_size": block_size,
        "num_gpu_blocks": num_gpu_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "async_scheduling": async_scheduling,
        "watermark": watermark,
        "scheduler_reserve_full_isl": reserve_full_isl,
        "enable_chunked_prefill": chunked_prefill,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "policy": scheduling_policy,
        "enable_prefix_caching": prefix_caching,
        "max_model_len": max_model_len,
        "layout": layout,
        "sliding_window": sliding_window,
        "prefix_cache_retention_interval": prefix_cache_retention_interval,
    }
    sglang = {
        "page_size": page_size,
        "max_total_tokens": max_total_tokens,
        "radix_eviction_policy": radix_eviction_policy,
        "radix_eviction_policy_config": _object(radix_eviction_policy_config),
        "schedule_policy": schedule_policy,
        "schedule_conservativeness": schedule_conservativeness,
        "max_running_requests": max_running_requests,
        "chunked_prefill_size": chunked_prefill_size,
        "max_prefill_tokens": max_prefill_tokens,
        "overlap_schedule": overlap_schedule,
        "width": width,
    }
    own, other = (vllm, sglang) if engine == "vllm" else (sglang, vllm)
    strange = sorted(key for key, value in other.items() if value is not None)
    if strange:
        raise InputError(f"--{strange[0].replace('_', '-')}: not an option of {engine}")
    if engine == "vllm":
        own["block_size"] = 16 if block_size is None else block_size
        _need(own, "num_gpu_blocks", "--num-gpu-blocks")
    else:
        own["page_size"] = 1 if page_size is None else page_size
        _need(own, "max_total_tokens", "--max-total-tokens")
    config = both | {key: value for key, value in own.items() if value is not None}
    result = _engine_replay(engine)(trace, config)
    typer.echo(_json(result) if json_ else fitted(_summary(str(trace), result)))


def _need(options: dict[str, Any], key: str, option: str) -> None:
    from prefixsim.errors import InputError

    if options[key] is None:
        raise InputError(f"replay needs {option}")


def _engine_replay(engine: str) -> Any:
    import importlib

    return importlib.import_module(f"prefixsim.engines.{engine}.replay").replay


def _object(text: str | None) -> dict[str, Any] | None:
    import json

    from prefixsim.errors import InputError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"--radix-eviction-policy-config: found {text[:60]!r}, expected a JSON object")
    return value


def _replay_cases(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, result) of each case; a case that is wrong is an error with its line."""
    import json

    from prefixsim.errors import InputError, Problem, TraceError, nearest
    from prefixsim.paths import open_text

    with open_text(path, errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue

            def wrong(message: str, key: str | None = None, number: int = number) -> TraceError:
                return TraceError(Problem(message, file=str(path), line=number, key=key))

            try:
                case = json.loads(line, parse_constant=_refused)
            except (ValueError, RecursionError) as exc:
                raise wrong(f"not JSON: {exc}") from None
            if not isinstance(case, dict):
                raise wrong("a case is a JSON object with engine, config and requests")
            engine, config, rows = case.get("engine"), case.get("config"), case.get("requests")
            if engine not in ENGINES:
                raise wrong(f"found {engine!r}{nearest(str(engine), ENGINES)}", "engine")
            if not isinstance(config, dict):
                raise wrong("expected an object of options", "config")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise wrong("expected a list of native rows", "requests")
            try:
                result = _engine_replay(engine)(rows, config)
            except InputError as exc:
                raise TraceError(
                    [Problem(p.message, file=str(path), line=number, key=p.key) for p in exc.problems]
                ) from None
            yield f"case {case.get('seed', number)}", result


def _refused(constant: str) -> None:
    raise ValueError(f"found {constant}, which is no number")


def _json(result: dict[str, Any]) -> str:
    import json

    return json.dumps(result, separators=(",", ":"))


def _summary(name: str, result: dict[str, Any]) -> str:
    requests = result["requests"]
    prompt = sum(row.get("prompt_tokens") or 0 for row in requests)
    cached = result.get("cached_tokens") or 0
    parts = [f"{name}: {len(requests)} requests, cached {cached:,} of {prompt:,} prompt tokens"]
    if prompt:
        parts.append(f"({100 * cached / prompt:.2f} %)")
    for key in ("evicted_blocks", "evicted_tokens", "preemptions", "unfinished", "retracted"):
        if isinstance(result.get(key), int):
            parts.append(f", {key.replace('_', ' ')} {result[key]:,}")
    return parts[0] + "".join(p if p.startswith(",") else " " + p for p in parts[1:])
