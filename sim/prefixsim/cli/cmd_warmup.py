"""`prefixsim warmup`: compile every kernel now, so that later runs start at once."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("warmup")(warmup)


def warmup(json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Compiles all kernels into the user's cache (about a minute, once after an installation or update)."""
    import json
    import tempfile
    import time
    from pathlib import Path

    from prefixsim.cli.progress import progress
    from prefixsim.jit import compile_seconds, kernel_cache_dir
    from prefixsim.paths import cache_dir
    from prefixsim.pipeline.warmup import warm

    started = time.perf_counter()
    with progress() as say, compile_seconds() as compiled, tempfile.TemporaryDirectory() as folder:
        warm(Path(folder), say)
    seconds = time.perf_counter() - started
    if json_:
        cache = kernel_cache_dir()
        told = {"seconds": round(seconds, 3), "compile_s": round(compiled(), 3), "cache": cache and str(cache)}
        typer.echo(json.dumps(told))
        return
    where = kernel_cache_dir() or "memory only, there is no folder to keep them in"
    if not isinstance(where, Path) or not where.is_relative_to(cache_dir()):
        where = f"{where} ({cache_dir()} cannot be used: it is not writable, or others can write to it)"
    typer.echo(f"kernels ready in {seconds:.1f} s ({compiled():.1f} s of compiling): {where}")
