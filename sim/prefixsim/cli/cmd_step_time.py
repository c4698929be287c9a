"""`prefixsim step-time`: how long one engine step takes, part by part."""

from __future__ import annotations

from pathlib import Path

import typer

from prefixsim.cli.complete import gpus, models


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("step-time")(step_time)


def step_time(
    gpu: str = typer.Option(..., "--gpu", autocompletion=gpus, help="GPU profile."),
    model: str = typer.Option(
        ..., "--model", autocompletion=models, help="Model profile, or a Hugging Face config.json."
    ),
    tensor_parallel_size: int = typer.Option(1, "--tp", "--tensor-parallel-size", min=1, help="GPUs a replica."),
    engine: str = typer.Option("vllm", "--engine", help="Whose overheads: vllm, sglang, trtllm."),
    dtype: str = typer.Option("auto", "--dtype", "--weights-dtype", help="Weights: auto, bf16, fp8, fp8_block."),
    kv_dtype: str = typer.Option("auto", "--kv-dtype", "--kv-cache-dtype", help="KV cache: auto, bf16, fp8."),
    prefill: list[str] = typer.Option([], "--prefill", help="A request's new tokens and its cached ones: 512@4096."),
    decode: list[str] = typer.Option(
        [], "--decode", help="Sequences and KV tokens of each, the new one included: 64x1024."
    ),
    steps: Path | None = typer.Option(None, "--steps", help="JSON lines, one batch a line.", metavar="FILE.jsonl"),
    json_: bool = typer.Option(False, "--json", help="Print JSON; with --steps one line a batch."),
) -> None:
    """Time of one engine step on a modelled GPU, in µs: total and parts."""
    import json
    from dataclasses import asdict

    from prefixsim.errors import InputError
    from prefixsim.hardware.batches import parse_batch, read_batches
    from prefixsim.hardware.load import hardware_from_options
    from prefixsim.hardware.steptime import StepParts
    from prefixsim.wrap import wrapped

    hardware = hardware_from_options(gpu, model, tensor_parallel_size, dtype=dtype, kv_cache_dtype=kv_dtype)
    costs = hardware.step_costs(engine)
    if steps is not None and (prefill or decode):
        raise InputError("--steps is a file of batches: give it, or --prefill and --decode")
    batches = read_batches(steps) if steps is not None else iter([parse_batch(prefill, decode)])

    def row(parts: StepParts) -> dict[str, float]:
        values = {"total_us": parts.total_us, "layers_us": parts.layers_us, **asdict(parts)}
        return {k: round(v, 3) for k, v in values.items()}

    if not json_:
        typer.echo(
            f"{'step':>4}{'total':>11}{'layers':>10}{'gemm':>10}{'prefill':>10}{'decode':>9}{'allreduce':>10}"
            f"{'lm_head':>8}{'engine':>8}"
        )
    count = 0
    for batch in batches:
        parts = costs.explain(batch.prefill, batch.decode)
        count += 1
        if not json_:
            values = (
                parts.total_us,
                parts.layers_us,
                parts.gemm_us,
                parts.prefill_attention_us,
                parts.decode_attention_us,
                parts.allreduce_us,
            )
            widths = (10, 9, 9, 9, 8, 9)
            cells = "".join(f" {v:{w}.1f}" for v, w in zip(values, widths, strict=True))
            typer.echo(f"{count:4d}{cells} {parts.lm_head_us:7.1f} {parts.engine_us:7.1f}")
        elif steps is not None:
            typer.echo(json.dumps(row(parts)))
        else:
            detail = {
                "gpu": hardware.gpu.name,
                "model": hardware.model.name,
                "tensor_parallel_size": tensor_parallel_size,
            }
            detail |= {"weights_dtype": hardware.weights_dtype, "validity": hardware.validity}
            typer.echo(json.dumps(row(parts) | detail))
    if count == 0:
        raise InputError(f"{steps}: has no batches")
    typer.echo(wrapped(f"Times in us. {hardware.validity}"), err=True)
