"""From the command line: save a cache, begin from it, and be told what is not in the numbers."""

from __future__ import annotations

import csv
import json

from robustness.driving import prefixsim

from .test_warm import ENGINES, rows, write


def scene(folder, more=""):
    path = folder / "scene.yaml"
    path.write_text(f"name: scene\nworkload: {{trace: {{path: main.jsonl}}}}\n{more}\n{ENGINES}")
    return path


def test_save_begin_explain(tmp_path):
    write(tmp_path / "main.jsonl", rows(60, 2))
    cache, out = tmp_path / "cache.jsonl", tmp_path / "out"
    refused = prefixsim("run", scene(tmp_path), "--save-cache", cache, "--out", out)
    assert (refused.code, refused.out) == (2, "")
    assert "--engine" in refused.err
    assert not cache.exists()
    done = prefixsim("run", scene(tmp_path), "--engine", "hash", "--save-cache", cache, "--out", out, "-q")
    assert done.code == 0, done.err
    assert "warm-up" not in done.out
    first = cache.read_bytes()
    again = prefixsim("run", scene(tmp_path), "--engine", "hash", "--save-cache", cache, "--out", out, "-q")
    assert (again.code, cache.read_bytes()) == (0, first)

    warm = scene(tmp_path, "prime: {saved: cache.jsonl}\nwarm_up: {requests: 20}")
    done = prefixsim("run", warm, "--out", out, "-q")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "primed with" in said
    assert "20 requests" in said
    with (out / "requests.csv").open(newline="") as f:
        table = list(csv.DictReader(f))
    assert len(table) == 2 * 40
    assert {row["id"] for row in table} == {f"r2-{i}" for i in range(20, 60)}
    summary = json.loads((out / "summary.json").read_text())
    for name, engine in summary["engines"].items():
        mine = [row for row in table if row["engine"] == name]
        assert engine["cached_tokens"] == sum(int(row["cached_tokens"]) for row in mine)
        assert engine["prompt_tokens"] == sum(int(row["prompt_tokens"]) for row in mine) == summary["prompt_tokens"]
    text = " ".join(summary["notes"])
    assert "simulated and are in no metric" in text
    assert "replayed" in text
    html = (out / "report.html").read_text()
    assert "simulated and are in no metric" in html

    found = prefixsim("explain", warm, "--json", "-q")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert told["requests"] == 60
    assert any("left aside" in note for note in told["notes"])
    cold = prefixsim("explain", scene(tmp_path), "--json", "-q")
    assert json.loads(cold.out)["engines"]["hash"] == told["engines"]["hash"]
