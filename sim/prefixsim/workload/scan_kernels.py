"""Compiled reading of JSON lines whose values are numbers, plain strings, literals and arrays of integers.

What is not of that shape (escapes, non-ASCII text, nested values, exponents, long numbers, errors) is marked and left to
the slow reader of `rows.py`, which must give the same values; nothing is guessed here. Twin: `rows.decode_slowly`.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"

from __future__ import annotations

import numpy as np

from prefixsim.jit import kernel

NUM, STR, INTS, BOOL, OTHER = range(5)
"""Kinds of columns: number, string, array of integers, true/false, anything else (always read slowly when present)."""

ABSENT, NULL = -1, -2
"""In `count`: the key is not there; its value is null."""

ROW_OK, ROW_SLOW, ROW_BLANK, ROW_DUPLICATE = range(4)

_QUOTE, _BACKSLASH, _NEWLINE, _COMMA, _COLON = 34, 92, 10, 44, 58
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET, _MINUS, _DOT = 123, 125, 91, 93, 45, 46


@kernel
def _space(data, p):
    """First position at or after p that is no blank (newlines are not blank)."""
    while data[p] == 32 or data[p] == 9 or data[p] == 13:
        p += 1
    return p


@kernel
def _number(data, p):
    """A number without exponent and with at most 15 digits. Returns (end or -1, value, digits after the point)."""
    sign = 1.0
    if data[p] == _MINUS:
        sign = -1.0
        p += 1
    start = p
    mantissa = 0
    while 48 <= data[p] <= 57:
        mantissa = mantissa * 10 + (np.int64(data[p]) - 48)
        p += 1
        if p - start > 15:
            return -1, 0.0, 0
    digits = p - start
    if digits == 0 or (digits > 1 and data[start] == 48):
        return -1, 0.0, 0
    decimals = 0
    scale = 1.0
    if data[p] == _DOT:
        p += 1
        while 48 <= data[p] <= 57:
            mantissa = mantissa * 10 + (np.int64(data[p]) - 48)
            scale *= 10.0
            decimals += 1
            p += 1
            if digits + decimals > 15:
                return -1, 0.0, 0
        if decimals == 0:
            return -1, 0.0, 0
    if data[p] == 101 or data[p] == 69:
        return -1, 0.0, 0
    return p, sign * (mantissa / scale), decimals


@kernel
def _string(data, p):
    """Position after the closing quote of a plain ASCII string whose first character is at p; -1 otherwise."""
    while True:
        c = data[p]
        if c == _QUOTE:
            return p + 1
        if c == _BACKSLASH or c < 32 or c > 126:
            return -1
        p += 1


@kernel
def _integers(data, p, values, n_values):
    """An array of non-negative integers of at most 18 digits, p after its bracket.

    Returns (end or -1, values so far, largest). `values` may be int32: the caller repeats with int64 if one was larger.
    """
    largest = np.int64(0)
    narrow = values.itemsize == 4
    p = _space(data, p)
    if data[p] == _CLOSE_BRACKET:
        return p + 1, n_values, largest
    while True:
        start = p
        v = np.int64(0)
        while True:
            d = np.int64(data[p]) - 48
            if d < 0 or d > 9:
                break
            if p - start >= 18:
                return -1, n_values, largest
            v = v * 10 + d
            p += 1
        digits = p - start
        if digits == 0 or (digits > 1 and data[start] == 48):
            return -1, n_values, largest
        if narrow and v > 2147483647:
            v = np.int64(2147483648)  # too wide for the array: all is scanned again into a wider one
        else:
            values[n_values] = v
        largest = max(largest, v)
        n_values += 1
        if data[p] == _COMMA:
            p += 1
            if data[p] == 32:
                p += 1
            if data[p] == 32 or data[p] == 9 or data[p] == 13:
                p = _space(data, p)
        else:
            p = _space(data, p)
            if data[p] == _CLOSE_BRACKET:
                return p + 1, n_values, largest
            if data[p] != _COMMA:
                return -1, n_values, largest
            p = _space(data, p + 1)


@kernel
def _literal(data, p):
    """true, false, null at p: returns (end, 1 / 0 / -1), or (-1, 0)."""
    if data[p] == 116 and data[p + 1] == 114 and data[p + 2] == 117 and data[p + 3] == 101:
        return p + 4, 1
    if data[p] == 102 and data[p + 1] == 97 and data[p + 2] == 108 and data[p + 3] == 115 and data[p + 4] == 101:
        return p + 5, 0
    if data[p] == 110 and data[p + 1] == 117 and data[p + 2] == 108 and data[p + 3] == 108:
        return p + 4, -1
    return -1, 0


@kernel
def _find_key(data, p, length, key_data, key_start):
    """Index of a key among the known ones, -1 if it is none of them."""
    for k in range(key_start.shape[0] - 1):
        a = key_start[k]
        if key_start[k + 1] - a == length:
            same = True
            for i in range(length):
                if data[p + i] != key_data[a + i]:
                    same = False
                    break
            if same:
                return k
    return -1


@kernel
def _scan_row(data, p, key_data, key_start, key_kind, number, start, count, values, n_values, unknown):
    """One row at p (its brace). Returns (status, values so far, where it stopped, largest
    integer of its lists); fills the row's known keys."""
    largest = np.int64(0)
    at = p  # a place in the row up to which there is no newline
    p = _space(data, p + 1)
    if data[p] == _CLOSE_BRACE:
        p += 1
    else:
        while True:
            if data[p] != _QUOTE:
                return ROW_SLOW, n_values, at, largest
            at = p
            key_at = p + 1
            p = _string(data, key_at)
            if p < 0:
                return ROW_SLOW, n_values, at, largest
            k = _find_key(data, key_at, p - 1 - key_at, key_data, key_start)
            if k >= 0 and count[k] != ABSENT:
                return ROW_DUPLICATE, n_values, at, largest
            if k < 0:
                if unknown[0] == 0:
                    unknown[1] = key_at
                    unknown[2] = p - 1 - key_at
                unknown[0] += 1
            p = _space(data, p)
            if data[p] != _COLON:
                return ROW_SLOW, n_values, at, largest
            p = _space(data, p + 1)
            kind = key_kind[k] if k >= 0 else -1
            c = data[p]
            if c == _QUOTE:
                begin = p + 1
                p = _string(data, begin)
                if p < 0 or kind not in (STR, -1):
                    return ROW_SLOW, n_values, at, largest
                if k >= 0:
                    start[k] = begin
                    count[k] = p - 1 - begin
            elif c == _OPEN_BRACKET:
                if kind != INTS:
                    return ROW_SLOW, n_values, at, largest
                begin = n_values
                p, n_values, top = _integers(data, p + 1, values, n_values)
                largest = max(largest, top)
                if p < 0:
                    return ROW_SLOW, begin, at, largest
                start[k] = begin
                count[k] = n_values - begin
            elif c == _MINUS or 48 <= c <= 57:
                p, value, decimals = _number(data, p)
                if p < 0 or kind not in (NUM, -1):
                    return ROW_SLOW, n_values, at, largest
                if k >= 0:
                    number[k] = value
                    count[k] = decimals
            else:
                p, literal = _literal(data, p)
                if p < 0:
                    return ROW_SLOW, n_values, at, largest
                if k >= 0:
                    if literal >= 0:
                        if kind != BOOL:
                            return ROW_SLOW, n_values, at, largest
                        number[k] = literal
                        count[k] = 0
                    else:
                        count[k] = NULL
            p = _space(data, p)
            if data[p] == _COMMA:
                p = _space(data, p + 1)
            elif data[p] == _CLOSE_BRACE:
                p += 1
                break
            else:
                return ROW_SLOW, n_values, at, largest
    p = _space(data, p)
    if data[p] != _NEWLINE:
        return ROW_SLOW, n_values, at, largest
    return ROW_OK, n_values, p, largest


