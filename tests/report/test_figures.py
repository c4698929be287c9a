"""Figures: axes that say a scale whatever the data, groups that stay apart, rates that can be compared."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import write_run

from prefixsim.report import figures, figures_cache
from prefixsim.report.collect import collect
from prefixsim.report.figures import Figure, log_axis
from prefixsim.report.folder import RunFolder, open_run


def drawn(folder: Path) -> dict[str, Figure]:
    run = open_run(folder)
    data, _ = collect(run)
    return {
        f.id: f
        for f in (*figures.over_time(run, data), *figures.latency(run, data), *figures_cache.who_hits(run, data))
    }


def changed(folder: Path, change: Any) -> RunFolder:
    """The run with every row of its requests passed through `change`."""
    path = folder / "requests.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row in rows:
        change(row)
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return open_run(folder)


@pytest.mark.parametrize("low", [7.16e-3, 0.4, 99.0, 3.0e5])
@pytest.mark.parametrize("factor", [1.0, 1.012, 1.1, 1.5, 3.0, 20.0, 1e3, 1e6])
def test_a_logarithmic_axis_has_at_least_three_ticks_and_not_too_many(low: float, factor: float) -> None:
    axis = log_axis("x", low, low * factor, lambda v: f"{v:.4g}")
    assert 3 <= len(axis["tickvals"]) <= 12
    assert len(set(axis["ticktext"])) == len(axis["tickvals"])
    start, end = axis["range"]
    assert all(start - 0.03 <= math.log10(t) <= end + 0.03 for t in axis["tickvals"])


def test_a_narrow_distribution_is_drawn_in_finer_bins(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=60)
    wide = len(drawn(folder)["e2e-distribution"].traces[1]["x"])

    def near(row: dict[str, str]) -> None:
        row["finish_s"] = str(float(row["released_s"]) + 0.4 + int(row["id"][1:]) / 400)

    changed(folder, near)
    narrow = drawn(folder)["e2e-distribution"].traces[1]
    edges = np.array(narrow["x"])
    assert wide > 15
    assert len(edges) > 15
    assert edges[1] / edges[0] < 1.03
    assert sum(narrow["y"]) == pytest.approx(1, abs=1e-3)


def test_one_value_still_has_a_cumulative_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=20)
    changed(folder, lambda row: row.update(finish_s=str(float(row["released_s"]) + 1)))
    line = drawn(folder)["e2e-distribution"].traces[0]
    assert line["y"][0] == 0
    assert line["y"][-1] == 1
    assert len(line["x"]) >= 2


def test_groups_with_one_beginning_stay_apart(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=60)
    long = "a group whose name goes on and on, number "
    changed(folder, lambda row: row.update(group=long + row["group"][:2]))
    figure = drawn(folder)["hit-rate-by-group"]
    names = figure.traces[0]["y"]
    assert len(names) == len(set(names)) == 3
    assert all(name.startswith(long) for name in names)
    assert figure.layout["yaxis"]["tickvals"] == names
    assert all(len(text) <= 28 for text in figure.layout["yaxis"]["ticktext"])


def test_figures_over_time_share_one_axis_and_rates_are_per_second(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=60)
    path = folder / "timeline.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    seen: dict[str, int] = {}
    for row in rows:
        seen[row["engine"]] = seen.get(row["engine"], 0) + 2
        row["preemptions"] = str(seen[row["engine"]])
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    shown = drawn(folder)
    timed = [f for f in shown.values() if f.id.endswith("-over-time")]
    assert len({tuple(f.layout["xaxis"]["range"]) for f in timed}) == 1
    figure = shown["preemptions-over-time"]
    assert figure.columns[2] == "preemptions_per_s"
    for trace in figure.traces:
        edges = np.append(trace["x"], 2 * trace["x"][-1] - trace["x"][-2])
        assert (np.array(trace["y"]) * np.diff(edges)).sum() == pytest.approx(seen[trace["name"]], rel=1e-3)


def test_the_last_turns_are_named_where_there_are_any(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=60)
    assert "all later" not in drawn(folder)["hit-rate-by-turn"].says
    changed(folder, lambda row: row.update(turn=str(10 * int(row["turn"]) + 5)))
    assert "32 stands for all later ones" in drawn(folder)["hit-rate-by-turn"].says


def test_a_mean_of_kept_steps_is_not_called_the_mean(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=400)
    assert "The line is the mean of each slice" in drawn(folder)["kv-use-over-time"].says
    summary = json.loads((folder / "summary.json").read_text())
    for engine in summary["engines"].values():
        engine["steps"] = 10**6
    (folder / "summary.json").write_text(json.dumps(summary))
    says = drawn(folder)["kv-use-over-time"].says
    assert "The line is the mean" not in says
    assert "mean of the kept steps" in says
