"""The Prometheus text format: names, labels, writing and reading. No other module knows how it is spelt."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prefixsim.errors import InputError, Problem

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_SHARE_WORDS = {"perc", "usage", "rate", "ratio"}
_GAUGE_WORDS = _SHARE_WORDS | {"running", "waiting", "queue", "available", "evictable", "used", "nodes"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels, a value."""

    name: str
    labels: Mapping[str, str]
    value: float


def is_gauge(name: str) -> bool:
    """Whether an engine's metric goes up and down (a counter only grows). SGLang spells every counter with `_total`; vLLM's
    names are without it, so there words decide."""
    if name.endswith("_total"):
        return False
    return name.startswith("sglang:") or bool(_words(name) & _GAUGE_WORDS)


def is_share(name: str) -> bool:
    """Whether a metric is a share, which cannot be added up over servers."""
    return bool(_words(name) & _SHARE_WORDS)


def _words(name: str) -> set[str]:
    return set(re.split("[_:]", name))


def spell_labels(labels: Mapping[str, str]) -> str:
    """{a="1",b="x"}, escaped; "" without labels."""
    if not labels:
        return ""
    inside = ",".join(
        f'{k}="{str(v).replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + "n").replace(chr(34), chr(92) + chr(34))}"'
        for k, v in labels.items()
    )
    return "{" + inside + "}"


def spell_value(value: float) -> str:
    """A value as Prometheus reads it; whole numbers without a point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def spell_bound(bound: float) -> str:
    """A bucket's upper bound as the engines' client library spells it: 0.5, 120.0, 1e+06."""
    spelt = repr(float(bound))
    return f"{bound:g}" if spelt.find(".") > 6 else spelt


def split_name(spelt: str) -> tuple[str, dict[str, str]] | None:
    """'sglang:x_total{mode="input"}' -> (name, labels); None where it is no metric (a note such as "hit rate (log line)").
    Label values may be without quotes."""
    match = NAME.match(spelt)
    if match is None or ":" not in match.group():
        return None
    rest = spelt[match.end() :].strip()
    if not rest:
        return match.group(), {}
    if not (rest.startswith("{") and rest.endswith("}")):
        return None
    labels = {}
    for item in filter(None, rest[1:-1].split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            return None
        labels[key.strip()] = value.strip().strip('"')
    return match.group(), labels


def parse(lines: Iterable[str], file: str) -> Iterator[Sample]:
    """Samples of a scrape, in order. Raises InputError with the line's number for a line that is none."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield _sample(text, file, number)


def _sample(text: str, file: str, number: int) -> Sample:
    match = NAME.match(text)
    if match is not None:
        rest, labels = text[match.end() :], {}
        at = 0
        if rest.startswith("{"):
            at = 1
            while at < len(rest) and rest[at] != "}":
                label = _LABEL.match(rest, at)
                if label is None:
                    break
                labels[label.group(1)] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], label.group(2))
                at = label.end()
            at = at + 1 if at < len(rest) and rest[at] == "}" else -1
        words = rest[at:].split() if at >= 0 else []
        if 1 <= len(words) <= 2 or (words and words[1:2] and words[1].startswith("#")):
            try:
                return Sample(match.group(), labels, float(words[0]))
            except ValueError:
                pass
    raise InputError(Problem(f"expected a metric and its value, found '{text[:60]}'", file=file, line=number))
