"""Text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap

WIDTH = 80


def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
    """A paragraph in lines of at most WIDTH columns (but for longer words); `first` and `rest` begin its lines."""
    return "\n".join(
        textwrap.wrap(
            text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def fitted(text: str) -> str:
    """Lines that are too long go on in the next one, four columns further in."""
    out = []
    for line in text.split("\n"):
        body = line.lstrip(" ")
        indent = line[: len(line) - len(body)]
        out.append(line.rstrip() if len(line) <= WIDTH else wrapped(body, indent, indent + "    "))
    return "\n".join(out)
