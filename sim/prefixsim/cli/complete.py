"""What a shell offers after TAB beside commands, options and files."""

from __future__ import annotations

from collections.abc import Iterable


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in sorted(names) if name.startswith(typed)]


def scenarios(incomplete: str) -> list[str]:
    """Names of shipped scenarios."""
    from prefixsim.paths import data_dir

    return _beginning((p.stem for p in data_dir("scenarios").glob("*.yaml")), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Names of GPU profiles."""
    from prefixsim.scenario.profile_names import profile_names

    return _beginning(profile_names("gpus"), incomplete)


def models(incomplete: str) -> list[str]:
    """Names of model profiles."""
    from prefixsim.scenario.profile_names import profile_names

    return _beginning(profile_names("models"), incomplete)


def profiles(incomplete: str) -> list[str]:
    """Names of all profiles."""
    from prefixsim.scenario.profile_names import KINDS, profile_names

    return _beginning({name for kind in KINDS.values() for name in profile_names(kind)}, incomplete)


def trace_formats(incomplete: str) -> list[str]:
    """Names of trace formats."""
    from prefixsim.workload.formats.registry import formats

    return _beginning(formats(), incomplete)


def export_formats(incomplete: str) -> list[str]:
    """Formats of `prefixsim export`."""
    from prefixsim.report.export import FORMATS

    return _beginning(FORMATS, incomplete)


def tables(incomplete: str) -> list[str]:
    """Tables of a run."""
    from prefixsim.report.export import TABLES

    return _beginning(TABLES, incomplete)
