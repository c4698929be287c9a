"""An engine that has finished is not lost with a later one that is cut short or fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixsim.errors import DoesNotFitError
from prefixsim.pipeline import run as pipeline
from robustness.driving import prefixsim
from robustness.scenarios import SMALL


def steady(folder: Path) -> dict[str, object]:
    data = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {k: v for k, v in data.items() if k not in ("timing_s", "provenance")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SMALL)
    return tmp_path


def failing(monkeypatch, fault: BaseException, engine: str = "s") -> None:
    """That engine raises."""
    whole = pipeline.simulate

    def simulate(scenario, options, *rest, **more):
        if options.name == engine:
            raise fault
        return whole(scenario, options, *rest, **more)

    monkeypatch.setattr(pipeline, "simulate", simulate)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), DoesNotFitError("too long"), MemoryError()])
@pytest.mark.parametrize("out", [["--out", "o"], []])
def test_its_result_is_what_it_alone_would_have_given(place, monkeypatch, fault, out):
    assert prefixsim("run", "s.yaml", "--engine", "v", "--out", "alone", "-q", seconds=300).code == 0
    failing(monkeypatch, fault)
    done = prefixsim("run", "s.yaml", *out, seconds=300)
    assert done.code == 2
    assert done.out == ""
    assert "v had finished: " in done.err
    (kept,) = [place / "o-only-v"] if out else (place / "runs").iterdir()
    assert steady(kept) == steady(place / "alone")
    assert (kept / "requests.csv").read_bytes() == (place / "alone" / "requests.csv").read_bytes()
    assert not (place / "o").exists()


def test_nothing_is_kept_where_nothing_has_finished(place, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt(), "v")
    done = prefixsim("run", "s.yaml", "--out", "o", seconds=300)
    assert done.code == 2
    assert "had finished" not in done.err
    assert {p.name for p in place.iterdir()} == {"s.yaml"}


def test_the_fault_is_said_also_where_it_cannot_be_kept(place, monkeypatch):
    (place / "o-only-v").mkdir()
    (place / "o-only-v" / "mine.txt").write_text("years")
    failing(monkeypatch, DoesNotFitError("too long"))
    done = prefixsim("run", "s.yaml", "--out", "o", seconds=300)
    assert done.code == 2
    assert "error: too long" in done.err
    assert "could not be kept" in done.err
    assert (place / "o-only-v" / "mine.txt").read_text() == "years"


def test_a_working_folder_that_cannot_be_written_is_said_before_any_work(place):
    (place / "runs").write_text("a file")
    done = prefixsim("run", "s.yaml", seconds=300)
    assert done.code == 2
    assert "runs" in done.err
    assert "reading the workload" not in done.err


@pytest.mark.parametrize("out", [".", "..", "../inside", "../../o"])
def test_the_folder_one_is_in_is_not_replaced(place, monkeypatch, out):
    """It would be another one of the same name: the shell goes on in a folder that is gone."""
    inside = place / "o" / "inside"
    inside.mkdir(parents=True)
    (place / "o" / "summary.json").write_text("{}")  # as in a run folder
    monkeypatch.chdir(inside)
    done = prefixsim("run", place / "s.yaml", "--out", out)
    assert done.code == 2
    assert f"{out}: is the folder you are in, or above it" in done.err
    assert "reading" not in done.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hardware": {"gpu": "h100-sxm-80g", "model": "gpt-oss-20b"}}, "sliding-window layers under SGLang"),
        ({"engines.s.max_total_tokens": 64}, "engine 's': the prompt of request"),
    ],
)
def test_what_a_later_engine_cannot_do_is_said_before_an_earlier_one_runs(place, change, said):
    words = [word for key, value in change.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = prefixsim("run", "s.yaml", *words, "--out", "o", seconds=300)
    assert done.code == 2
    assert said in done.err
    assert "simulating" not in done.err
    assert {p.name for p in place.iterdir()} == {"s.yaml"}
