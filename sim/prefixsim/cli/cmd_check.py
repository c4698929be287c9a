"""`prefixsim check`: the CI gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from prefixsim.cli.complete import scenarios
from prefixsim.errors import EXIT_CHECK_FAILED, EXIT_COULD_NOT_RUN, EXIT_OK, InputError, OutputError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(check)


def check(
    scenarios: list[str] = typer.Argument(
        ..., help="Scenario files, or names of shipped ones.", metavar="SCENARIO...", autocompletion=scenarios
    ),
    baseline: Path | None = typer.Option(
        None, "--baseline", help="Baseline file (JSON) to compare with.", metavar="FILE"
    ),
    update_baseline: bool = typer.Option(
        False, "--update-baseline", help="Write today's values to the baseline instead of comparing with it."
    ),
    repeats: int | None = typer.Option(None, "--repeats", min=1, max=100, help="Runs with so many seeds each."),
    workers: int | None = typer.Option(None, "--workers", min=1, max=256, help="Processes. Default: all processors."),
    junit: Path | None = typer.Option(None, "--junit", help="Write JUnit XML.", metavar="FILE"),
    markdown: Path | None = typer.Option(
        None, "--markdown", help="Append Markdown, e.g. to $GITHUB_STEP_SUMMARY.", metavar="FILE"
    ),
    github: bool | None = typer.Option(
        None, "--github/--no-github", help="Print GitHub annotations. Default: where GITHUB_ACTIONS is true."
    ),
    metrics: bool = typer.Option(
        False,
        "--metrics",
        help="Run each scenario once and print every metric that `expect:` may name, with its value.",
    ),
    set_: list[str] = typer.Option([], "--set", help="KEY=VALUE: overrides a key in every scenario."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Tests the `expect:` entries of scenarios, and a baseline. Exit 0: all held; 1: one failed; 2: one could not run.

    A variant under `also:` is run where it has an `expect:` of its own, and counts as a scenario NAME-VARIANT.
    """
    import json
    import os

    from prefixsim.study.forking import stay_single_threaded

    stay_single_threaded()
    from prefixsim.cli.progress import progress
    from prefixsim.paths import write_whole
    from prefixsim.report import checks
    from prefixsim.report.github import github_annotations
    from prefixsim.report.junit import junit_xml
    from prefixsim.report.markdown import markdown as markdown_text
    from prefixsim.scenario.expect import Baseline, read_baseline, write_baseline
    from prefixsim.scenario.load import parse_override
    from prefixsim.study.check import check as run_checks

    if update_baseline and baseline is None:
        raise InputError("--update-baseline needs --baseline FILE")
    if metrics:
        if baseline is not None or junit is not None or markdown is not None:
            raise InputError("--metrics compares nothing: leave --baseline, --junit and --markdown out")
        _list_metrics(scenarios, dict(parse_override(o) for o in set_), json_)
        return
    known = None
    if baseline is not None:
        known = read_baseline(baseline) if not update_baseline or baseline.exists() else Baseline()
    with progress(quiet=quiet) as say:
        results, entries = run_checks(
            scenarios,
            baseline=None if update_baseline else known,
            by_name=update_baseline,
            overrides=dict(parse_override(o) for o in set_),
            repeats=repeats,
            workers=workers,
            say=say,
        )
    typer.echo(json.dumps(checks.as_dict(results), indent=1) if json_ else checks.text(results))
    if github if github is not None else os.environ.get("GITHUB_ACTIONS") == "true":
        lines = github_annotations(results)
        if lines:
            typer.echo(lines, err=json_)
    if junit is not None:
        write_whole(junit, junit_xml(results))
    if markdown is not None:
        try:
            with markdown.open("a", encoding="utf-8", errors="backslashreplace") as f:
                f.write(markdown_text(results))
        except OSError as exc:
            raise OutputError(f"{markdown}: could not be written: {exc.strerror or exc}") from None
    _, failed, broken = checks.counts(results)
    if update_baseline and baseline is not None and known is not None and not broken:
        write_baseline(baseline, Baseline(scenarios={**known.scenarios, **entries}))
        typer.echo(f"{baseline}: {len(entries)} scenario(s) written", err=True)
    raise typer.Exit(EXIT_COULD_NOT_RUN if broken else EXIT_CHECK_FAILED if failed else EXIT_OK)


def _list_metrics(files: list[str], overrides: dict[str, Any], json_: bool) -> None:
    import json

    from prefixsim.study.baseline import number, spelt
    from prefixsim.study.check import all_metrics

    found = {file: all_metrics(file, overrides) for file in files}
    if json_:
        typer.echo(json.dumps(found, indent=1))
        return
    for file, values in found.items():
        if len(files) > 1:
            typer.echo(file)
        width = max(map(len, values))
        for name, value in values.items():
            typer.echo(f"{name:<{width}}  {spelt(value) if isinstance(value, bool) else number(value)}")
