"""`prefixsim run --save-cache FILE`: writes what an engine's caches hold at the end of a run, for `prime: {saved: FILE}`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.engines.resident import latest_of_each, resident_tokens
from prefixsim.errors import InputError, NotModelledError, OutputError
from prefixsim.hardware.load import Hardware
from prefixsim.paths import whole_file
from prefixsim.pipeline.prepare import Prepared, has_window_groups
from prefixsim.records import I64, REQ_FINISH_NS, REQ_REPLICA
from prefixsim.scenario.models import Scenario, granularity_of, rule_of
from prefixsim.workload.intern import ChainIndex
from prefixsim.workload.saved import content_key, saved_lines


def check_saving(scenario: Scenario, chosen: Sequence[Any], path: Path) -> None:
    """Raises InputError or OutputError, before anything runs, where the caches could not be saved."""
    if len(chosen) != 1:
        names = ", ".join(e.name for e in chosen)
        raise InputError(
            f"--save-cache: one engine's caches go into a file; choose it with --engine (there are {names})"
        )
    if scenario.prime is not None:
        raise NotModelledError("--save-cache: not with `prime:`; save from a run that begins empty")
    if getattr(scenario.workload, "generator", "mix") == "mix" and not hasattr(scenario.workload, "trace"):
        raise NotModelledError("--save-cache: contents of a mix have no names that another run could know them by")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: cannot be written: {'is a folder' if path.is_dir() else 'no such folder'}")


def check_one_prefix(chosen: Sequence[Any], hardware: Sequence[Hardware | None]) -> None:
    """Raises NotModelledError where what a cache holds of a sequence is not one prefix."""
    for engine in chosen:
        if has_window_groups(engine, hardware):
            raise NotModelledError(
                f"engine {engine.name!r}: of a model with sliding-window groups a cache holds no single prefix of a sequence; it "
                "can be neither saved nor primed from a saved one"
            )


def write_cache(
    path: Path, scenario: Scenario, options: Any, prepared: Prepared, engines: Sequence[Any], rows: I64
) -> None:
    """Writes the file, whole or not at all. Raises OutputError, NotModelledError for lengths-only traces."""
    w = prepared.workload
    if not w.source.content_known:
        raise NotModelledError("--save-cache: the workload has lengths only: what its cache holds has no content")
    assert prepared.numbering is not None
    numbering, how = prepared.numbering
    tokens = resident_tokens(engines, rows, w, outputs=True)
    granularity = granularity_of(options)
    chains = prepared.chains(rule_of(options), granularity)
    picked = latest_of_each(rows, tokens, last_chains(chains, tokens // granularity), rows[:, REQ_FINISH_NS])
    labels = None
    if how == "names":
        labels = numbering.labels(np.arange(int(w.atom_id.max(initial=-1)) + 1, dtype=np.int32))
    header = {
        "engine": options.name,
        "kind": options.kind,
        "granularity": granularity,
        "capacity_tokens": int(engines[0].capacity_tokens),
        "replicas": len(engines),
        "contents": "names" if how == "names" else "numbers",
        "source": w.source.kind,
        "block_tokens": w.source.block_tokens,
        "content_key": content_key(scenario.workload, w, scenario.seed),
        "sequences": int(picked.shape[0]),
        "tokens": int(tokens[picked].sum()),
    }
    sequences = zip(picked.tolist(), tokens[picked].tolist(), rows[picked, REQ_REPLICA].tolist(), strict=True)
    with whole_file(path) as part, part.open("wb") as f:
        f.writelines(saved_lines(header, w, sequences, labels))


def last_chains(chains: ChainIndex, blocks: I64) -> I64:
    """Chain id of each row's block number `blocks` - 1, int64 (n,); -1 where that is none."""
    out = np.full(blocks.shape[0], -1, dtype=np.int64)
    for r in np.flatnonzero(blocks > 0).tolist():
        first, last = int(chains.run_offset[r]), int(chains.run_offset[r + 1])
        j = first + int(np.searchsorted(chains.run_end[first:last], blocks[r]))
        before = int(chains.run_end[j - 1]) if j > first else 0
        out[r] = chains.run_start[j] + blocks[r] - 1 - before
    return out
