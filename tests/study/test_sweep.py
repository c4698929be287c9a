"""Sweeps: the same bytes on any executor, resuming, failing points, dying workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prefixsim.errors import InputError, PrefixsimError, ScenarioError
from prefixsim.scenario.study import StudySpec
from prefixsim.study.choose import choose_executor
from prefixsim.study.executors import Executor, Outcome, ProcessExecutor, SerialExecutor
from prefixsim.study.load import load_study
from prefixsim.study.metrics import lookup
from prefixsim.study.store import canonical
from prefixsim.study.sweep import SweepResult, run_sweep
from prefixsim.study.tables import points_table, write_tables

ENV = {**os.environ, "PYTHONUNBUFFERED": "1"}


def sweep(folder: Path, executor: Executor, out: str = "out") -> SweepResult:
    return run_sweep(load_study(folder / "study.yaml", StudySpec), executor, folder / out)


def text(result: SweepResult) -> str:
    return "".join(canonical(row.as_json()) + "\n" for row in result.rows)


def test_rows_come_in_axis_order_and_differ_where_they_should(folder: Path) -> None:
    result = sweep(folder, SerialExecutor())
    assert not result.failed
    assert [(*row.axes.values(), row.repeat) for row in result.rows][:4] == [
        (2, 40, 0),
        (2, 40, 1),
        (2, 80, 0),
        (2, 80, 1),
    ]
    rates = {row.axes["engines.vllm.block_size"]: lookup(row.summary or {}, "vllm.hit_rate") for row in result.rows}
    # 22 shared tokens: smaller blocks lose less of them
    assert rates[2] > rates[4] > 0  # type: ignore[operator]
    assert rates[4] > rates[8]  # type: ignore[operator]
    header, body = points_table(result)
    assert header[:2] == ["engines.vllm.block_size", "engines.vllm.num_gpu_blocks_override"]
    assert len(body) == 6


def test_same_bytes_from_processes(folder: Path) -> None:
    serial = sweep(folder, SerialExecutor(), "a")
    parallel = sweep(folder, ProcessExecutor(2), "b")
    assert text(serial) == text(parallel)
    write_tables(serial, folder / "a")
    write_tables(parallel, folder / "b")
    for name in ("points.csv", "points.jsonl", "study.json"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


def test_a_sweep_resumes_and_repeats_nothing(folder: Path) -> None:
    class Counting(SerialExecutor):
        ran = 0

        def map(self, task: Any, jobs: Any) -> Any:
            for outcome in super().map(task, jobs):
                Counting.ran += 1
                yield outcome

    first = sweep(folder, Counting())
    assert Counting.ran == 12
    kept = sorted((folder / "out" / "points").glob("*.json"))
    kept[0].unlink()
    kept[1].write_text(kept[1].read_text()[:50])  # half a file
    again = sweep(folder, Counting())
    assert Counting.ran == 14
    assert again.reused == 10
    assert text(again) == text(first)


def test_a_changed_trace_is_another_point(folder: Path) -> None:
    from prefixsim.study.points import file_sha256

    sweep(folder, SerialExecutor())
    lines = (folder / "rows.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    file_sha256.cache_clear()
    assert sweep(folder, SerialExecutor()).reused == 0


def test_a_point_that_fails_is_a_row_and_the_others_go_on(folder: Path) -> None:
    study = (folder / "study.yaml").read_text().replace("[40, 80]", "[40, 3]")  # 3 blocks: prompts do not fit
    (folder / "study.yaml").write_text(study)
    result = sweep(folder, SerialExecutor())
    assert len(result.failed) == 6
    assert all("do not fit" in (row.error or "") or "holds" in (row.error or "") for row in result.failed)
    assert all(row.summary is not None for row in result.rows if row.axes["engines.vllm.num_gpu_blocks_override"] == 40)


def test_an_axis_that_names_no_key(folder: Path) -> None:
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text().replace("vllm.block_size", "vllm.blok_size"))
    with pytest.raises(ScenarioError, match="did you mean 'block_size'"):
        sweep(folder, SerialExecutor())


class Refusing(SerialExecutor):
    """An executor that nothing may be sent to."""

    def map(self, task: Any, jobs: Any) -> Any:
        raise AssertionError(f"{len(jobs)} points were to be run")


TIMED = """\
name: timed
workload: {trace: {path: rows.jsonl, format: native}}
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines: [{name: vllm, kind: vllm}]
"""
SHAPES = """\
name: shapes
base: base.yaml
axes:
  - {key: hardware.gpu, values: [h100-sxm-80g, h20O]}
  - {key: hardware.model, values: [llama-3.1-8b, lama-3.1-8b, llama-3.1-70b]}
