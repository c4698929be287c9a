"""How worker processes start: forked where that is safe, so that they begin with modules, kernels and workloads in memory."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from multiprocessing.context import SpawnContext
from typing import Any


def stay_single_threaded() -> None:
    """Keeps NumPy from starting threads, which a fork would lose. For commands, before NumPy is imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def can_fork() -> bool:
    """Whether this process has one thread, so that no other one can hold a lock that a child would wait for. Told on Linux
    only."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    with contextlib.suppress(OSError):
        for _ in range(20):  # one that has ended is there for a moment longer
            if len(os.listdir("/proc/self/task")) == 1:
                return True
            time.sleep(0.005)
    return False


class ForkOrSpawn(SpawnContext):
    """Starts a process by fork while this one has one thread, later (a dead worker is replaced) as a new interpreter."""

    def Process(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # noqa: N802 (a name of multiprocessing)
        """A process that is not started yet."""
        if can_fork():
            from multiprocessing.context import ForkProcess

            return ForkProcess(*args, **options)
        return super().Process(*args, **options)
