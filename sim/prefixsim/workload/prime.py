"""A workload behind the requests that prime the cache for it: one table, contents that are equal having equal ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.warm import FirstRequests, SavedCache
from prefixsim.scenario.workload import TraceWorkload
from prefixsim.workload import links
from prefixsim.workload.edit import ROW_COLUMNS, take
from prefixsim.workload.load import load_workload
from prefixsim.workload.numbering import Numbering
from prefixsim.workload.ragged import offsets
from prefixsim.workload.saved import content_key, read_saved
from prefixsim.workload.table import I64, Source, Workload

NAMED_FORMATS = ("native", "mooncake", "bailian")
"""Formats whose contents have names of their own: tokens, segments, hash ids."""
UNNAMED_GENERATORS = ("mix", "reuse")


@dataclass(frozen=True, slots=True)
class Primed:
    """workload: priming requests [0, first), then those of `main`, whose nominal arrivals are `shift_ns` later, behind all
    of the priming. replica int64 (first,): which replica each priming request goes to, where a file says so. header: of a
    saved cache. words: what the priming is. numbers: what the contents' identity rests on."""

    workload: Workload
    main: Workload
    first: int
    shift_ns: int
    words: str
    identity: str
    replica: I64 | None = None
    header: dict[str, Any] | None = None


def load_numbered(spec: Any, numbering: Numbering, *, base_dir: Path, seed: int) -> tuple[Workload, str]:
    """(workload, what its contents go by): "names" (traces that name them), "parts" (generators: shared parts by name),
    or "numbers" (only its own)."""
    how = _identity_of(spec, base_dir)
    if how != "numbers":
        with numbering.in_force(getattr(spec, "generator", "")):
            return load_workload(spec, base_dir=base_dir, seed=seed), how
    w = load_workload(spec, base_dir=base_dir, seed=seed)
    first = numbering.reserve(int(w.atom_id.max()) + 1 if w.atom_id.shape[0] else 0)
    return (w if first == 0 else replace(w, atom_id=w.atom_id + np.int32(first))), how


def _identity_of(spec: Any, base_dir: Path) -> str:
    if not isinstance(spec, TraceWorkload):
        return "numbers" if getattr(spec, "generator", "mix") in UNNAMED_GENERATORS else "parts"
    from prefixsim.workload.formats.registry import detect

    path = base_dir / Path(spec.trace.path)
    name = spec.trace.format
    if name is None and path.exists():
        name = detect(path)[0].name
    named = name in NAMED_FORMATS and spec.trace.id_scope != "conversation"
    return "names" if named else "numbers"


def load_primed(prime: Any, spec: Any, *, base_dir: Path, seed: int) -> Primed:
    """Reads the workload and what primes it. Raises ScenarioError where which contents are the same cannot be told,
    TraceError for files."""
    numbering = Numbering()
    main, how = load_numbered(spec, numbering, base_dir=base_dir, seed=seed)
    if main.n == 0:
        return Primed(main, main, 0, 0, "", "")
    if isinstance(prime, FirstRequests):
        some = min(prime.first_requests, main.n)
        primer = take(main, np.arange(some, dtype=np.int64))
        words = f"the first {some:,} requests of the workload itself"
        return _joined(primer, main, words, "the same requests")
    if isinstance(prime, SavedCache):
        path = base_dir / Path(prime.saved).expanduser()
        saved = read_saved(path, numbering, main, content_key(spec, main, seed), how == "names")
        header = saved.header
        words = f"{header['sequences']:,} sequences of the cache that {header['engine']} ({header['kind']}) left, {path.name}"
        identity = "names of contents" if header["contents"] == "names" else "the same workload"
        out = _joined(saved.workload, main, words, identity)
        return replace(out, replica=saved.replica, header=header)
    primer, other = load_numbered(prime, numbering, base_dir=base_dir, seed=seed)
    if primer.n == 0:
        raise ScenarioError("prime: has no requests: there is nothing to prime with")
    identity = _same_contents(prime, primer, other, spec, main, how)
    source = Path(primer.source.path).name if primer.source.path else primer.source.kind
    return _joined(primer, main, f"{primer.n:,} requests ({source})", identity)


