"""`prefixsim curve`: hit tokens against capacity, for every capacity at once."""

from __future__ import annotations

from typing import Any

import typer

from prefixsim.cli.complete import gpus, models, scenarios
from prefixsim.errors import InputError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(curve)


def whole_numbers(text: str, option: str, least: int) -> list[int]:
    """ "1,16" -> [1, 16]; underscores and 2e4 are fine. Raises InputError naming the option."""
    out = []
    for part in text.split(","):
        try:
            value = float(part.replace("_", "")) if "e" in part.lower() else int(part)
        except ValueError:
            raise InputError(f"{option}: found {part.strip()!r}, expected whole numbers with commas between") from None
        if value != int(value) or not least <= value <= 1 << 60:
            raise InputError(f"{option}: {part.strip()} is not a whole number from {least} up")
        out.append(int(value))
    return out


def curve(
    source: str = typer.Argument(
        ..., help="A scenario (YAML or shipped name) or a trace.", metavar="SCENARIO|TRACE", autocompletion=scenarios
    ),
    format: str | None = typer.Option(None, "--format", help="Format of a trace; default: by evidence."),
    granularity: str | None = typer.Option(
        None, "--granularity", help="Block sizes in tokens, e.g. 1,16. Default: the engines' own, else 16."
    ),
    capacities: str | None = typer.Option(
        None, "--capacities", help="Capacities in blocks of the granularity, e.g. 2900,20000. Default: the whole curve."
    ),
    policies: str = typer.Option("lru,optimal", "--policies", help="lru, optimal, or both."),
    reuse_outputs: bool = typer.Option(
        True, "--reuse-outputs/--no-reuse-outputs", help="Whether generated tokens are inserted, where they are known."
    ),
    sample: float | None = typer.Option(
        None, "--sample", help="Estimate LRU from this share of the chain ids (SHARDS), e.g. 0.01; the error is stated."
    ),
    simulate: str | None = typer.Option(
        None,
        "--simulate",
        help="Scenarios: run the engines with these cache sizes (tokens a replica) and draw them too.",
    ),
    gpu: str | None = typer.Option(
        None, "--gpu", autocompletion=gpus, help="GPU profile, to state capacities in GiB and GPUs."
    ),
    model: str | None = typer.Option(
        None, "--model", autocompletion=models, help="Model profile, to state capacities in GiB."
    ),
    tensor_parallel_size: int = typer.Option(1, "--tensor-parallel-size", min=1, help="GPUs that share the model."),
    set_: list[str] = typer.Option([], "--set", help="KEY=VALUE: a key of the scenario, or of a trace section."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Hit tokens of an ideal cache at every capacity: exact LRU, and the optimum no cache can beat.

    Lookups one after another in arrival order; numerator and denominator in prompt tokens.
    """
    import json

    from prefixsim.analysis.curve_report import curve_entry, curve_text, sampled_entry
    from prefixsim.analysis.curves import POLICIES, curves, spaced
    from prefixsim.analysis.inputs import load_input
    from prefixsim.analysis.memory import cache_memory
    from prefixsim.analysis.sampled import sampled_curve
    from prefixsim.errors import nearest

    wanted = [p.strip() for p in policies.split(",")]
    for policy in wanted:
        if policy not in POLICIES:
            raise InputError(f"--policies: unknown policy {policy!r}{nearest(policy, POLICIES)}")
    blocks = whole_numbers(granularity, "--granularity", 1) if granularity is not None else None
    points = whole_numbers(capacities, "--capacities", 0) if capacities is not None else None
    loaded = load_input(source, format=format, settings=set_)
    workload = loaded.workload
    if loaded.notice:
        typer.echo(loaded.notice, err=True)
    if blocks is None:
        blocks = sorted(set(loaded.granularities.values())) or [max(16, workload.source.block_tokens)]
    blocks = list(dict.fromkeys(blocks))
    drawn: list[dict[str, Any]] = []
    if simulate is not None:
        from prefixsim.cli.progress import progress
        from prefixsim.study.curve_points import simulated_points

        with progress(quiet=quiet) as say:
            drawn = simulated_points(loaded, whole_numbers(simulate, "--simulate", 1), say)
    memory = cache_memory(loaded.scenario, gpu, model, tensor_parallel_size)
    result: dict[str, object] = {
        "source": loaded.path,
        "requests": workload.n,
        "prompt_tokens": int(workload.prompt_tokens.sum()),
        "reuse_outputs": reuse_outputs,
    }
    if memory is not None:
        result["kv_bytes_per_token"] = memory.bytes_per_token
    if sample is not None:
        if not 0 < sample <= 1:
            raise InputError(f"--sample: {sample} is not a share above 0 and at most 1")
        where = points if points is not None else spaced(int(workload.prompt_tokens.sum()) // min(blocks) + 1).tolist()
        estimated = [
            sampled_curve(workload, g, where, rate=sample, reuse_outputs=reuse_outputs, rule=loaded.rule)
            for g in blocks
        ]
        result["curves"] = [sampled_entry(c) for c in estimated]
        if not json_:
            for c in estimated:
                typer.echo(
                    f"blocks of {c.granularity} token{'s' if c.granularity > 1 else ''}, LRU estimated from {c.sampled_ids:,} of {c.n_chains:,} chain ids:"
                )
                for at, hits, error in zip(c.capacity, c.hit_tokens, c.standard_error_tokens, strict=True):
                    share = 100 / max(c.prompt_tokens, 1)
                    typer.echo(f"  {at:>14,}  {hits * share:6.2f} % +- {error * share:.2f} (standard error)")
    else:
        found = curves(
            workload,
            blocks,
            wanted,  # type: ignore[arg-type]
            reuse_outputs=reuse_outputs,
            rule=loaded.rule,
            optimal_capacities=points,
        )
        per_token = memory.bytes_per_token if memory is not None else None
        gib = memory.kv_gib_per_gpu if memory is not None else None
        result["curves"] = [curve_entry(c, points, per_token, gib) for c in found]
        if simulate is not None:
            result["simulated"] = drawn
        if not json_:
            typer.echo(f"{loaded.name}: {workload.n:,} requests, {result['prompt_tokens']:,} prompt tokens")
            typer.echo(curve_text(found, points, bytes_per_token=per_token, gib_per_gpu=gib, simulated=drawn))
    if json_:
        typer.echo(json.dumps(result))
