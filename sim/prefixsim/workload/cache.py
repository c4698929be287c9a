"""Parsed traces kept in the user's cache folder: plain arrays behind a JSON header, nothing that could run.

An entry is named by the content of the trace, the sources of the readers, the options that matter to a reader and the
seed, so a changed file, reader or option means another entry. Entries are written whole and renamed; one that is
damaged, cut short or inconsistent is made anew; where nothing can be written, or others could write, nothing is kept.
Interning is not kept: it takes less time than reading its result back would.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from prefixsim.paths import open_regular, own_folder
from prefixsim.workload.formats.registry import Format, ReadContext
from prefixsim.workload.numbering import numbering
from prefixsim.workload.table import Decision, Source, Workload

MAGIC = b"prefixsim workload 1\n"
WORTH_KEEPING_S = 0.2
"""Reads that are quicker are not kept."""
MAX_ENTRY_BYTES = 4 << 30
MAX_FOLDER_BYTES = 8 << 30

_NOT_THE_READERS = {
    "path", "time_scale", "spread_arrivals", "max_requests", "max_delay_s", "reuse_outputs", "cache"
}  # fmt: skip
_NAME_TABLES = (
    "session_names", "group_names", "tenant_names", "salt_names", "lora_names", "extra_key_names", "ids",
)  # fmt: skip
_CODES = {"session": -1, "group": -1, "tenant": -1, "salt": 0, "lora": 0, "extra_key": 0}


def cached_read(found: Format, context: ReadContext) -> Workload:
    """Reads a trace, or takes what an earlier read has left."""
    options = context.options
    if (
        not options.cache
        or numbering() is not None
        or (options.arrivals is not None and options.arrivals.process == "replay")
    ):
        return found.read(context)
    folder = own_folder("workloads")
    if folder is None:
        return found.read(context)
    name = None
    if any(folder.iterdir()):
        name = entry_name(found, context)
        kept = load(folder / name) if name else None
        if kept is not None:
            return _with_path(kept, context)
    begin = perf_counter()
    w = found.read(context)
    if perf_counter() - begin >= WORTH_KEEPING_S:
        name = name or entry_name(found, context)
        if name:
            save(folder / name, w)
    return w


def _with_path(w: Workload, context: ReadContext) -> Workload:
    from dataclasses import replace

    return replace(w, source=replace(w.source, path=str(context.path)))


def entry_name(found: Format, context: ReadContext) -> str | None:
    """File name of an entry; None where the input cannot be read (the reader will say why)."""
    options = context.options.model_dump(mode="json", exclude=_NOT_THE_READERS)
    digest = hashlib.sha256(json.dumps([found.name, found.version, options, context.seed], sort_keys=True).encode())
    digest.update(_reader_sources().encode())
    try:
        _, _, tokenizer = context.options.tokenizer.partition(":")
        paths = [context.path]
        if context.path.is_dir():
            paths = sorted(p for p in context.path.iterdir() if p.is_file())
        if tokenizer:
            paths.append(Path(tokenizer) if Path(tokenizer).is_absolute() else context.path.parent / tokenizer)
        for path in paths:
            with open_regular(path) as f:
                digest.update(hashlib.file_digest(f, "sha256").digest())
            if len(paths) > 1:
                digest.update(os.fsencode(path.name))
    except OSError:
        return None
    return digest.hexdigest()[:40] + ".workload"


@cache
def _reader_sources() -> str:
    """SHA-256 of all sources that a reader's result may depend on."""
    digest = hashlib.sha256(np.__version__.encode())
    here = Path(__file__).resolve().parent
    for path in [*sorted(here.rglob("*.py")), here.parent / "scenario" / "workload.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def save(path: Path, w: Workload) -> bool:
    """Writes an entry; False (and nothing left behind) where that is not possible."""
    arrays, strings = {}, {}
    for f in fields(w):
        value = getattr(w, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = np.ascontiguousarray(value)
        elif f.name in _NAME_TABLES:
            strings[f.name] = value
    size = sum(a.nbytes for a in arrays.values())
    if size > MAX_ENTRY_BYTES:
        return False
    header: dict[str, Any] = {
        "arrays": [[k, a.dtype.str, a.shape[0], zlib.crc32(a.data)] for k, a in arrays.items()],
        "strings": strings,
        "max_tokens_assumed": w.max_tokens_assumed,
        "source": asdict(w.source),
    }
    text = json.dumps(header).encode()
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _prune(path.parent, size)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as out:
            temporary = out.name
            out.write(MAGIC + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + text)
            for a in arrays.values():
                out.write(a.data)
        Path(temporary).replace(path)
        temporary = None
    except OSError:
        return False
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
    return True


def _prune(folder: Path, coming: int) -> None:
    """Removes the entries used longest ago until the folder has room."""
    entries = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in folder.glob("*.workload"))
    total = coming + sum(size for _, size, _ in entries)
    for _, size, p in entries:
        if total <= MAX_FOLDER_BYTES:
            break
        with contextlib.suppress(OSError):
            p.unlink()
        total -= size


def load(path: Path) -> Workload | None:
    """An entry, or None where it is absent, damaged or inconsistent (it is then removed if that is possible)."""
    try:
        with open_regular(path) as f:
            if os.fstat(f.fileno()).st_size > 2 * MAX_ENTRY_BYTES:
                return None
            data = np.fromfile(f, dtype=np.uint8)
    except OSError:
        return None
    try:
        w = _parse(data)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return w


def _parse(data: np.ndarray) -> Workload:
    start = len(MAGIC) + 12
    if data[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError("not an entry")
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8].tobytes(), "little")
    text = data[start : start + size].tobytes()
    if zlib.crc32(text) != int.from_bytes(data[len(MAGIC) + 8 : start].tobytes(), "little"):
        raise ValueError("damaged header")
    header = json.loads(text)
    at = start + size
    arrays: dict[str, Any] = {}
    for name, dtype, count, checksum in header["arrays"]:
        kind = np.dtype(dtype)
        if kind.str not in ("<i8", "<i4", "|b1") or not isinstance(count, int) or count < 0:
            raise ValueError("an unexpected array")
        raw = data[at : at + count * kind.itemsize]
        at += count * kind.itemsize
        if raw.shape[0] != count * kind.itemsize or zlib.crc32(raw.data) != checksum:
            raise ValueError("a damaged array")
        arrays[name] = raw.view(kind) if raw.ctypes.data % kind.itemsize == 0 else np.frombuffer(raw.tobytes(), kind)
    if at != data.shape[0]:
        raise ValueError("more bytes than arrays")
    source = header["source"]
    decisions = tuple(Decision(**d) for d in source.pop("decisions"))
    source["notes"] = tuple(source["notes"])
    tables: dict[str, Any] = {k: v if v is None else tuple(map(str, v)) for k, v in header["strings"].items()}
    for optional in ("atom_tokens", "reported_cached_tokens"):
        arrays.setdefault(optional, None)
    w = Workload(
        **arrays,
        **tables,
        max_tokens_assumed=bool(header["max_tokens_assumed"]),
        source=Source(**source, decisions=decisions),
    )
    check(w)
    return w