"""


def test_unknown_profiles_of_all_points_are_found_before_anything_runs(folder: Path) -> None:
    (folder / "base.yaml").write_text(TIMED)
    (folder / "study.yaml").write_text(SHAPES)
    with pytest.raises(ScenarioError) as caught:
        sweep(folder, Refusing())
    assert {(p.file, p.key) for p in caught.value.problems} == {
        ("hardware.gpu=h20O", "hardware.gpu"),
        ("hardware.model=lama-3.1-8b", "hardware.model"),
    }
    assert "did you mean 'llama-3.1-8b'?" in str(caught.value)


def test_what_cannot_fit_is_told_before_anything_runs(folder: Path) -> None:
    (folder / "base.yaml").write_text(TIMED)
    (folder / "study.yaml").write_text(SHAPES.replace(", h20O", "").replace(" lama-3.1-8b,", ""))
    said: list[str] = []

    class Told(SerialExecutor):
        def map(self, task: Any, jobs: Any) -> Any:
            assert said
            assert len(jobs) == 1
            return super().map(task, jobs)

    result = run_sweep(load_study(folder / "study.yaml", StudySpec), Told(), folder / "out", warn=said.append)
    assert "1 of 2 points cannot run" in said[0]
    assert "70b" in said[0]
    assert [row.error is None for row in result.rows] == [True, False]
    assert "does not fit" in (result.rows[1].error or "")


def die_once(job: Path) -> str:
    """A task whose first worker dies without a word."""
    if not job.exists():
        job.write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)
    return job.name


def always_die(job: Path) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return job.name


def test_a_dead_worker_is_replaced_and_its_job_done_again(tmp_path: Path) -> None:
    jobs = [tmp_path / f"job{i}" for i in range(4)]
    outcomes: list[Outcome] = sorted(ProcessExecutor(2).map(die_once, jobs), key=lambda o: o.index)
    assert [o.value for o in outcomes] == [j.name for j in jobs]


def test_a_job_that_kills_every_worker_is_reported(tmp_path: Path) -> None:
    (outcome,) = ProcessExecutor(1, tries=2).map(always_die, [tmp_path / "x"])
    assert "died 2 times" in (outcome.error or "")


FORKED = """
import os, signal, sys, threading
from pathlib import Path
from prefixsim.study.executors import ProcessExecutor
from prefixsim.study.forking import can_fork, stay_single_threaded

MARK = "new"

def what(job):
    died = Path(f"{job}.died")
    if job.name == "dies" and not died.exists():
        died.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return MARK

if __name__ == "__main__":
    stay_single_threaded()
    import numpy
    MARK = "inherited"
    names = sys.argv[2:]
    if "threads" in names:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    found = {o.index: o.value for o in ProcessExecutor(1).map(what, [Path(sys.argv[1]) / name for name in names])}
    print(can_fork(), *(found[i] for i in range(len(names))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_are_forked_only_where_nothing_else_runs(tmp_path: Path) -> None:
    script = tmp_path / "forked.py"
    script.write_text(FORKED)

    def ran(*names: str) -> list[str]:
        command = [sys.executable, str(script), str(tmp_path), *names]
        return subprocess.run(command, capture_output=True, text=True, env=ENV, check=True).stdout.split()

    assert ran("a", "b") == ["True", "inherited", "inherited"]
    assert ran("threads") == ["False", "new"]
    assert ran("dies") == ["True", "new"]  # replaced while the pool's threads run


def test_the_command_gives_the_same_bytes_on_forked_workers(folder: Path) -> None:
    command = [sys.executable, "-c", "from prefixsim.cli import main; main()", "sweep", str(folder / "study.yaml")]

    def out(workers: int) -> str:
        options = ["--out", str(folder / f"out{workers}"), "--workers", str(workers), "--quiet", "--json"]
        return subprocess.run([*command, *options], capture_output=True, text=True, env=ENV, check=True).stdout

    assert out(2) == out(1) == text(sweep(folder, SerialExecutor(), "here"))


def test_workers_find_workload_and_kernels_in_memory(folder: Path) -> None:
    from prefixsim.study import points

    class Forking(SerialExecutor):
        forks = True

        def map(self, task: Any, jobs: Any) -> Any:
            assert points._library().known
            yield from super().map(task, jobs)

    points._library.cache_clear()
    points._LOADED.clear()
    assert text(sweep(folder, Forking(), "a")) == text(sweep(folder, SerialExecutor(), "b"))
    assert points._LOADED


def test_killed_midway_the_command_resumes(folder: Path) -> None:
    command = [sys.executable, "-c", "from prefixsim.cli import main; main()", "sweep", str(folder / "study.yaml")]
    command += ["--out", str(folder / "out"), "--workers", "1", "--quiet", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    points = folder / "out" / "points"
    deadline = time.monotonic() + 60
    while len(list(points.glob("*.json"))) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    done = len(list(points.glob("*.json")))
    assert done >= 2
    finished = subprocess.run(command, capture_output=True, text=True, env=ENV, check=True)
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(rows) == 12
    assert finished.stdout == text(sweep(folder, SerialExecutor(), "other"))


def test_dask_over_tcp_with_a_worker_killed_midway(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    assert distributed
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
         "--scheduler-file", str(folder / "scheduler.json")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV,
    )  # fmt: skip
    workers: list[subprocess.Popen[bytes]] = []
    try:
        deadline = time.monotonic() + 30
        written = folder / "scheduler.json"
        while not (written.exists() and written.read_text().endswith("}")) and time.monotonic() < deadline:
            time.sleep(0.1)
        address = json.loads((folder / "scheduler.json").read_text())["address"]
        for _ in range(2):
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard",
                     "--nthreads", "1", "--local-directory", str(folder)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV,
                )
            )  # fmt: skip
        seen = []

        def kill_one(done: int, total: int) -> None:
            seen.append(done)
            if done >= 3 and workers[0].poll() is None:
                workers[0].kill()

        study = load_study(folder / "study.yaml", StudySpec)
        executor = choose_executor("dask", scheduler=address)
        result = run_sweep(study, executor, folder / "dask", progress=kill_one)
        assert workers[0].wait(timeout=10) != 0
        assert not result.failed
        assert text(result) == text(sweep(folder, SerialExecutor(), "serial"))
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_executor_refusals() -> None:
    with pytest.raises(InputError, match="did you mean 'local'"):
        choose_executor("locla")
    with pytest.raises(InputError, match="--scheduler"):
        choose_executor("dask")


@pytest.mark.filterwarnings("ignore")
def test_an_unreachable_scheduler_is_an_error() -> None:
    pytest.importorskip("distributed")
    from prefixsim.study.executors import DaskExecutor

    with pytest.raises(PrefixsimError, match="no Dask scheduler answers"):
        DaskExecutor("tcp://127.0.0.1:9", timeout_s=0.5)
