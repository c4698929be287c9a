"""Whatever is given in place of a scenario, study, baseline, profile or trace: exit 2, one message, no waiting."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from prefixsim.errors import PrefixsimError
from prefixsim.scenario.identity import resolved_yaml
from prefixsim.scenario.load import variants
from robustness.driving import deadline, for_people, prefixsim
from robustness.scenarios import SMALL, mutated, shipped, write

COMMANDS = [
    ["validate"],
    ["run"],
    ["check"],
    ["sweep"],
    ["plan"],
    ["explain"],
    ["curve"],
    ["trace", "describe"],
    ["report"],
]
TEXTS = {
    "empty": b"",
    "aliases": ("a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))).encode(),
    "flow depth": b"name: " + b"[" * 100_000,
    "block depth": "\n".join("  " * i + "a:" for i in range(1000)).encode(),
    "many values": b"name: [" + b"1," * 900_000 + b"1]",
    "long scalar": b"name: " + b"a" * 3_000_000 + b"\n",
    "too large": b"name: " + b"a" * 10_000_000,
    "python tag": b'name: !!python/object/apply:os.system ["exit 1"]\n',
    "nul": b"name: a\x00b\n",
    "latin-1": b"name: \xe9\n",
    "utf-16": "name: x\n".encode("utf-16"),
    "escape": b'"\\e[31mname": 1\n',
    "long number": b"seed: " + b"9" * 5000 + b"\n",
}


def special(folder: Path, kind: str) -> Path:
    """Something that is no regular file."""
    path = folder / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(folder / "nowhere")
    else:
        return Path(kind)
    return path


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "dangling", "/dev/zero", "/dev/null", "/proc/self/mem"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_no_regular_file_is_refused(tmp_path, command, kind):
    for_people(prefixsim(*command, special(tmp_path, kind), seconds=10))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("command", [["validate"], ["sweep"], ["plan"]], ids=" ".join)
def test_hostile_texts_are_refused_soon(tmp_path, command, name):
    if name == "many values" and command != ["validate"]:
        pytest.skip("one reader, the same for all")
    path = tmp_path / "s.yaml"
    path.write_bytes(TEXTS[name])
    text = for_people(prefixsim(*command, path, seconds=20))
    assert "s.yaml" in text


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_baselines_and_profiles_that_are_no_files_are_refused(tmp_path, kind):
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SMALL)
    place = special(tmp_path, kind)
    for_people(prefixsim("check", scenario, "--baseline", place, seconds=10))
    for_people(prefixsim("step-time", "--gpu", place, "--model", "llama-3.1-8b", "--decode", "1x1", seconds=10))
    for_people(prefixsim("step-time", "--gpu", "h100-sxm-80g", "--model", place, "--decode", "1x1", seconds=10))


BASELINES = {
    "not JSON": b"{",
    "list": b"[]",
    "depth": b"[" * 100_000,
    "digits": b'{"schema_version": ' + b"9" * 5000 + b"}",
    "other version": b'{"schema_version": 2}',
    "infinite": b'{"schema_version": 1, "scenarios": {"small": {"run_id": "x", "prefixsim": "0", "prompt_tokens": 1e999}}}',
    "wrong type": b'{"schema_version": 1, "scenarios": {"small": []}}',
    "not UTF-8": b'{"schema_version": 1, "\xff": 1}',
}


@pytest.mark.parametrize("name", BASELINES)
def test_damaged_baselines_are_refused(tmp_path, name):
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "b.json").write_bytes(BASELINES[name])
    text = for_people(prefixsim("check", tmp_path / "s.yaml", "--baseline", tmp_path / "b.json"))
    assert "b.json" in text


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", '{"num_hidden_layers": 1e999}']
)
def test_damaged_model_configs_are_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert "config.json" in for_people(
        prefixsim("step-time", "--gpu", "h100-sxm-80g", "--model", path, "--decode", "1x1")
    )


def rounds(path: Path, seed: int, count: int) -> dict[str, int]:
    """Mutated scenarios are accepted, or refused with a message that names the file."""
    rng, documents = random.Random(seed), shipped()
    seen = {"fine": 0, "refused": 0}
    for _ in range(count):
        write(path, mutated(rng.choice(documents), rng))
        fault = None
        with deadline(10):
            try:
                for scenario in variants(path):
                    resolved_yaml(scenario)
            except PrefixsimError as exc:
                fault = str(exc)
        seen["fine" if fault is None else "refused"] += 1
        assert fault is None or (path.name in fault and len(fault) < 8000), fault
    return seen


def test_mutated_scenarios_are_accepted_or_refused(tmp_path):
    seen = rounds(tmp_path / "s.yaml", seed=1, count=60)
    assert min(seen.values()) > 1, seen


@pytest.mark.slow
def test_thousands_of_mutated_scenarios(tmp_path):
    seen = rounds(tmp_path / "s.yaml", seed=2, count=5000)
    assert min(seen.values()) > 100, seen


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path):
    path = write(tmp_path / "s.yaml", {"name\x07x\x1b[2J": 1})
    text = for_people(prefixsim("validate", path))
    assert r"name\x07x\x1b[2J" in text
    assert json.loads(prefixsim("validate", path, "--json").out)["problems"]
