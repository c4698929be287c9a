"""What a router is: a rule that gives each arriving request a replica. One file a router; its options are the class of
the same `kind` in `scenario/router.py`."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from prefixsim.records import I64
from prefixsim.workload.intern import Trie
from prefixsim.workload.table import Workload


class View(Protocol):
    """What a router may see of the fleet at the instant a request arrives: the steps scheduled before that instant."""

    @property
    def now_ns(self) -> int:
        """The present instant."""
        ...

    def outstanding(self, replica: int) -> int:
        """Requests sent to a replica and not finished."""
        ...

    def loads(self) -> list[int]:
        """`outstanding` of every replica."""
        ...

    def kv_tokens(self, replica: int) -> int:
        """KV tokens held by a replica's running requests."""
        ...

    def match_tokens(self, replica: int, request: int) -> int:
        """Prompt tokens of a request that a lookup on this replica would hit now."""
        ...


@dataclass(frozen=True, slots=True)
class RouterContext:
    """What every router is built from. trie: the workload's token trie without namespaces, made when first asked for."""

    workload: Workload
    n_replicas: int
    seed: int
    trie: Callable[[], Trie]

    def rng(self, name: str) -> np.random.Generator:
        """The router's own stream of random numbers: no other part of the program draws from it."""
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(f"router.{name}".encode()),)))
        )


class Router(ABC):
    """A rule. Calls come in order of time, each request once.

    looks_at_state: whether `route` reads the view. A router that does not is asked for all requests at once where
    nothing else couples the replicas.
    lag_ns: > 0: `observe` is called so long before each arrival (or when the arrival becomes known, if that is later).
    """

    kind: ClassVar[str]
    looks_at_state: ClassVar[bool] = False
    lag_ns: int = 0

    def __init__(self, options: Any, context: RouterContext) -> None:
        self.options = options
        self.context = context

    @abstractmethod
    def route(self, request: int, view: View) -> int:
        """The replica for a request that arrives at `view.now_ns`."""

    def observe(self, request: int, view: View) -> None:  # noqa: B027 (most routers have no lag)
        """Sees the fleet `lag_ns` before the request arrives. Only called where lag_ns > 0."""

    def route_all(self, requests: I64) -> I64:
        """Replicas of requests in order of arrival, int64 (n,). Only for routers that do not look at state."""
        blind = _Blind()
        return np.fromiter((self.route(int(r), blind) for r in requests), dtype=np.int64, count=len(requests))

    def notes(self) -> tuple[str, ...]:
        """Sentences for people."""
        return ()


class _Blind:
    """A view with nothing in it: a router that does not look at state never notices."""

    now_ns = 0

    def outstanding(self, replica: int) -> int:
        raise AssertionError("a router that looks at state must say so: looks_at_state")

    def loads(self) -> list[int]:
        raise AssertionError("a router that looks at state must say so: looks_at_state")

    kv_tokens = outstanding

    def match_tokens(self, replica: int, request: int) -> int:
        raise AssertionError("a router that looks at state must say so: looks_at_state")


def least(loads: list[float], among: range | list[int] | None = None) -> int:
    """Index of the least load, the lowest index among equals."""
    candidates = range(len(loads)) if among is None else among
    return min(candidates, key=lambda i: (loads[i], i))


def router_classes() -> dict[str, type[Router]]:
    """Every router by its `kind`, found in this folder."""
    import prefixsim.fleet.routers as folder

    out: dict[str, type[Router]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if m.name != "base"):
        cls = importlib.import_module(f"prefixsim.fleet.routers.{module}").ROUTER
        out[cls.kind] = cls
    return out


def make_router(options: Any, context: RouterContext) -> Router:
    """The router that a scenario's `router:` section asks for."""
    return router_classes()[options.kind](options, context)
