"""The resolved scenario, and the run identity: what decides a result, and nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from prefixsim.scenario.models import SCHEMA_VERSION, Scenario

NOT_IDENTITY = ("description", "output", "expect", "granularity", "also")
"""Keys that change no result (granularity: proven by test)."""


def resolved(scenario: Scenario) -> dict[str, Any]:
    """Every key with its value, defaults written out; a trace's path is absolute. Reading it back gives the same scenario.

    Left out are only keys that are null and whose default is null: a new optional key then changes no run identity.
    """
    data: dict[str, Any] = _plain(scenario)
    trace = data["workload"].get("trace")
    if isinstance(trace, dict) and isinstance(trace.get("path"), str):
        trace["path"] = str((scenario.base_dir / Path(trace["path"]).expanduser()).absolute())
    prime = data.get("prime") or {}
    for place, key in ((prime.get("trace"), "path"), (prime, "saved")):
        if isinstance(place, dict) and isinstance(place.get(key), str):
            place[key] = str((scenario.base_dir / Path(place[key]).expanduser()).absolute())
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        out = {}
        for name, field in type(value).model_fields.items():
            child = getattr(value, name)
            if child is not None or field.default is not None:
                out[field.alias or name] = _plain(child)
        return out
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def resolved_yaml(scenario: Scenario) -> str:
    """`resolved` as YAML that the strict reader accepts."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(str, _quoted)
    return yaml.dump(resolved(scenario), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _quoted(dumper: Any, value: str) -> Any:
    """Strings that are not plainly words are quoted, so that every YAML reader takes them for strings."""
    plain = value.replace("-", "").replace("_", "").replace(".", "").replace("@", "").replace("/", "").isalnum()
    word = (
        plain
        and value[0].isalpha()
        and value.lower() not in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if word else '"')


def run_identity(scenario: Scenario, workload_sha256: str, hardware_sha256: str = "") -> str:
    """SHA-256 (hex) of what decides the result: resolved scenario, content of the workload and of the profiles, schema version.

    A trace counts by its content, not its path.
    """
    data = {k: v for k, v in resolved(scenario).items() if k not in NOT_IDENTITY}
    trace = data["workload"].get("trace")
    if isinstance(trace, dict) and workload_sha256:
        trace.pop("path", None)
        trace.pop("cache", None)
    prime = data.get("prime")
    if isinstance(prime, dict) and workload_sha256:  # what it holds is part of the workload's SHA-256
        prime.pop("saved", None)
        if isinstance(prime.get("trace"), dict):
            prime["trace"].pop("path", None)
            prime["trace"].pop("cache", None)
    whole = {"schema": SCHEMA_VERSION, "scenario": data, "workload": workload_sha256, "hardware": hardware_sha256}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
