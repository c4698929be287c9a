"""Tokenizers: a built-in approximation without downloads, and real ones from local files."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from prefixsim.errors import MissingExtraError, TraceError, nearest
from prefixsim.paths import open_regular, read_regular

MAX_BYTES = 256 << 20
Encode = Callable[[str], list[int]]

_PIECE = re.compile(r"[^\S\n]?[^\W\d_]{1,9}|\d{1,3}|[^\S\n]?[^\w\s]{1,3}|_+|[^\S\n]+|\n+")
"""Words in pieces of up to 9 letters with the blank before them, numbers in threes, punctuation, blanks, newlines."""


class Tokenizer:
    """`encode(text)` gives ids >= 0 that mean the same within one workload; `special(name)` the id of a control token.
    `words` says what it is, for the output."""

    def __init__(self, encode: Encode, words: str, exact: bool) -> None:
        self.encode = encode
        self.words = words
        self.exact = exact
        self._special: dict[str, int] = {}

    def special(self, name: str) -> int:
        """Id of a control token of a chat template: one token each, apart from all text."""
        return self._special.setdefault(name, (1 << 31) - 2 - len(self._special))


def builtin() -> Tokenizer:
    """The built-in tokenizer. Ids are numbered by first appearance, so they only compare within one workload."""
    known: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [known.setdefault(piece, len(known)) for piece in _PIECE.findall(text)]

    return Tokenizer(encode, "built-in (words and punctuation: an approximation of BPE, no model's own)", False)


def load(name: str, base_dir: Path) -> Tokenizer:
    """`builtin`, `tiktoken:FILE` (a .tiktoken file of ranked tokens) or `tokenizers:FILE` (a Hugging Face tokenizer.json).

    Raises TraceError for unknown names and unreadable files, MissingExtraError without the package.
    """
    kind, _, file = name.partition(":")
    if kind == "builtin" and not file:
        return builtin()
    if kind not in ("tiktoken", "tokenizers") or not file:
        hint = nearest(kind, ["builtin", "tiktoken:FILE", "tokenizers:FILE"])
        raise TraceError(f"unknown tokenizer {name!r}{hint}")
    path = Path(file) if Path(file).is_absolute() else base_dir / file
    try:
        open_regular(path).close()
    except OSError as exc:
        raise TraceError(f"{path}: no such tokenizer file ({exc.strerror or exc})") from None
    return _tiktoken(path) if kind == "tiktoken" else _tokenizers(path)


@contextlib.contextmanager
def _faults(path: Path, what: str) -> Iterator[None]:
    """Whatever a tokenizer's library raises as TraceError; what its Rust code raises is no Exception."""
    try:
        yield
    except BaseException as exc:
        if not isinstance(exc, Exception) and type(exc).__name__ != "PanicException":
            raise
        raise TraceError(f"{path}: {what}: {exc!s:.300}") from None


def _tiktoken(path: Path) -> Tokenizer:
    try:
        import tiktoken
    except ImportError:
        raise MissingExtraError("the tokenizer tiktoken:FILE", "tokenizers") from None
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    with _faults(path, "not a tiktoken file"):
        lines = [line.split() for line in read_regular(path, MAX_BYTES).splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
        if len(ranks) < len(lines) or len(set(ranks.values())) < len(lines):
            raise ValueError("a token or a rank occurs twice")
        if not all(0 <= rank < 1 << 30 for rank in ranks.values()):
            raise ValueError("a rank is below 0 or beyond 2^30")
        if missing := [b for b in range(256) if bytes([b]) not in ranks]:
            raise ValueError(f"byte {missing[0]} has no token, so not every text could be encoded")
        encoding = tiktoken.Encoding(path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Tokenizer(encoding.encode_ordinary, f"tiktoken ranks of {path.name} ({len(ranks):,} tokens)", True)


def _tokenizers(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError:
        raise MissingExtraError("the tokenizer tokenizers:FILE", "tokenizers") from None
    with _faults(path, "not a tokenizer.json"):
        fast = Fast.from_str(read_regular(path, MAX_BYTES).decode())
    size = fast.get_vocab_size()

    def encode(text: str) -> list[int]:
        with _faults(path, "cannot encode"):  # some faults of the file show at the first text that meets them
            return list(fast.encode(text, add_special_tokens=False).ids)

    return Tokenizer(encode, f"Hugging Face tokenizers file {path.name} ({size:,} tokens)", True)