def _same_contents(prime: Any, primer: Workload, other: str, spec: Any, main: Workload, how: str) -> str:
    """What equal contents are told by. Raises ScenarioError where they cannot be told."""
    hint = "; prime with `first_requests: N` of the workload itself, or convert both to native traces"
    traces = isinstance(prime, TraceWorkload), isinstance(spec, TraceWorkload)
    if traces == (True, True):
        alike = primer.source.kind == main.source.kind and primer.source.block_tokens == main.source.block_tokens
        if how == other == "names" and alike:
            return "names of contents in both files"
        raise ScenarioError(
            f"prime: contents of a {primer.source.kind} trace ({primer.source.block_tokens} tokens an id) cannot be matched "
            f"with those of a {main.source.kind} trace ({main.source.block_tokens} tokens an id){hint}"
        )
    if traces[0] != traces[1]:
        return "nothing: a trace and a generator have no contents in common"
    if "numbers" in (how, other):
        raise ScenarioError(f"prime: contents of {primer.source.kind} and {main.source.kind} cannot be matched{hint}")
    if prime.generator == spec.generator:
        return "names of shared parts (all else is new), lengths drawn with the same seed"
    return "nothing: two generators of different kinds have no contents in common"


def _joined(primer: Workload, main: Workload, words: str, identity: str) -> Primed:
    """Priming requests, then the workload's."""
    first = primer.n
    # arrivals of requests that await others may be scaled while their delays are not: the latest nominal one is what counts
    nominal, _ = links.resolve(primer.after, primer.delay_ns, primer.arrival_ns, primer.after < 0)
    shift = max(int(primer.arrival_ns.max()), int(nominal.max())) + 1
    if int(main.arrival_ns.max()) > (1 << 62) or shift > (1 << 62):
        raise ScenarioError("prime: arrivals of priming and workload together span more than 290 years")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(primer, name), getattr(main, name)])
        for name in ROW_COLUMNS
        if name not in ("session", "group", "tenant", "salt", "lora", "extra_key", "arrival_ns")
    }
    for name, none in (("session", -1), ("group", -1), ("tenant", -1), ("salt", 0), ("lora", 0), ("extra_key", 0)):
        columns[name], columns[f"{name}_names"] = _codes(primer, main, name, none)
    lengths = None
    if primer.atom_tokens is not None or main.atom_tokens is not None:
        lengths = np.concatenate(
            [np.ones(w.atom_id.shape[0], np.int32) if w.atom_tokens is None else w.atom_tokens for w in (primer, main)]
        )
    sha = hashlib.sha256(f"{main.source.sha256} primed by {primer.source.sha256} {words}".encode()).hexdigest()
    source = Source(
        kind=main.source.kind,
        path=main.source.path,
        sha256=sha,
        content_known=main.source.content_known and primer.source.content_known,
        synthetic=main.source.synthetic or primer.source.synthetic,
        block_tokens=max(main.source.block_tokens, primer.source.block_tokens),
    )
    ids = tuple(f"prime:{primer.request_id(i)}" for i in range(first)) + tuple(
        main.request_id(i) for i in range(main.n)
    )
    workload = Workload(
        arrival_ns=np.concatenate([primer.arrival_ns, main.arrival_ns + shift]),
        after=np.concatenate([primer.after, np.where(main.after >= 0, main.after + first, -1)]).astype(np.int32),
        atom_offset=offsets(np.concatenate([np.diff(primer.atom_offset), np.diff(main.atom_offset)])),
        atom_id=np.concatenate([primer.atom_id, main.atom_id]),
        atom_tokens=lengths,
        max_tokens_assumed=main.max_tokens_assumed,
        source=source,
        ids=ids,
        **columns,
    )
    return Primed(workload, main, first, shift, words, identity)


def _codes(primer: Workload, main: Workload, name: str, none: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes and names of both: equal names are the same session, group or namespace; unnamed ones stay apart."""
    table: dict[str, int] = {"": 0} if none == 0 else {}
    codes = []
    for which, w in enumerate((main, primer)):
        own, names = getattr(w, name), getattr(w, f"{name}_names")
        least = int(own.max()) + 1 if w.n else 0
        shown = names + tuple(f"{('', 'prime ')[which]}{k}" for k in range(len(names), least))
        number = np.array([table.setdefault(n, len(table)) for n in shown] or [0], dtype=np.int32)
        codes.append(np.where(own >= 0, number[np.maximum(own, 0)], -1).astype(np.int32))
    return np.concatenate(codes[::-1]), tuple(table)
