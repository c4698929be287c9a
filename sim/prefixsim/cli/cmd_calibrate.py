"""`prefixsim calibrate`: make a hardware profile, by measuring or from operator tables."""

from __future__ import annotations

from pathlib import Path

import typer

from prefixsim.cli.complete import gpus
from prefixsim.errors import InputError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(calibrate)


def calibrate(
    fit: Path | None = typer.Option(
        None, "--fit", help="Fit operator tables (CSV) in this folder instead of measuring.", metavar="FOLDER"
    ),
    gpu: str | None = typer.Option(
        None,
        "--gpu",
        autocompletion=gpus,
        help="Profile that gives the datasheet part (measuring: default by the device's name).",
    ),
    table_gpu: str | None = typer.Option(None, "--table-gpu", help="Name of the GPU in the tables. Default: by --gpu."),
    source: str = typer.Option("", "--source", help="Who made the tables; goes into every fitted number's source."),
    name: str | None = typer.Option(
        None, "--name", help="Name of the new profile. Default: that of --out's file, else the base profile's."
    ),
    out: Path = typer.Option(
        Path("hw_profiles"),
        "--out",
        help="Profile file to write, or a hw_profiles folder; raw measurements go beside it.",
    ),
    device: str = typer.Option("auto", "--device", help="auto, cuda or cpu."),
    budget_s: float = typer.Option(280.0, "--budget", min=1.0, help="Seconds for all sections together."),
    sections: str | None = typer.Option(None, "--sections", help="Only these, e.g. gemm,prefill. Default: all."),
    host: bool = typer.Option(
        False, "--host", help="Measure block hashing and tree operations on this CPU; writes a host profile."
    ),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Make a hardware profile: by a microbenchmark (needs torch), from operator tables (--fit), or of this CPU (--host)."""
    if sum((fit is not None, host)) > 1:
        raise InputError("--fit and --host are two different jobs: give one")
    if name is None and out.suffix in (".yaml", ".yml"):
        name = out.stem
    if fit is not None:
        _fit(fit, gpu, table_gpu, source, name, out, json_)
    elif host:
        from prefixsim.engines.sglang.reference_tree import EvictionRule, Tree
        from prefixsim.hardware.calibrate.host import calibrate_host

        calibrate_host(out, name or "this-host", budget_s, json_, lambda pages: Tree(pages, 1, EvictionRule()))
    else:
        from prefixsim.hardware.calibrate.measure import calibrate_device

        wanted = [s.strip() for s in sections.split(",")] if sections else None
        calibrate_device(out, gpu, name, device, budget_s, wanted, json_)


def _fit(
    folder: Path, gpu: str | None, table_gpu: str | None, source: str, name: str | None, out: Path, json_: bool
) -> None:
    import datetime
    import json

    from prefixsim.hardware.calibrate.fit_profile import fit_profile
    from prefixsim.hardware.calibrate.write import profile_path, to_yaml
    from prefixsim.hardware.load import load_gpu
    from prefixsim.paths import write_whole

    if gpu is None:
        raise InputError("--fit needs --gpu NAME: the profile that gives the datasheet part (prefixsim hw list)")
    base = load_gpu(gpu)
    today = datetime.date.today().isoformat()
    done = fit_profile(
        folder,
        base,
        table_gpu=table_gpu,
        name=name,
        date=today,
        tables_from=source,
        note=lambda line: typer.echo(line, err=True),
    )
    path = profile_path(out, "gpus", done.profile.name)
    header = f"Fitted by: prefixsim calibrate --fit FOLDER --gpu {gpu}\nmape_pct, p90_pct: errors on shapes held out of the fit."
    write_whole(path, to_yaml(done.profile, header), folders=True)
    if json_:
        steps = done.steps
        typer.echo(
            json.dumps(
                {
                    "profile": str(path),
                    "sections": {
                        k: {"rows": s.rows, "n_held_out": s.errors.n, "mape_pct": s.errors.mape_pct, "p90_pct": s.errors.p90_pct, "source": s.source}
                        for k, s in done.report.sections.items()
                    },
                    "skipped": done.report.skipped,
                    "whole_steps": None
                    if steps is None
                    else {"n": steps.unseen.n, "mape_pct": steps.unseen.mape_pct, "p90_pct": steps.unseen.p90_pct},
                    "validity": done.profile.validity,
                }
            )
        )  # fmt: skip
    else:
        for section, reason in done.report.skipped.items():
            typer.echo(f"{section}: {reason}, as in {base.name}", err=True)
        typer.echo(f"{path}: {done.profile.validity}")
