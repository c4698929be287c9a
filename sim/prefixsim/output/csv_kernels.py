# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""CSV text from int64 columns, compiled: a table of a million cells takes a few hundredths of a second."""

from __future__ import annotations

from prefixsim.jit import kernel

NEWLINE, COMMA, POINT, MINUS, ZERO = 10, 44, 46, 45, 48
KIND_INT, KIND_SECONDS, KIND_TEXT = 0, 1, 2
"""Integers as they are; ns as seconds, negative ones (never happened) as nothing; indices into a table of texts, -1 nothing."""


@kernel
def write_rows(out, values, kinds, text_column, text_offset, text_bytes, first, last):
    """Writes rows [first, last) of int64 values (n, columns) as CSV into uint8 out; returns the number of bytes.

    kinds int8 (columns,). A text cell of column c with value v is bytes [text_offset[k], text_offset[k + 1]) of text_bytes
    with k = text_column[c] + v. out must have room: `row_bytes` in tables.py.
    """
    at = 0
    for row in range(first, last):
        for column in range(values.shape[1]):
            if column > 0:
                out[at] = COMMA
                at += 1
            value = values[row, column]
            kind = kinds[column]
            if kind == KIND_TEXT:
                if value >= 0:
                    k = text_column[column] + value
                    for i in range(text_offset[k], text_offset[k + 1]):
                        out[at] = text_bytes[i]
                        at += 1
            elif kind == KIND_SECONDS:
                if value >= 0:
                    at = write_seconds(out, at, value)
            else:
                at = write_int(out, at, value)
        out[at] = NEWLINE
        at += 1
    return at


@kernel
def write_int(out, at, value):
    """Writes an integer at position `at`; returns the position behind it."""
    if value < 0:
        out[at] = MINUS
        at += 1
        value = -value
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for i in range(digits):
        out[at + digits - 1 - i] = ZERO + value % 10
        value //= 10
    return at + digits


@kernel
def write_seconds(out, at, ns):
    """Writes ns >= 0 as seconds, exactly, without trailing zeros."""
    at = write_int(out, at, ns // 1_000_000_000)
    fraction = ns % 1_000_000_000
    if fraction > 0:
        out[at] = POINT
        at += 1
        digits = 9
        while fraction % 10 == 0:
            fraction //= 10
            digits -= 1
        for i in range(digits):
            out[at + digits - 1 - i] = ZERO + fraction % 10
            fraction //= 10
        at += digits
    return at
