"""Bytes of a trace: plain, gzip or zstd, in blocks of whole lines, with bounds that hostile files cannot pass."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from prefixsim.errors import MissingExtraError, Problem, TraceError
from prefixsim.paths import open_regular

BLOCK_BYTES = 16 << 20
MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 512 << 20
BOMB_FLOOR_BYTES = 256 << 20
BOMB_RATIO = 200
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZSTD, _SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
_SKIPPABLE_NUMBER = 0x0184D2A5


class TraceFile:
    """One file of a trace. Iterating `blocks()` gives whole lines; `sha256` (of the stored bytes) is known afterwards."""

    def __init__(self, path: Path, shown: str | None = None) -> None:
        self.path = path
        self.name = shown or str(path)
        self.sha256 = ""
        self.line = 1

    def problem(self, message: str, line: int | None = None, key: str | None = None) -> Problem:
        """A `Problem` in this file."""
        return Problem(message, file=self.name, line=line, key=key)

    def error(self, message: str, line: int | None = None) -> TraceError:
        """A `TraceError` in this file."""
        return TraceError(self.problem(message, line))

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Bytes ending in a newline; one that is missing at the end of the file is added. Who reads counts `line`.

        Raises TraceError when the file can't be read or decompressed, or a line is longer than `MAX_LINE_BYTES`.
        """
        self.line, rest = 1, b""
        for chunk in self.chunks(size):
            cut = chunk.rfind(b"\n") + 1
            if cut == 0:
                rest += chunk
                if len(rest) > MAX_LINE_BYTES:
                    raise self.error(f"a line longer than {MAX_LINE_BYTES >> 20} MiB", self.line)
                continue
            if cut - chunk.find(b"\n") > MAX_LINE_BYTES or len(rest) + chunk.find(b"\n") > MAX_LINE_BYTES:
                raise self.error(f"a line longer than {MAX_LINE_BYTES >> 20} MiB", self.line)
            block = rest + chunk[:cut] if rest else chunk[:cut] if cut < len(chunk) else chunk
            rest = chunk[cut:]
            yield block
        if rest:
            yield rest + b"\n"

    def document(self) -> bytes:
        """The whole file, for formats that are one JSON document. Raises TraceError above `MAX_DOCUMENT_BYTES`."""
        parts, total = [], 0
        for chunk in self.chunks(BLOCK_BYTES):
            total += len(chunk)
            if total > MAX_DOCUMENT_BYTES:
                raise self.error(f"one JSON document of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
            parts.append(chunk)
        return b"".join(parts)

    def head(self, size: int = 1 << 16) -> bytes:
        """The first decompressed bytes (byte order mark removed)."""
        for chunk in self.chunks(size):
            return chunk[:size]
        return b""

    def chunks(self, size: int) -> Iterator[bytes]:
        """Decompressed bytes; a UTF-8 byte order mark at the start is dropped."""
        digest = hashlib.sha256()
        try:
            with open_regular(self.path) as raw, ThreadPoolExecutor(1) as helper:
                hashing = _Hashing(raw, digest, helper)
                stream = self._open(raw, hashing)
                total, first = 0, True
                while True:
                    chunk = stream.read(size)
                    if first:
                        first = False
                        chunk = chunk.removeprefix(_BOM)
                        if chunk.startswith((b"\xff\xfe", b"\xfe\xff")):
                            raise self.error("is UTF-16 text; UTF-8 is expected")
                    if not chunk:
                        break
                    total += len(chunk)
                    if stream is not hashing and total > max(BOMB_FLOOR_BYTES, BOMB_RATIO * hashing.count):
                        raise self.error(
                            f"expands more than {BOMB_RATIO}-fold when decompressed ({total:,} bytes and more): "
                            "refused; decompress it yourself if it is genuine"
                        )
                    yield chunk
                if isinstance(stream, _Zstd):
                    _end_of_frames(raw)
                while hashing.read(1 << 20):
                    pass
                hashing.settle()
        except (OSError, EOFError, zlib.error) as exc:
            raise self.error(f"cannot be read: {getattr(exc, 'strerror', None) or exc}") from None
        self.sha256 = digest.hexdigest()

    def _open(self, raw: IO[bytes], hashing: _Hashing) -> Any:
        magic = raw.read(4)
        raw.seek(0)
        if magic[:2] == _GZIP:
            return gzip.GzipFile(fileobj=hashing)
        if magic == _ZSTD or (magic[1:] == _SKIPPABLE and magic[0] >> 4 == 5):
            try:
                import zstandard
            except ImportError:
                raise MissingExtraError(f"{self.name}: reading zstd", "zstd") from None
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
                cast("IO[bytes]", hashing), read_across_frames=True
            )
            return _Zstd(reader, zstandard.ZstdError)
        return hashing


class _Hashing(io.RawIOBase):
    """Reads from a file and hashes what passes."""

    def __init__(self, raw: IO[bytes], digest: Any, helper: ThreadPoolExecutor) -> None:
        self.raw, self.digest, self.count, self.helper = raw, digest, 0, helper
        self.pending: Future[None] | None = None

    def read(self, size: int = -1) -> bytes:
        data = self.raw.read(size)
        if len(data) < 1 << 16:
            self.settle()
            self.digest.update(data)
        else:  # beside the reading
            self.settle()
            self.pending = self.helper.submit(self.digest.update, data)
        self.count += len(data)
        return data

    def settle(self) -> None:
        """Waits until all that was read is hashed."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def readable(self) -> bool:
        return True


def _end_of_frames(raw: IO[bytes]) -> None:
    """Walks a zstd file's blocks. Raises EOFError where it ends within a frame: the decompressor takes that for an end.
    The position is where it was."""
    before, size = raw.tell(), raw.seek(0, io.SEEK_END)
    at = 0

    def whole(count: int) -> int:
        """The little-endian number of the next `count` bytes."""
        nonlocal at
        raw.seek(at)
        at += count
        return int.from_bytes(raw.read(count), "little")

    while at < size:
        if whole(4) >> 4 == _SKIPPABLE_NUMBER:
            length = whole(4)
            at += length
            continue
        flags = whole(1)
        single = flags >> 5 & 1
        at += (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        last = False
        while not last and at < size:
            block = whole(3)
            last = bool(block & 1)
            at += 1 if block >> 1 & 3 == 1 else block >> 3  # one repeated byte, or as many as it says
        at += 4 * (flags >> 2 & 1)  # checksum
        if not last:
            at = size + 1
    raw.seek(before)
    if at > size:
        raise EOFError("the file ends within a zstd frame: it was cut short")


class _Zstd:
    """zstandard's errors as OSError."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self.reader, self.errors = reader, error

    def read(self, size: int) -> bytes:
        try:
            return bytes(self.reader.read(size))
        except self.errors as exc:
            raise OSError(None, str(exc)) from None
