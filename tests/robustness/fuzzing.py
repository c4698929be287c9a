"""Damaged copies of good files, and the judgement over what a reader does with them."""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from prefixsim.errors import PrefixsimError
from robustness.driving import deadline
from robustness.scenarios import mutated

MEMORY_BYTES = 3 << 30
SECONDS = 10.0
WORDS = [
    "-1", "0", "1e999", "NaN", "nan", "inf", "-inf", "null", "true", "[]", "{}", '""', '"x"', "1.5", "99999999999999999999", "-0.0",
    "18446744073709551615", "9223372036854775807", "-9223372036854775808", "2147483648", "1e18", "1e-300", "1e308", "9" * 4000,
    "[" * 3000, '{"a":' * 3000, "0x10", "1_000", "\\ud800", '"\\ud800"', "'", "<script>", "../../etc/passwd", "\x1b[31m", "é" * 50,
    "!!python/object/apply:os.system [exit]", "*a", "&a x", "=1+1", "a,b", "a\nb",
]  # fmt: skip
_VALUE = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?|\"[^\"\n]*\"|null|true|false|[A-Za-z_][A-Za-z0-9_.-]*")


def bent(raw: bytes, rng: random.Random) -> bytes:
    """One to three edits: a value replaced by a hostile one, a bit turned, bytes put in, cut out, doubled; lines moved; cut
    short."""
    for _ in range(rng.randint(1, 3)):
        kind, at, size = rng.randrange(10), rng.randrange(len(raw) + 1), rng.randint(1, 60)
        if kind < 4:
            spots = [m.span() for m in _VALUE.finditer(raw[: 1 << 16])]
            if spots:
                a, b = rng.choice(spots)
                raw = raw[:a] + rng.choice(WORDS).encode() + raw[b:]
        elif kind == 4 and at < len(raw):
            raw = raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
        elif kind == 5:
            raw = (
                raw[:at]
                + rng.choice([b"\x00", b"\xff", b"\xc3\x28", b"\r", b"\n", b",", b"{", b"]", b"\xef\xbb\xbf"])
                + raw[at:]
            )
        elif kind == 6:
            raw = raw[:at] + raw[at + size :]
        elif kind == 7:
            raw = raw[: at + size] + raw[at : at + size] + raw[at + size :]
        elif kind == 8:
            lines = raw.split(b"\n")
            rng.shuffle(lines)
            raw = b"\n".join(lines)
        elif kind == 9 and rng.random() < 0.3:
            raw = raw[:at]
    return raw


def broken(raw: bytes, rng: random.Random) -> bytes:
    """As `bent`, for binary files: bits, bytes, cuts, and a number in place of eight bytes."""
    for _ in range(rng.randint(1, 3)):
        kind, at, size = rng.randrange(6), rng.randrange(max(len(raw), 1)), rng.randint(1, 60)
        if kind < 2 and raw:
            raw = raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
        elif kind == 2:
            raw = raw[:at] + rng.randbytes(size) + raw[at + size :]
        elif kind == 3:
            number = rng.choice([0, 1, -1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)])
            raw = raw[:at] + number.to_bytes(8, "little", signed=True) + raw[at + 8 :]
        elif kind == 4:
            raw = raw[:at] + raw[at + size :]
        elif rng.random() < 0.3:
            raw = raw[:at]
    return raw


def rewritten(raw: bytes, rng: random.Random) -> bytes:
    """YAML or JSON with one or two of its values replaced, left out or added; or bent as text."""
    if rng.random() < 0.4:
        return bent(raw, rng)
    if raw[:1] in b"{[":
        return json.dumps(mutated(json.loads(raw), rng)).encode("utf-8", "surrogatepass")
    return yaml.safe_dump(mutated(yaml.safe_load(raw), rng), allow_unicode=True).encode("utf-8", "surrogatepass")


Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of input. files: those that are damaged, each with how. use: what is done with them, raising PrefixsimError
    where they are refused and AssertionError where something impossible comes out."""

    files: tuple[tuple[Path, Mutate], ...]
    use: Callable[[], None]


@contextlib.contextmanager
def memory(most: int = MEMORY_BYTES) -> Iterator[None]:
    """At most so many bytes of address space beyond what is taken now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def try_once(kind: Kind) -> str | None:
    """What was said against the files; None where they were taken. Anything else that is raised is a defect."""
    try:
        with deadline(SECONDS):
            kind.use()
    except PrefixsimError as exc:
        text = str(exc)
        assert text.strip(), "an empty message"
        assert len(text) < 8000, text[:300]
        return text
    return None


def rounds(
    kind: Kind, seed: object, count: int, defect: Callable[[Path, bytes, BaseException], None] | None = None
) -> dict[str, int]:
    """Damages one file after another. Returns how often the files were taken and refused. defect: told of what is wrong
    instead of its being raised."""
    rng = random.Random(str(seed))
    seen = {"taken": 0, "refused": 0}
    good = {path: path.read_bytes() for path, _ in kind.files}
    with memory():
        for _ in range(count):
            path, mutate = rng.choice(kind.files)
            raw = mutate(good[path], rng)
            path.write_bytes(raw)
            try:
                seen["taken" if try_once(kind) is None else "refused"] += 1
            except BaseException as exc:
                if defect is None or isinstance(exc, KeyboardInterrupt):
                    raise
                defect(path, raw, exc)
            path.write_bytes(good[path])
    return seen
