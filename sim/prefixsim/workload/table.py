"""The `Workload` table: what every reader and generator makes, and all that the rest of the program knows of a trace.

A sequence (prompt, then output) is a run of atoms `(content id, n tokens)`: equal ids mean equal tokens up to the shorter
length, different ids share nothing. Nothing ever expands an atom into tokens; cost grows with atoms.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Decision:
    """Something a reader had to decide: what, the value, the evidence over all rows, whether the user set it."""

    name: str
    value: str
    evidence: str
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where a workload comes from and what was decided on the way.

    content_known: False for lengths-only traces: then ceilings are meaningless and refused.
    synthetic: True where contents or arrivals come from a model rather than from the file; says so in every output.
    counts: rows read, skipped, reordered, ... by name. notes: sentences for people. sha256: of the file(s) or generator.
    block_tokens: the granularity of the content ids (512 for a Mooncake file; 1 where tokens are known).
    """

    kind: str
    path: str = ""
    sha256: str = ""
    content_known: bool = True
    synthetic: bool = False
    block_tokens: int = 1
    decisions: tuple[Decision, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """n requests in file order (stable-sorted by arrival where a reader sorts; `after` links point to smaller indices).

    arrival_ns int64 (n,): absolute arrival; for requests with `after` >= 0 it is ignored.
    after int32 (n,): index of the request whose completion is awaited, -1 none; delay_ns int64 (n,): think time after it.
    step int64 (n,): arrival step for `clock: steps`.
    prompt_tokens, output_tokens, max_tokens int64 (n,): tokens; at least 1 each. max_tokens equals output_tokens where
    the trace gives none (`max_tokens_assumed`).
    stop bool (n,): ends by EOS / stop string rather than by length (costs one more decode slot).
    session, group, tenant int32 (n,): indices into the name tables, -1 none; turn int32 (n,): position in the session, from 0.
    salt, lora, extra_key int32 (n,): namespace parts, indices into their name tables, 0 = none (name "").
    priority int64 (n,); skip_reading_prefix_cache bool (n,).
    atom_offset int64 (n+1,): request r's atoms are [atom_offset[r], atom_offset[r+1]); prompt_atoms int64 (n,): the first
    that many are the prompt, the rest the output. Where the rest is empty the output's content is unknown (and unique).
    atom_id int32 (A,): dense or token ids, >= 0; atom_tokens int32 (A,), or None: every atom is one token.
    ids: names of requests, or None: str(index).
    reported_cached_tokens int64 (n,) or None: what a real server reported (-1: nothing).
    """

    arrival_ns: I64
    after: I32
    delay_ns: I64
    step: I64
    prompt_tokens: I64
    output_tokens: I64
    max_tokens: I64
    max_tokens_assumed: bool
    stop: BOOL
    session: I32
    turn: I32
    group: I32
    tenant: I32
    salt: I32
    lora: I32
    extra_key: I32
    priority: I64
    skip_reading_prefix_cache: BOOL
    atom_offset: I64
    prompt_atoms: I64
    atom_id: I32
    atom_tokens: I32 | None
    source: Source
    ids: tuple[str, ...] | None = None
    session_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    tenant_names: tuple[str, ...] = ()
    salt_names: tuple[str, ...] = ("",)
    lora_names: tuple[str, ...] = ("",)
    extra_key_names: tuple[str, ...] = ("",)
    reported_cached_tokens: I64 | None = None

    @property
    def n(self) -> int:
        """Number of requests."""
        return int(self.prompt_tokens.shape[0])

    def request_id(self, index: int) -> str:
        """Name of a request."""
        return self.ids[index] if self.ids is not None else str(index)


def owned(workload: Workload) -> Workload:
    """The workload with every array writeable and contiguous: to Numba a read-only array is another type, for which every
    kernel would be compiled once more."""
    changed: dict[str, Any] = {}
    for field_ in fields(workload):
        value = getattr(workload, field_.name)
        if isinstance(value, np.ndarray) and not (value.flags.writeable and value.flags.c_contiguous):
            changed[field_.name] = np.array(value, order="C")
    return replace(workload, **changed) if changed else workload


def make_workload(
    *,
    source: Source,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    atom_offset: npt.ArrayLike,
    prompt_atoms: npt.ArrayLike,
    atom_id: npt.ArrayLike,
    atom_tokens: npt.ArrayLike | None,
    **columns: object,
) -> Workload:
    """A `Workload` with every column given its dtype and missing ones their default (arrival 0, no session, ...)."""
    n = len(np.asarray(prompt_tokens))
    defaults: dict[str, tuple[type, object]] = {
        "arrival_ns": (np.int64, 0),
        "after": (np.int32, -1),
        "delay_ns": (np.int64, 0),
        "step": (np.int64, 0),
        "stop": (np.bool_, False),
        "session": (np.int32, -1),
        "turn": (np.int32, 0),
        "group": (np.int32, -1),
        "tenant": (np.int32, -1),
        "salt": (np.int32, 0),
        "lora": (np.int32, 0),
        "extra_key": (np.int32, 0),
        "priority": (np.int64, 0),
        "skip_reading_prefix_cache": (np.bool_, False),
    }
    out: dict[str, object] = {}
    for name, (dtype, default) in defaults.items():
        value = columns.pop(name, None)
        out[name] = np.full(n, default, dtype=dtype) if value is None else np.ascontiguousarray(value, dtype=dtype)
    max_tokens = columns.pop("max_tokens", None)
    outputs = np.ascontiguousarray(output_tokens, dtype=np.int64)
    assumed = bool(columns.pop("max_tokens_assumed", max_tokens is None))
    return Workload(
        prompt_tokens=np.ascontiguousarray(prompt_tokens, dtype=np.int64),
        output_tokens=outputs,
        max_tokens=outputs if max_tokens is None else np.ascontiguousarray(max_tokens, dtype=np.int64),
        max_tokens_assumed=assumed,
        atom_offset=np.ascontiguousarray(atom_offset, dtype=np.int64),
        prompt_atoms=np.ascontiguousarray(prompt_atoms, dtype=np.int64),
        atom_id=np.ascontiguousarray(atom_id, dtype=np.int32),
        atom_tokens=None if atom_tokens is None else np.ascontiguousarray(atom_tokens, dtype=np.int32),
        source=source,
        **out,  # type: ignore[arg-type]
        **columns,  # type: ignore[arg-type]
    )
