"""What is far too large is refused at once with an estimate; what is large is announced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixsim import machine
from robustness.driving import apart, for_people, prefixsim
from robustness.scenarios import SMALL


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    return path


def free(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: size)
    monkeypatch.setattr("prefixsim.pipeline.size.free_bytes", lambda: size)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("workload.requests=1000000000", "200000000"),
        ("workload.requests=150000000", "150,000,000 requests need at least 84 GiB of memory, and 20 GiB are free"),
        ("replicas=10000", "4096"),
        ("workload.templates.0.segments.0.tokens=1000000000000", "1,000,000,000"),
    ],
)
def test_hostile_sizes_are_refused_at_once(scenario, monkeypatch, key, said):
    free(monkeypatch, 20 << 30)
    assert said in for_people(prefixsim("run", scenario, "--set", key, "--out", scenario.parent / "o", seconds=20))
    assert not (scenario.parent / "o").exists()


def test_grids_of_a_million_points_are_refused_at_once(tmp_path):
    axes = [{"key": "seed", "values": list(range(1000))}, {"key": "workload.requests", "values": list(range(1, 1001))}]
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "st.yaml").write_text(json.dumps({"name": "st", "base": "s.yaml", "axes": axes}))
    assert "1,000,000 runs" in for_people(prefixsim("sweep", tmp_path / "st.yaml", "--out", tmp_path / "o"))


@pytest.mark.parametrize(("size", "replicas"), [(17_000, 1), (30_000, 2)])
def test_a_run_that_memory_cannot_hold_is_refused_before_it_is_simulated(scenario, monkeypatch, size, replicas):
    """30 requests in the two engines: 18 kB; with two replicas also 8 bytes a block id of each engine and replica."""
    free(monkeypatch, size)
    words = ["run", scenario, "--set", f"replicas={replicas}", "--out", scenario.parent / "o"]
    monkeypatch.setattr("prefixsim.workload.generators.registry.BYTES_A_REQUEST", 1)
    done = prefixsim(*words)
    text = for_people(done)
    assert "30 requests need at least" in text
    assert ("2 replicas and" in text) == (replicas == 2)
    assert "PREFIXSIM_MEMORY_CHECK=0" in text
    assert "simulating" not in text
    monkeypatch.setenv("PREFIXSIM_MEMORY_CHECK", "0")
    assert prefixsim(*words, seconds=300).code == 0


@pytest.mark.parametrize("size", [None, 1 << 40])
def test_what_is_large_is_announced(scenario, monkeypatch, size):
    monkeypatch.setattr("prefixsim.pipeline.size.SAID_BYTES", 10_000)
    free(monkeypatch, size)
    done = prefixsim("run", scenario, "--out", scenario.parent / "o", seconds=300)
    assert done.code == 0
    assert "small: 30 requests: at least 0.0 GiB more memory" in done.err
    assert ("1,024 GiB are free" in done.err) == (size is not None)


def test_small_runs_are_not_announced(scenario):
    done = prefixsim("run", scenario, "--out", scenario.parent / "o", seconds=300)
    assert "at least" not in done.err


def test_free_memory_is_the_least_of_what_bounds_it(tmp_path, monkeypatch):
    whole = machine.free_bytes()
    assert whole is not None
    assert 1 << 20 < whole < 1 << 50
    (tmp_path / "max").write_text(f"{5 << 20}\n")
    (tmp_path / "used").write_text(f"{2 << 20}\n")
    monkeypatch.setattr(machine, "_CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "used")),))
    assert machine.free_bytes() == 3 << 20
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {1 << 19}\nactive_file {1 << 19}\n")
    assert machine.free_bytes() == 4 << 20  # a container that has read files is not full
    (tmp_path / "memory.stat").write_text(f"inactive_file 9\ntotal_inactive_file {1 << 21}\ntotal_active_file 0\n")
    assert machine.free_bytes() == 5 << 20
    (tmp_path / "memory.stat").write_text("inactive_file\n")
    assert machine.free_bytes() == 3 << 20
    (tmp_path / "max").write_text("max\n")
    assert machine.free_bytes() > 3 << 20
    (tmp_path / "max").write_text(f"{1 << 20}\n")
    assert machine.free_bytes() == 0


def test_a_limit_of_the_process_counts(scenario):
    """4 GiB of address space (`apart`): 10 million requests do not fit, whatever the machine has."""
    done = apart("run", scenario, "--set", "workload.requests=10000000", "--out", scenario.parent / "o")
    assert done.returncode == 2
    assert b"10,000,000 requests need at least 5.6 GiB of memory" in done.stderr