def check(w: Workload) -> None:
    """Raises ValueError where a table is not what `Workload` promises: kernels index by it without looking."""
    n, a = w.n, w.atom_id.shape[0]
    for f in fields(w):
        value = getattr(w, f.name)
        if isinstance(value, np.ndarray):
            wanted = {"atom_offset": n + 1, "atom_id": a, "atom_tokens": a}.get(f.name, n)
            dtype = str(f.type)
            right = {"I64": "int64", "I32": "int32", "BOOL": "bool"}[dtype.split(" ", 1)[0]]
            if value.shape != (wanted,) or value.dtype != right:
                raise ValueError(f.name)
    counts = np.diff(w.atom_offset)
    sound = (
        w.atom_offset[0] == 0
        and w.atom_offset[-1] == a
        and bool((counts >= w.prompt_atoms).all())
        and bool((w.prompt_atoms >= 1).all())
        and bool(
            (w.prompt_tokens >= 1).all() and (w.output_tokens >= 1).all() and (w.max_tokens >= w.output_tokens).all()
        )
        and (a == 0 or int(w.atom_id.min()) >= 0)
        and (w.atom_tokens is None or int(w.atom_tokens.min()) >= 1)
        and bool((w.after < n).all() and (w.after >= -1).all())
        and bool((w.delay_ns >= 0).all())
        and (w.ids is None or len(w.ids) == n)
    )
    for name, low in _CODES.items():
        code = getattr(w, name)
        names = len(getattr(w, f"{name}_names"))
        sound = sound and bool((code >= low).all() and (names == 0 or (code < names).all()))
    if not sound:
        raise ValueError("inconsistent")
    lengths = np.ones(a, np.int64) if w.atom_tokens is None else w.atom_tokens.astype(np.int64)
    total = np.concatenate([[0], np.cumsum(lengths)])
    prompts = total[w.atom_offset[:-1] + w.prompt_atoms] - total[w.atom_offset[:-1]]
    if not bool((prompts == w.prompt_tokens).all()):
        raise ValueError("atoms and lengths differ")
