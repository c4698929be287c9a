"""The Python interface: its docstrings' examples run, and it says the same as the command line."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prefixsim as ps
from prefixsim import api, errors

SET = {"workload.requests": 60}


@pytest.mark.parametrize("module", [ps, api], ids=lambda m: m.__name__)
def test_examples(module: object) -> None:
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert done.attempted > 0
    assert done.failed == 0


def test_every_public_function_has_an_example() -> None:
    for name in ("run", "load_scenario", "ceilings", "curve", "Run"):
        assert ">>>" in (getattr(ps, name).__doc__ or ""), name


def test_importing_the_package_is_light() -> None:
    code = "import prefixsim, sys; print('numba' in sys.modules, 'numpy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )


def test_the_same_as_the_command_line(tmp_path: Path) -> None:
    done = ps.run("quickstart", set=SET, out=tmp_path / "run")
    assert done.folder == tmp_path / "run"
    said = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert said["run_id"] == done.run_id
    for name, result in done.engines.items():
        assert result.hit_rate == said["engines"][name]["hit_rate"]
        assert result.ttft_s["p99"] == said["engines"][name]["ttft_s"]["p99"]


def test_requests_sum_to_the_summary() -> None:
    done = ps.run("quickstart", set=SET)
    for name, result in done.engines.items():
        rows = done.requests(name)
        assert rows["cached_tokens"].sum() == result.cached_tokens
        parts = sum(rows[part] for part in api.LEDGER_PARTS)
        assert np.array_equal(parts, rows["prompt_tokens"])


def test_a_mapping_is_a_scenario_too() -> None:
    data = {
        "name": "inline",
        "workload": {
            "generator": "sessions",
            "arrivals": {"process": "poisson", "rate_per_s": 1},
            "requests": 5,
            "templates": [{"name": "t", "segments": [{"shared": "s", "tokens": 100}, {"unique": "u", "tokens": 10}]}],
        },
        "hardware": {"gpu": "h100-sxm-80g", "model": "llama-3.1-8b"},
        "engines": [{"name": "e", "kind": "vllm"}],
    }
    assert ps.run(data).engines["e"].cached_tokens == 4 * 96
    assert data["engines"] == [{"name": "e", "kind": "vllm"}], "the caller's data is not changed"


def test_errors_name_the_nearest() -> None:
    with pytest.raises(errors.ScenarioError, match="did you mean 'quickstart'"):
        ps.run("quickstrat")
    done = ps.run("quickstart", set=SET, engines=["vllm"])
    with pytest.raises(errors.InputError, match="did you mean 'vllm'"):
        done.requests("vlm")
    with pytest.raises(AttributeError, match="did you mean 'hit_rate'"):
        _ = done.engines["vllm"].hit_rat
