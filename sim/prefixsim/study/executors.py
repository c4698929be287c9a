"""Where points are run: local processes (a dead worker is replaced), or an existing Dask cluster. Same results on either."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from prefixsim.errors import MissingExtraError, PrefixsimError
from prefixsim.study.forking import ForkOrSpawn, can_fork

Task = Callable[[Any], Any]


class Outcome:
    """The result of one job, or the sentence that says why there is none."""

    __slots__ = ("error", "index", "value")

    def __init__(self, index: int, value: Any = None, error: str | None = None) -> None:
        self.index = index
        self.value = value
        self.error = error


class Executor(Protocol):
    """Runs one task over many jobs; outcomes come as they finish. forks: workers begin with what this process has in memory."""

    @property
    def forks(self) -> bool: ...

    def map(self, task: Task, jobs: Sequence[Any]) -> Iterator[Outcome]: ...


class SerialExecutor:
    """In this process, one after another."""

    forks = False

    def map(self, task: Task, jobs: Sequence[Any]) -> Iterator[Outcome]:
        """Yields an outcome a job, in order."""
        for index, job in enumerate(jobs):
            yield _guarded(task, index, job)


class ProcessExecutor:
    """Local processes. A worker that dies is replaced; its job is tried again up to `tries` times, then reported."""

    def __init__(self, workers: int, tries: int = 3) -> None:
        self.workers = workers
        self.tries = tries

    @property
    def forks(self) -> bool:
        """Told before each use: threads may have been started since."""
        return can_fork()

    def map(self, task: Task, jobs: Sequence[Any]) -> Iterator[Outcome]:
        """Yields outcomes as they finish."""
        from concurrent.futures import FIRST_COMPLETED, wait

        from pebble import ProcessExpired, ProcessPool

        most = max(1, min(self.workers, len(jobs)))
        with ProcessPool(max_workers=most, context=ForkOrSpawn(), initializer=_quiet_worker) as pool:
            attempts = dict.fromkeys(range(len(jobs)), 1)
            # Ctrl-C is for this process alone, which stops the workers: they inherit the mask, also while they start.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pending = {pool.schedule(_guarded, args=(task, i, job)): i for i, job in enumerate(jobs)}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            try:
                while pending:
                    done, _ = wait(list(pending), return_when=FIRST_COMPLETED)
                    for future in done:
                        index = pending.pop(future)
                        try:
                            yield future.result()
                        except ProcessExpired as exc:
                            if attempts[index] < self.tries:
                                attempts[index] += 1
                                pending[pool.schedule(_guarded, args=(task, index, jobs[index]))] = index
                            else:
                                yield Outcome(index, error=f"its worker died {self.tries} times (exit {exc.exitcode})")
                        except Exception as exc:
                            yield Outcome(index, error=f"{type(exc).__name__}: {exc}")
            finally:
                if pending:
                    pool.stop()


class DaskExecutor:
    """An existing Dask cluster (extra `[dask]`): `scheduler` is its address, e.g. tcp://127.0.0.1:8786."""

    forks = False

    def __init__(self, scheduler: str, timeout_s: float = 15.0) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtraError("the Dask executor", "dask") from None
        try:
            self.client = Client(scheduler, timeout=timeout_s)
        except (OSError, TimeoutError, ValueError) as exc:
            raise PrefixsimError(f"no Dask scheduler answers at {scheduler}: {exc}") from None

    def map(self, task: Task, jobs: Sequence[Any]) -> Iterator[Outcome]:
        """Yields outcomes as they finish; a job whose worker dies is run on another one by the scheduler."""
        from distributed import as_completed

        futures = {
            self.client.submit(_guarded, task, index, job, pure=False, retries=2): index
            for index, job in enumerate(jobs)
        }
        try:
            for future in as_completed(list(futures)):
                try:
                    yield future.result()
                except Exception as exc:
                    yield Outcome(futures[future], error=f"{type(exc).__name__}: {exc}")
        finally:
            self.client.close()


def _guarded(task: Task, index: int, job: Any) -> Outcome:
    """Runs a job; an error becomes a sentence, so that one bad point does not stop the others."""
    try:
        return Outcome(index, value=task(job))
    except PrefixsimError as exc:
        return Outcome(index, error=str(exc))
    except Exception as exc:
        return Outcome(index, error=f"internal error: {type(exc).__name__}: {exc}")


def _quiet_worker() -> None:
    """Workers leave Ctrl-C to their parent and use one thread each."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def default_workers() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
