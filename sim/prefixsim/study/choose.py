"""Executors by name."""

from __future__ import annotations

from prefixsim.errors import InputError, nearest
from prefixsim.study.executors import DaskExecutor, Executor, ProcessExecutor, SerialExecutor, default_workers

NAMES = ("local", "serial", "dask")


def choose_executor(name: str, *, workers: int | None = None, scheduler: str | None = None) -> Executor:
    """The executor called `name`. Raises InputError for an unknown name or a missing scheduler address."""
    if name == "serial" or (name == "local" and workers == 1):
        return SerialExecutor()
    if name == "local":
        return ProcessExecutor(workers or default_workers())
    if name == "dask":
        if scheduler is None:
            raise InputError("--executor dask needs --scheduler, e.g. tcp://127.0.0.1:8786")
        return DaskExecutor(scheduler)
    raise InputError(f"--executor {name}: no such executor{nearest(name, NAMES)}")
