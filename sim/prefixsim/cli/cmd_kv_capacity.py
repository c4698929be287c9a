"""`prefixsim kv-capacity`: how much KV cache fits beside a model."""

from __future__ import annotations

import typer

from prefixsim.cli.complete import gpus, models


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("kv-capacity")(kv_capacity)


def kv_capacity(
    gpu: str = typer.Option(..., "--gpu", autocompletion=gpus, help="GPU profile."),
    model: str = typer.Option(
        ..., "--model", autocompletion=models, help="Model profile, or a Hugging Face config.json."
    ),
    tensor_parallel_size: int = typer.Option(1, "--tp", "--tensor-parallel-size", min=1, help="GPUs a replica."),
    engine: str = typer.Option("vllm", "--engine", help="vllm or sglang."),
    utilization: float | None = typer.Option(
        None, "--gpu-memory-utilization", help="vLLM: share of the GPU's memory it may use. Default: 0.92."
    ),
    static: float | None = typer.Option(
        None, "--mem-fraction-static", help="SGLang: share for weights and KV cache. Default: SGLang's formula."
    ),
    block_size: int | None = typer.Option(None, "--block-size", min=1, help="vLLM, tokens. Default: 16."),
    page_size: int | None = typer.Option(None, "--page-size", min=1, help="SGLang, tokens. Default: 1."),
    max_num_batched_tokens: int | None = typer.Option(None, "--max-num-batched-tokens", min=1, help="vLLM."),
    max_num_seqs: int | None = typer.Option(None, "--max-num-seqs", min=1, help="vLLM."),
    chunked_prefill_size: int | None = typer.Option(None, "--chunked-prefill-size", help="SGLang."),
    layout: str = typer.Option("full", "--layout", help="vLLM, models with sliding-window layers: full or hybrid."),
    dtype: str = typer.Option("auto", "--dtype", "--weights-dtype", help="Weights: auto, bf16, fp32, fp8, fp8_block."),
    kv_dtype: str = typer.Option("auto", "--kv-dtype", "--kv-cache-dtype", help="KV cache: auto, bf16, fp32, fp8."),
    total_gib: float | None = typer.Option(None, "--total-gib", help="Memory the driver reports."),
    weights_gib: float | None = typer.Option(None, "--weights-gib", help="Weights a GPU, measured."),
    activation_gib: float | None = typer.Option(None, "--activation-gib", help="Peak activation, measured."),
    non_torch_gib: float | None = typer.Option(None, "--non-torch-gib", help="Memory outside PyTorch, measured."),
    graphs_gib: float | None = typer.Option(None, "--cuda-graphs-gib", "--graphs-gib", help="CUDA graphs, measured."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """KV cache of one replica: GiB, blocks and tokens a GPU, from the engine's own arithmetic."""
    import json

    from prefixsim.errors import InputError
    from prefixsim.hardware.load import engine_options, hardware_from_options
    from prefixsim.wrap import fitted, wrapped

    memory = {
        "total_gib": total_gib,
        "weights_gib": weights_gib,
        "activation_gib": activation_gib,
        "non_torch_gib": non_torch_gib,
        "cuda_graphs_gib": graphs_gib,
    }
    family = engine.split("@", maxsplit=1)[0]
    mine: dict[str, object] = {
        "gpu_memory_utilization": utilization,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
    }
    mine |= {"max_num_batched_tokens": max_num_batched_tokens, "layout": layout if layout != "full" else None}
    theirs: dict[str, object] = {
        "mem_fraction_static": static,
        "page_size": page_size,
        "chunked_prefill_size": chunked_prefill_size,
    }
    wrong = theirs if family == "vllm" else mine
    for name, value in wrong.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} is not an option of {family}")
    options = engine_options(engine, mine if family == "vllm" else theirs)
    hardware = hardware_from_options(
        gpu, model, tensor_parallel_size, dtype=dtype, kv_cache_dtype=kv_dtype, memory=memory
    )
    found = hardware.kv_capacity(options)
    null = found.block_size if family == "vllm" else 0
    if json_:
        row = found.as_dict() | {"usable_tokens": found.tokens - null}
        head = {"gpu": hardware.gpu.name, "model": hardware.model.name, "engine": options.kind}
        typer.echo(
            json.dumps(
                row | head | {"tensor_parallel_size": tensor_parallel_size, "weights_dtype": hardware.weights_dtype}
            )
        )
        return
    lines = [f"{found.kv_gib:.2f} GiB a GPU: {found.blocks:,} blocks of {found.block_size}, {found.tokens:,} tokens"]
    if null:
        lines.append(f"as vLLM logs it; without its null block requests have {found.tokens - null:,} tokens")
    lines.append(f"{found.bytes_per_token} bytes a token and GPU")
    for name, part in found.components.items():
        lines.append(wrapped(f"{part.kind}: {part.how}", f"  {name:<12} {part.gib:7.2f} GiB  ", " " * 28))
    if found.note:
        lines.append(found.note)
    typer.echo(fitted("\n".join(lines)))
