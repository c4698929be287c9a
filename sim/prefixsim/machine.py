"""How much memory is free here, and the refusal of work that would need more."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from prefixsim.errors import DoesNotFitError

UNCHECKED = "PREFIXSIM_MEMORY_CHECK"
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Memory that this process may still take: of the machine, of its container, of its own limit (ulimit -v). None where
    nothing says."""
    known = [f for f in (_of_the_machine(), *(_of_a_group(*g) for g in _CGROUPS), _of_the_process()) if f is not None]
    return max(min(known), 0) if known else None


def require(needed: int, what: str) -> None:
    """Raises DoesNotFitError where `what` (many) need more bytes than are free. PREFIXSIM_MEMORY_CHECK=0 switches it off."""
    free = free_bytes()
    if free is None or needed <= free or os.environ.get(UNCHECKED) == "0":
        return
    raise DoesNotFitError(
        f"{what} need at least {gib(needed)} of memory, and {gib(free)} are free here: "
        f"use fewer requests or replicas, or a coarser granularity ({UNCHECKED}=0 tries it nevertheless)"
    )


def gib(size: int) -> str:
    """1.5 GiB, 12 GiB."""
    return f"{size / 2**30:,.1f} GiB" if size < 10 << 30 else f"{size / 2**30:,.0f} GiB"


def _of_the_machine() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in f if line.rstrip().endswith("kB")}
        return found["MemAvailable"] + found.get("SwapFree", 0)
    except (OSError, ValueError, KeyError):
        return None


def _of_a_group(limit: str, used: str) -> int | None:
    try:
        free = int(Path(limit).read_text()) - int(Path(used).read_text())
    except (OSError, ValueError):  # "max"
        return None
    return free + _cached(Path(used).with_name("memory.stat"))


def _cached(stat: Path) -> int:
    """Bytes of files that a group has in memory: they count as used, and make room for whoever needs it."""
    try:
        found = {words[0]: int(words[1]) for words in map(str.split, stat.read_text().splitlines())}
    except (OSError, ValueError, IndexError):
        return 0
    total = "total_" if "total_inactive_file" in found else ""  # cgroup v1: of those below too, as the limit
    return found.get(f"{total}inactive_file", 0) + found.get(f"{total}active_file", 0)


def _of_the_process() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return None
    return limit - pages * resource.getpagesize()
