"""One numbering of contents for several workloads: equal names get equal ids in all that are read while it is in force.

Readers and generators number what they find from 0, each for itself, so that ids only compare within one workload. Where two
workloads meet on one server (priming, saved caches) they are read under one `Numbering`: raw integers of a trace (tokens,
hash ids), names of segments, and a generator's shared parts by name are then the same content in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

from prefixsim.errors import ScenarioError
from prefixsim.workload.table import I32, I64

LIMIT = (1 << 31) - 1
_CURRENT: ContextVar[Numbering | None] = ContextVar("numbering", default=None)


class Numbering:
    """Ids int32 from 0 without gaps, in order of first appearance. scope: put before names of shared parts."""

    def __init__(self) -> None:
        self.next = 0
        self.scope = ""
        self._values: I64 = np.zeros(0, dtype=np.int64)  # raw integers seen, ascending
        self._ids: I32 = np.zeros(0, dtype=np.int32)
        self._names: dict[str, int] = {}
        self._shared: dict[str, tuple[int, int]] = {}

    @contextmanager
    def in_force(self, scope: str = "") -> Iterator[None]:
        """Workloads read in this block share their ids."""
        token, before = _CURRENT.set(self), self.scope
        self.scope = scope
        try:
            yield
        finally:
            self.scope = before
            _CURRENT.reset(token)

    def reserve(self, n: int) -> int:
        """First of n new ids. Raises ScenarioError past 2^31."""
        first = self.next
        self.next += n
        if self.next > LIMIT:
            raise ScenarioError("more than 2^31 distinct contents in workload and priming")
        return first

    def ints(self, values: npt.NDArray[np.integer]) -> I32:
        """Ids of raw integers, int32, shape of `values`."""
        found, inverse = np.unique(np.asarray(values, dtype=np.int64), return_inverse=True)
        at = np.searchsorted(self._values, found)
        inside = at < self._values.shape[0]
        known = np.zeros(found.shape[0], dtype=np.bool_)
        known[inside] = self._values[at[inside]] == found[inside]
        ids = np.empty(found.shape[0], dtype=np.int32)
        ids[known] = self._ids[at[known]]
        new = int((~known).sum())
        ids[~known] = self.reserve(new) + np.arange(new)
        if new:
            everything = np.concatenate([self._values, found[~known]])
            order = np.argsort(everything, kind="stable")
            self._values = everything[order]
            self._ids = np.concatenate([self._ids, ids[~known]])[order]
        return ids[inverse.reshape(-1)]

    def name(self, text: str) -> int:
        """Id of a named content."""
        found = self._names.get(text)
        if found is None:
            found = self._names[text] = self.reserve(1)
        return found

    def shared(self, name: str, n: int) -> int:
        """First id of the n variants of a generator's shared part. Raises ScenarioError where another workload has another
        number of variants: then it cannot be said which are the same."""
        key = f"{self.scope}/{name}"
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = (self.reserve(n), n)
        if found[1] != n:
            raise ScenarioError(
                f"the shared part {name.rpartition('/')[2]!r} has {found[1]:,} variants in the workload and {n:,} in the one "
                "it is primed with: which of them are the same content cannot be told; give both the same number"
            )
        return found[0]

    def labels(self, ids: I32) -> list[int | str | None]:
        """Raw integer or name of each id; None for contents that have neither (unique parts)."""
        names: dict[int, int | str] = {i: name for name, i in self._names.items()}
        by_id = np.argsort(self._ids, kind="stable")
        place = np.searchsorted(self._ids[by_id], ids)
        out: list[int | str | None] = []
        for i, p in zip(ids.tolist(), place.tolist(), strict=True):
            if p < by_id.shape[0] and int(self._ids[by_id[p]]) == i:
                out.append(int(self._values[by_id[p]]))
            else:
                out.append(names.get(i))
        return out


def numbering() -> Numbering | None:
    """The numbering in force; None: each workload numbers for itself."""
    return _CURRENT.get()
