"""Every shipped scenario runs and its `expect:` entries hold (`test_effects_off.py`: each entry can fail)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from prefixsim.errors import ScenarioError
from prefixsim.paths import data_dir
from prefixsim.pipeline.prepare import Library
from prefixsim.scenario.load import load_scenario
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.study import PlanSpec, StudySpec
from prefixsim.study import grid
from prefixsim.study.check import Done, judge
from prefixsim.study.executors import SerialExecutor
from prefixsim.study.load import load_study
from prefixsim.study.plan import run_plan
from prefixsim.study.store import PointStore
from prefixsim.study.sweep import run_sweep
from prefixsim.study.tables import headings

FOLDER = data_dir("scenarios")
SCENARIOS = sorted(p.stem for p in FOLDER.glob("*.yaml"))
STUDIES = sorted(p.stem for p in (FOLDER / "studies").glob("*.yaml"))
CLAIMS = tuple(f"C{n}" for n in range(1, 19))


def outside_data(scenario: Scenario) -> Path | None:
    """The trace a scenario reads from beside the checkout, where that is absent."""
    trace = getattr(scenario.workload, "trace", None)
    path = scenario.base_dir / trace.path if trace is not None else None
    return path if path is not None and not path.exists() else None


def marked(name: str):
    """Scenarios on traces from beside the checkout take seconds to read."""
    return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.shared]) if name.startswith("mooncake") else name


@pytest.mark.parametrize("name", [marked(n) for n in SCENARIOS])
def test_scenario(name):
    from prefixsim.pipeline.run import run_scenario

    scenario = load_scenario(name)
    missing = outside_data(scenario)
    if missing is not None:
        pytest.skip(f"no reference data at {missing}")
    assert scenario.name == name
    assert len(scenario.description) > 20
    assert scenario.expect
    run = run_scenario(scenario, library=Library(keep=1))
    result, _ = judge(name, scenario, [Done(run.summary, [], 0.0)], None)
    failed = [f"{c.metric}: {c.found}, expected {c.wanted}" for c in result.checks if not c.ok]
    assert not failed
    for part in run.summary["engines"].values():
        if "ledger" in part:
            assert sum(part["ledger"].values()) == part["prompt_tokens"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_purpose_is_written_down(name):
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../docs/schema/scenario.schema.json"
    assert sum(line.startswith("#") for line in lines) >= 3


def test_every_claim_has_a_scenario():
    text = "\n".join(p.read_text() for p in FOLDER.glob("claim-*.yaml"))
    assert not [claim for claim in CLAIMS if not re.search(rf"\b{claim}\b", text)]


def test_gallery_page_names_every_scenario():
    docs = FOLDER.parent / "docs"
    if not docs.is_dir():
        pytest.skip("an installed package has no docs folder")
    gallery = (docs / "gallery.md").read_text()
    assert not [n for n in SCENARIOS if f"`{n}`" not in gallery]
    studies = (docs / "studies.md").read_text()
    assert not [n for n in STUDIES if f"{n}.yaml" not in studies]


@pytest.mark.parametrize("name", STUDIES)
def test_study_expands(name):
    path = FOLDER / "studies" / f"{name}.yaml"
    data = yaml.safe_load(path.read_text())
    if "axes" not in data:
        spec = load_study(path, PlanSpec)
        assert spec.spec.window_s, "without a window the answer comes from ramp-up and drain"
        settings = grid.axis_lists(spec.spec.over) or [[{}]]
        spec.scenario({k: v for axis in settings for k, v in axis[0].items()})
        return
    study = load_study(path, StudySpec)
    points = grid.points(study.spec.axes, study.spec.exclude, study.spec.repeats, file=str(path))
    assert 2 <= len(points) <= 100
    for point in points:
        if point.repeat == 0:
            study.scenario(point.axes)


def reduced(name: str, folder: Path, **changes) -> Path:
    """A copy of a study template with keys changed."""
    data = yaml.safe_load((FOLDER / "studies" / f"{name}.yaml").read_text())
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}))
    return path


def test_a_sweep_template_runs(tmp_path):
    key = "workload.templates.bot.segments[0].tokens"
    original = yaml.safe_load((FOLDER / "studies" / "alignment.yaml").read_text())
    small = {**original["set"], "workload.requests": 60}
    path = reduced("alignment", tmp_path, set=small, axes=[{"key": key, "values": [120, 128]}])
    result = run_sweep(load_study(path, StudySpec), SerialExecutor(), tmp_path / "out")
    assert not result.failed
    uneven, aligned = (row.summary["engines"] for row in result.rows)
    served = {name: part["cached_tokens"] for name, part in aligned.items()}
    assert len(set(served.values())) == 1, "at a multiple of the block hash equals radix"
    lost = uneven["sglang"]["cached_tokens"] - uneven["vllm-16"]["cached_tokens"]
    assert lost == 59 * (120 % 16)
    assert uneven["vllm-64"]["cached_tokens"] < served["vllm-64"]


def test_a_column_that_no_point_has_is_named_with_its_line(tmp_path):
    axes = [{"key": "engines.vllm.block_size", "values": [16]}]
    small = {"workload.requests": 40}
    path = reduced("block_size", tmp_path, set=small, axes=axes, repeats=1, columns=["vllm.hit_rate", "vllm.hitrate"])
    with pytest.raises(
        ScenarioError, match=r"columns\[1\]: unknown metric 'vllm.hitrate' \(did you mean 'vllm.hit_rate'"
    ):
        run_sweep(load_study(path, StudySpec), SerialExecutor(), tmp_path / "out")
    path = reduced("block_size", tmp_path, set=small, axes=axes, repeats=1)
    again = run_sweep(load_study(path, StudySpec), SerialExecutor(), tmp_path / "out")
    assert again.reused == 1, "what had been run before the error is kept"


def test_headings_tell_keys_apart_and_may_break_at_spaces():
    keys = [
        "workload.templates.t.segments[0].tokens",
        "workload.templates.t.segments[1].tokens",
        "workload.output_tokens",
    ]
    assert headings([*keys, "vllm.hit_rate"], 3) == [
        "segments[0] tokens",
        "segments[1] tokens",
        "output tokens",
        "vllm hit rate",
    ]
    assert headings(["a.x", "b.x", "x"], 3) == ["a x", "b x", "x"]


def test_a_plan_template_runs(tmp_path):
    path = reduced("plan_quick", tmp_path, set={"workload.requests": 80}, rate=[1.0, 4.0], tolerance=0.5, repeats=1)
    answers = run_plan(load_study(path, PlanSpec), SerialExecutor(), PointStore(tmp_path / "out"))
    assert [a.caching for a in answers] == [True, False]
    assert all(a.value is not None and 1 <= a.value <= 4 for a in answers)