@kernel
def scan_lines(
    data, key_data, key_start, key_kind, line_start, status, number, start, count, values, n_values, begin, unknown
):
    """Scans whole lines (uint8, its last byte a newline) from `begin` on, until the data or the room for rows ends.

    line_start int64 (rows+1,), status int8 (rows,), number float64, start and count int64 (rows, keys), values int64:
    filled, values from n_values on. unknown int64 (3,): occurrences of unknown keys, and where the first one is.
    Returns (rows, values, whether a value does not fit int32, where it stopped).
    """
    size = data.shape[0]
    wide = False
    row = 0
    p = begin
    while p < size and row < status.shape[0]:
        line_start[row] = p
        for k in range(key_kind.shape[0]):
            count[row, k] = ABSENT
            number[row, k] = 0.0
            start[row, k] = 0
        q = _space(data, p)
        if data[q] == _NEWLINE:
            status[row] = ROW_BLANK
            p = q + 1
        else:
            before = n_values
            strange = unknown[0]
            if data[q] == _OPEN_BRACE:
                status[row], n_values, q, largest = _scan_row(
                    data,
                    q,
                    key_data,
                    key_start,
                    key_kind,
                    number[row],
                    start[row],
                    count[row],
                    values,
                    n_values,
                    unknown,
                )
                if largest > 2147483647 and status[row] == ROW_OK:
                    wide = True
            else:
                status[row] = ROW_SLOW
            if status[row] != ROW_OK:
                n_values = before
                unknown[0] = strange
            while data[q] != _NEWLINE:
                q += 1
            p = q + 1
        row += 1
    line_start[row] = p
    return row, n_values, wide, p
