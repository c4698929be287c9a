"""The native trace: one JSON object a line (see docs/traces.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prefixsim.workload.table import Source, Workload, make_workload


def workload_from_rows(rows: Iterable[Mapping[str, Any]], source: Source) -> Workload:
    """A workload from native rows already parsed (tokens only). For inline cases and tests."""
    rows = list(rows)
    ids: list[int] = []
    offset, prompts = [0], []
    names: dict[str, dict[str, int]] = {k: {"": 0} for k in ("cache_salt", "lora", "extra_key")}
    codes: dict[str, list[int]] = {k: [] for k in names}
    for row in rows:
        outputs = row.get("output_tokens") or [0]
        ids.extend(row["tokens"])
        ids.extend(outputs)
        prompts.append(len(row["tokens"]))
        offset.append(len(ids))
        for key, table in names.items():
            codes[key].append(table.setdefault(row.get(key) or "", len(table)))
    return make_workload(
        source=source,
        prompt_tokens=prompts,
        output_tokens=[b - a - p for a, b, p in zip(offset, offset[1:], prompts, strict=False)],
        atom_offset=offset,
        prompt_atoms=prompts,
        atom_id=ids,
        atom_tokens=None,
        step=[row.get("step", 0) for row in rows],
        priority=[row.get("priority") or 0 for row in rows],
        skip_reading_prefix_cache=[bool(row.get("skip_reading_prefix_cache")) for row in rows],
        salt=codes["cache_salt"],
        lora=codes["lora"],
        extra_key=codes["extra_key"],
        salt_names=tuple(names["cache_salt"]),
        lora_names=tuple(names["lora"]),
        extra_key_names=tuple(names["extra_key"]),
        ids=tuple(str(row["id"]) for row in rows),
    )


def read_native(path: Path) -> Workload:
    """Reads a native trace of token rows."""
    data = path.read_bytes()
    rows = [json.loads(line) for line in data.splitlines() if line.strip()]
    return workload_from_rows(rows, Source(kind="native", path=str(path), sha256=hashlib.sha256(data).hexdigest()))
