# mypy: disable-error-code="no-untyped-call"
"""Arrivals at equal vLLM replicas behind `cache_aware` in one kernel instead of five calls an arrival. Results are those of
the calls (`tests/fleet/test_joint.py`, and every test that compares with `granularity: step`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prefixsim.engines.contract import Engine
from prefixsim.engines.vllm import state as st
from prefixsim.engines.vllm.engine import VllmEngine
from prefixsim.engines.vllm.front_end import MAX_TIMELINE_ROWS
from prefixsim.fleet import joint_kernels as jk
from prefixsim.fleet.routers.base import Router
from prefixsim.fleet.routers.cache_aware import CacheAware
from prefixsim.workload.table import I64

STACKED = (
    "state", "blocks", "where", "commits", "slots", "lists", "queue", "heap", "batches", "heads", "window",
    "done", "gaps", "timeline", "log", "admissions",
)  # fmt: skip
"""Arrays of a replica; the others in the kernel's arguments are shared."""


def joins(engines: Sequence[Engine], router: Router) -> bool:
    """Whether the kernel serves these: several replicas that differ in nothing, without a host tier."""
    if len(engines) < 2 or type(router) is not CacheAware or not all(type(e) is VllmEngine for e in engines):
        return False
    first = engines[0]
    assert isinstance(first, VllmEngine)
    return all(_alike(first, e) for e in engines if isinstance(e, VllmEngine)) and not first.state[st.I_OFFLOAD]


def _alike(a: VllmEngine, b: VllmEngine) -> bool:
    one, other = a.inputs.costs, b.inputs.costs
    same_costs = one is other or (
        one.host == other.host
        and np.array_equal(one.coef, other.coef)
        and np.array_equal(one.gemm_us, other.gemm_us)
        and np.array_equal(one.lm_head_us, other.lm_head_us)
    )
    return same_costs and a.settings == b.settings and a.inputs.chains is b.inputs.chains


TIMELINE_BYTES = 1 << 27
"""Room for timelines taken at once, all replicas; more is taken as they grow."""


class Joint:
    """The replicas of one run while arrivals come. Each engine's arrays become views of its part of the stacked ones."""

    def __init__(self, engines: Sequence[Any], router: CacheAware, times_ns: I64, requests: I64) -> None:
        self.engines: list[VllmEngine] = list(engines)
        self.router, self.times_ns, self.requests = router, times_ns, requests
        first, o = self.engines[0], router.options
        self.control: I64 = np.zeros(jk.J_COLS, dtype=np.int64)
        self.control[jk.J_TRIM_NS] = router.next_trim_ns
        self.control[jk.J_SENT] = router.tree.count
        self.control[jk.J_LONGEST] = first.settings.max_model_len - 1
        self.control[jk.J_BALANCE_ABS] = o.balance_abs_threshold
        self.floats = np.zeros(jk.F_COLS, dtype=np.float64)
        self.floats[jk.F_BALANCE_REL], self.floats[jk.F_CACHE] = o.balance_rel_threshold, o.cache_threshold
        self.floats[jk.F_HASH_NS] = first.front_end.hash_ns_per_token
        self.replicas: I64 = np.zeros((len(self.engines), jk.R_COLS), dtype=np.int64)
        self.stacks: dict[str, Any] = {}
        tokens = int(first.inputs.workload.output_tokens.sum())  # nearly every step yields one at least
        row_bytes = len(self.engines) * first.timeline[0].nbytes
        self.steps = min(MAX_TIMELINE_ROWS, tokens // len(self.engines), TIMELINE_BYTES // row_bytes)

    def start(self, next_ns: Sequence[int], caught_up_ns: Sequence[int]) -> None:
        """Takes over what the fleet knows of its replicas."""
        for i, engine in enumerate(self.engines):
            self.replicas[i] = next_ns[i], caught_up_ns[i], engine.until, 0

    def send(self, stop: int) -> None:
        """Hands out arrivals until `stop` of them have been."""
        self.control[jk.J_STOP] = stop
        while True:
            code = jk.serve_arrivals(*self._args())
            if code == jk.ALL_SENT:
                return
            if code == jk.NEEDS_TRIM:
                self.router.trim(int(self.times_ns[self.control[jk.J_CURSOR]]))
                self.control[jk.J_TRIM_NS] = self.router.next_trim_ns
            else:
                self.engines[self.control[jk.J_REPLICA]].make_room()

    def finish(self) -> list[int]:
        """Gives back to router and replicas what is theirs. Returns when each replica wants to act."""
        self.router.tree.count = int(self.control[jk.J_SENT])
        for engine, (_, _, until, refused) in zip(self.engines, self.replicas.tolist(), strict=True):
            engine.until = until
            engine.front_end.n_refused += refused
        return [int(t) for t in self.replicas[:, jk.R_NEXT_NS]]

    def _args(self) -> tuple[Any, ...]:
        """Arguments of `serve_arrivals`. An array that a replica has replaced by a longer one is stacked anew."""
        for name in STACKED:
            stack = self.stacks.get(name)
            shapes = [getattr(engine, name).shape for engine in self.engines]
            if stack is not None and all(getattr(engine, name).base is stack for engine in self.engines):
                continue
            kind, shape = getattr(self.engines[0], name).dtype, np.max(shapes, axis=0)
            if name == "timeline":  # untouched rows take no memory; growing later would copy all replicas' rows again
                shape[0] = max(shape[0], self.steps)
            stack = np.zeros((len(shapes), *shape), dtype=kind)
            for i, engine in enumerate(self.engines):  # each old array is let go before the next one is copied
                stack[i][tuple(slice(size) for size in shapes[i])] = getattr(engine, name)
                engine.replace_array(name, stack[i])
            self.stacks[name] = stack
        tree, first = self.router.tree, self.engines[0]
        own = dict(zip(map(id, (getattr(first, name) for name in STACKED)), STACKED, strict=True))
        t = tree.trie
        return (
            self.control,
            self.floats,
            self.replicas,
            self.times_ns,
            self.requests,
            t.run_offset,
            t.run_start,
            t.run_end,
            t.element_end,
            t.element_tokens,
            tree.sent,
            tree.last,
            tree.size_tokens,
            *(self.stacks[own[id(a)]] if id(a) in own else a for a in first.args()),
        )
