"""The Python interface: its docstrings' examples run, and it says the same as the command line."""

from __future__ import annotations

import doctest
import inspect
import json
import re
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
    for name in sorted({*ps.__all__} - {"__version__", "Scenario", "PrefixsimError", "SweepPoint"}):
        assert ">>>" in (getattr(ps, name).__doc__ or ""), name


def test_every_public_name_is_on_the_page_and_keyword_only() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "api.md"
    if page.exists():
        assert not [
            n for n in ps.__all__ if f"`{n}`" not in page.read_text() and f"prefixsim.{n}\n" not in page.read_text()
        ]
    for name in ("run", "sweep", "load_scenario", "ceilings", "curve"):
        kinds = [p.kind for p in inspect.signature(getattr(ps, name)).parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 2, name
    assert set(ps.__all__) == {*api.__all__, "__version__"}


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


def test_results_are_said_briefly() -> None:
    done = ps.run("quickstart", set=SET)
    assert (
        repr(done)
        == f"<Run quickstart: vllm {done.metric('vllm.hit_rate'):.1%}, sglang {done.metric('sglang.hit_rate'):.1%}; ceiling {done.ceiling['token']:.1%}>"
    )
    assert len(repr(done.engines)) < 200


def test_numbers_by_name() -> None:
    done = ps.run("quickstart", set=SET, engines="vllm")
    assert done.metric("vllm.ttft_s.p99") == done.engines["vllm"].ttft_s["p99"]
    assert done.metric("vllm.saturated") == 0
    with pytest.raises(ps.PrefixsimError, match=r"did you mean 'vllm\.hit_rate'"):
        done.metric("vllm.hitrate")


def test_timeline_ends_where_the_summary_does() -> None:
    done = ps.run("quickstart", set=SET)
    for name, result in done.engines.items():
        steps = done.timeline(name)
        assert steps["cached_tokens"][-1] == result.cached_tokens
        assert steps["lookup_tokens"][-1] == result.prompt_tokens
        assert (np.diff(steps["start_ns"]) >= 0).all()
    with pytest.raises(errors.InputError, match="no replica 1"):
        done.timeline("vllm", replica=1)


def test_a_data_frame_has_the_rows() -> None:
    pytest.importorskip("pandas")
    done = ps.run("quickstart", set=SET)
    frame = done.frame("vllm")
    assert frame.index.name == "id"
    assert list(frame.columns) == list(done.requests("vllm").dtype.names)
    assert frame["cached_tokens"].sum() == done.engines["vllm"].cached_tokens


def test_a_sweep_is_single_runs() -> None:
    axes = {"engines.vllm.block_size": np.array([16, 64]), "seed": [1, 2]}
    points = ps.sweep("quickstart", axes, set=SET, engines="vllm")
    assert [tuple(p.axes.values()) for p in points] == [(16, 1), (16, 2), (64, 1), (64, 2)]
    for p in points:
        assert ps.run("quickstart", set={**SET, **p.axes}, engines="vllm").run_id == p.run.run_id
    with pytest.raises(errors.ScenarioError, match="blok_size"):
        ps.sweep("quickstart", {"engines.vllm.blok_size": [1]})
    for one in ("round_robin", 7, None, {"kind": "random"}, np.int64(1)):
        with pytest.raises(errors.InputError, match=r"router: found .* expected a list of values"):
            ps.sweep("quickstart", {"router": one})  # type: ignore[dict-item]


def test_a_finished_scenario_is_a_source_everywhere() -> None:
    scenario = ps.load_scenario("quickstart", set=SET)
    assert ps.ceilings(scenario) == ps.ceilings("quickstart", set=SET)
    blocks, hits = ps.curve(scenario, granularity=64)
    assert hits[-1] <= ps.ceilings(scenario, granularities=[64])[64] * ps.run(scenario).summary["prompt_tokens"] + 1e-6
    assert len(blocks) == len(hits)
    with pytest.raises(errors.InputError, match="not changed"):
        ps.run(scenario, set=SET)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ps.ceilings("quickstart", granularities=(0,)),
        lambda: ps.curve("quickstart", granularity=-1),
        lambda: ps.curve("quickstart", policy="lfu"),  # type: ignore[arg-type]
        lambda: ps.ceilings("nowhere.jsonl"),
        lambda: ps.ceilings("quickstart", format="native"),
        lambda: ps.run({}),
        lambda: ps.run("quickstart", engines=["v"]),
        lambda: ps.run("quickstart", set={"engines.zz.block_size": 2}),
        lambda: ps.run("quickstart", set={"workload.requests": 20}, out="/proc/nowhere"),
    ],
)
def test_faults_are_the_package_s_own_errors(call) -> None:
    with pytest.raises(ps.PrefixsimError):
        call()


def test_the_page_s_code_runs(capsys) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "api.md"
    if not page.exists():
        pytest.skip("an installed package has no docs folder")
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(code, str(page), "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("<Run quickstart: vllm ")
    assert "{'engines.vllm.block_size': 256}" in said
