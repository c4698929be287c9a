"""`prefixsim trace ...` as a person types it: output, JSON, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_formats import FILES, write

from prefixsim.workload.formats.registry import formats
from robustness.driving import apart, prefixsim


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tiny files of some formats."""
    base = tmp_path_factory.mktemp("traces")
    for kind in ("mooncake", "azure", "openai"):
        (base / kind).mkdir()
        write(base / kind, kind)
    return base


def test_describe_as_json_and_text_and_html(folder, tmp_path):
    path = str(folder / "mooncake" / "t.jsonl")
    page = tmp_path / "page.html"
    run = prefixsim(
        "trace", "describe", path, "--json", "--html", str(page), "--granularity", "1", "--granularity", "512"
    )
    assert (run.code, run.err) == (0, "")
    d = json.loads(run.out)
    assert d["ceilings"] == {
        "token": {"hit_tokens": 1536, "prompt_tokens": 3024, "share": 1536 / 3024},
        "512": {"hit_tokens": 1536, "prompt_tokens": 3024, "share": 1536 / 3024},
    }
    assert {c["name"] for c in d["decisions"]} >= {"format", "block_size", "tail", "time_unit"}
    text = page.read_text()
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "1,536" in text
    run = prefixsim("trace", "describe", path)
    assert "ceilings" in run.out
    assert "ceil(input_length / 512)" in run.out


def test_lengths_only_has_no_ceiling(folder):
    run = prefixsim("trace", "describe", str(folder / "azure" / "t.csv"))
    assert run.code == 0
    assert "ceilings: unknown, not 0" in run.out
    run = prefixsim("trace", "describe", str(folder / "azure" / "t.csv"), "--set", "sharing.families=2", "--json")
    d = json.loads(run.out)
    assert d["synthetic"]
    assert "ceilings" in d


def test_convert_and_back(folder, tmp_path):
    out = tmp_path / "n.jsonl"
    run = prefixsim("trace", "convert", str(folder / "openai" / "t.jsonl"), "--out", str(out))
    assert (run.code, run.out) == (0, "")
    assert len(out.read_text().splitlines()) == 2
    assert not list(tmp_path.glob(".*.tmp"))
    piped = apart("trace", "convert", folder / "openai" / "t.jsonl", "--out", "-")
    assert piped.stdout.decode() == out.read_text()


def test_errors_name_file_key_and_neighbour(folder, tmp_path):
    cases = [
        (["describe", str(tmp_path / "none.jsonl")], "no such file"),
        (["describe", str(folder / "mooncake" / "t.jsonl"), "--format", "moncake"], "did you mean 'mooncake'"),
        (["describe", str(folder / "mooncake" / "t.jsonl"), "--set", "sharing.familis=2"], "did you mean 'families'"),
        (["describe", str(folder / "mooncake" / "t.jsonl"), "--set", "time_scale=-1"], "time_scale"),
        (["describe", str(folder / "mooncake" / "t.jsonl"), "--block-size", "16"], "t.jsonl:1: hash_ids"),
        (["convert", str(folder / "azure" / "t.csv"), "--out", str(tmp_path / "x")], "lengths only"),
        (["convert", str(folder / "openai" / "t.jsonl"), "--out", str(tmp_path / "no" / "x")], "could not be written"),
        (["fit", str(folder / "azure" / "t.csv"), "--out", str(tmp_path / "x")], "lengths only"),
    ]
    for words, expected in cases:
        run = prefixsim("trace", *words)
        assert run.code == 2, words
        assert expected in run.err, (words, run.err)
        assert "Traceback" not in run.err
        assert run.out == ""
    assert not (tmp_path / "x").exists()


def test_formats_and_docs_list_the_same(request):
    run = prefixsim("trace", "formats", "--json")
    names = [row["format"] for row in json.loads(run.out)]
    assert names == sorted(formats()) == sorted(FILES)
    page = (request.config.rootpath / "docs" / "traces.md").read_text()
    assert all(f"| `{name}` |" in page for name in names)


def test_fit_runs_as_a_scenario(folder, tmp_path):
    out = tmp_path / "fitted.yaml"
    run = prefixsim("trace", "fit", str(folder / "mooncake" / "t.jsonl"), "--out", str(out), "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["requests"] == 3
    assert prefixsim("validate", str(out)).code == 0
