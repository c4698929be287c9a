"""The compiled scanner against a general JSON decoder: equal values or left to it, never a guess."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.errors import TraceError
from prefixsim.workload.formats.native import _Inline
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.rows import BadRows, Key, RowTable, decode_slowly, read_rows

KEYS = (Key("t", "num"), Key("ids", "ints"), Key("more", "ints"), Key("name", "str"), Key("flag", "bool"))

number = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(-1e299, 1e299),
    st.decimals(-1000, 1000, places=4).map(float),
)
ids = st.lists(st.one_of(st.integers(0, 50), st.integers(0, (1 << 64) - 1)), max_size=5)
good_row = st.fixed_dictionaries(
    {},
    optional={
        "t": st.one_of(number, st.none()),
        "ids": st.one_of(ids, st.none()),
        "more": ids,
        "name": st.text(max_size=8),
        "flag": st.booleans(),
        "else": st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2)),
    },
)
spaces = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " : ")])


def rows_of(table: RowTable) -> list[dict]:
    """Rows of a table as dictionaries; absent and null keys left out."""
    out = []
    for r in range(table.n):
        row = {}
        for key in KEYS:
            if not table.has[key.name][r]:
                continue
            if key.kind in ("num", "bool"):
                row[key.name] = table.number[key.name][r]
            elif key.kind == "ints":
                a, n = table.start[key.name][r], table.count[key.name][r]
                row[key.name] = [x % (1 << 64) for x in table.flat[a : a + n].tolist()]
            else:
                row[key.name] = table.text[key.name][r]
        out.append(row)
    return out


def scan(data: bytes) -> tuple[RowTable, BadRows]:
    """Reads inline data, bad rows collected."""
    file = _Inline(data)
    bad = BadRows(file, skip=True)
    return read_rows(file, KEYS, bad), bad


@given(st.lists(good_row, max_size=6), spaces, st.booleans())
@settings(max_examples=300)
def test_scanner_reads_what_json_reads(rows, separators, crlf):
    end = "\r\n" if crlf else "\n"
    text = end.join(json.dumps(r, separators=separators) for r in rows)
    table, bad = scan(text.encode())
    assert not bad.problems
    expected = [{k: v for k, v in r.items() if k != "else" and v is not None} for r in rows]
    for row in expected:
        for key in ("t", "flag"):
            if key in row:
                row[key] = float(row[key])
    assert rows_of(table) == expected
    assert table.line.tolist() == list(range(1, len(rows) + 1))


MUTATIONS = b'{}[],:"\\0123456789.eE+-tfnulras \t\n\r\x00\xff\xc3'


@given(
    good_row,
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(list(MUTATIONS))), min_size=1, max_size=3),
    st.integers(0, 2),
)
@settings(max_examples=1500)
def test_mutated_rows_are_read_as_json_or_refused(row, edits, kind):
    raw = bytearray(json.dumps(row).encode())
    for at, byte in edits:
        at %= len(raw) + 1
        if kind == 0 and at < len(raw):
            raw[at] = byte
        elif kind == 1:
            raw.insert(at, byte)
        elif at < len(raw):
            del raw[at]
    for line in bytes(raw).split(b"\n"):
        table, bad = scan(line)
        assert table.n + bad.count + table.blank <= 1
        if table.n:
            slow = decode_slowly(line, 1, KEYS, BadRows(_Inline(b""), skip=True))
            assert slow is not None, "the scanner took what the decoder refuses"
            expected = {k.name: slow[k.name] for k in KEYS if slow.get(k.name) is not None}
            found = rows_of(table)[0]
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                if isinstance(value, list):
                    assert [v % (1 << 64) for v in value] == found[key]
                elif isinstance(value, str):
                    assert value == found[key]
                else:
                    assert float(value) == found[key]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"t": 1e999}', "t"),
        (b'{"t": NaN}', "not valid JSON"),
        (b'{"t": 1, "t": 2}', "twice"),
        (b'{"t": "x"}', "expected a number, found text 'x'"),
        (b'{"t": true}', "expected a number, found true"),
        (b'{"ids": [1, -2]}', "found -2"),
        (b'{"ids": [1.5]}', "found 1.5"),
        (b'{"ids": [18446744073709551616]}', "64-bit"),
        (b'{"ids": {}}', "found an object"),
        (b'{"ids": [01]}', "not valid JSON"),
        (b'{"name": 3}', "expected text, found 3"),
        (b'{"flag": 1}', "expected true or false, found 1"),
        (b"[1]", "expected an object, found a list"),
        (b'{"t": 1} x', "not valid JSON"),
        (b'{"t": 1', "not valid JSON"),
        (b'{"name": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"else": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"t": ' + b"9" * 5000 + b"}", "t"),
    ],
)
def test_bad_lines_say_what_is_wrong(line, words):
    table, bad = scan(b'{"t": 0}\n\n' + line + b"\n")
    assert table.n == 1
    assert bad.count == 1
    assert bad.problems[0].line == 3
    assert words in str(bad.problems[0])


def test_problems_are_collected_and_bounded():
    file = _Inline(b'{"t": []}\n' * 100)
    bad = BadRows(file, skip=False)
    with pytest.raises(TraceError) as caught:
        read_rows(file, KEYS, bad)
    assert 20 <= len(caught.value.problems) <= 22
    assert "on_bad_row: skip" in str(caught.value)


def test_ids_above_31_bits_in_a_later_block(monkeypatch):
    """The list array turns 64-bit when the first wide id comes; earlier ones stay as they were."""
    rows = [{"ids": [k, k + 1]} for k in range(50)] + [{"ids": [1 << 40, 7]}, {"ids": [3]}]
    data = b"".join(json.dumps(r).encode() + b"\n" for r in rows)
    file = _Inline(data)
    monkeypatch.setattr(
        _Inline, "chunks", lambda self, size: (self.data[i : i + 97] for i in range(0, len(self.data), 97))
    )
    table = read_rows(file, KEYS, BadRows(file, skip=False))
    assert table.flat.dtype == np.int64
    assert [r["ids"] for r in rows_of(table)] == [r["ids"] for r in rows]
    assert table.line.tolist() == list(range(1, 53))


def test_many_rows_in_one_block(monkeypatch):
    from prefixsim.workload import rows as module

    monkeypatch.setattr(module, "ROWS_AT_ONCE", 16)
    data = b"".join(b'{"t": %d, "ids": [%d]}\n%s' % (k, k, b"\n" if k % 5 == 0 else b"") for k in range(100))
    table, bad = scan(data)
    assert not bad.count
    assert table.number["t"].tolist() == list(map(float, range(100)))
    assert table.blank == 20
    assert all(table.line[k] == k + 1 + math.ceil(k / 5) for k in range(100))


def test_unknown_keys_are_counted_with_a_hint():
    from prefixsim.workload.rows import unknown_note

    table, _ = scan(b'{"t": 1}\n{"nmae": "x", "ids": []}\n{"nmae": "y", "z": {"a": 1}}\n')
    note = unknown_note(table, KEYS)
    assert note is not None
    assert "'nmae' on line 2" in note
    assert "did you mean 'name'" in note
    assert "3 times" in note


def test_compressed_files_read_the_same(tmp_path: Path):
    import gzip

    import zstandard

    data = b"".join(b'{"t": %d}\n' % k for k in range(1000))
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(gzip.compress(data[:4000]) + gzip.compress(data[4000:]))
    (tmp_path / "c").write_bytes(zstandard.compress(data))
    (tmp_path / "d").write_bytes(b"\xef\xbb\xbf" + data)
    tables = []
    for name in "abcd":
        file = TraceFile(tmp_path / name)
        tables.append(read_rows(file, KEYS, BadRows(file, skip=False)))
        assert len(file.sha256) == 64
    assert all(t.number["t"].tolist() == tables[0].number["t"].tolist() for t in tables)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "truncated", "nonsense", "utf16", "long line"])
def test_hostile_files_are_refused_with_bounded_memory(tmp_path: Path, kind, monkeypatch):
    import gzip

    import zstandard

    from prefixsim.workload import lines

    monkeypatch.setattr(lines, "BOMB_FLOOR_BYTES", 1 << 20)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 22)
    path = tmp_path / "t.jsonl"
    bomb = b"\n" * (8 << 20)
    data = {
        "gzip": gzip.compress(bomb),
        "zstd": zstandard.compress(bomb),
        "truncated": gzip.compress(b'{"t": 1}\n' * 1000)[:-20],
        "nonsense": b"\x1f\x8b" + b"x" * 100,
        "utf16": '{"t": 1}\n'.encode("utf-16"),
        "long line": b"[" + b"1," * (3 << 20),
    }[kind]
    path.write_bytes(data)
    words = {"gzip": "expands", "zstd": "expands", "truncated": "cannot be read", "nonsense": "cannot be read",
             "utf16": "UTF-16", "long line": "a line longer than"}[kind]  # fmt: skip
    file = TraceFile(path)
    with pytest.raises(TraceError, match=words):
        read_rows(file, KEYS, BadRows(file, skip=True))
