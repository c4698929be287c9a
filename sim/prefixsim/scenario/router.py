"""Options of the routers that share requests out over replicas. One class a router; the rule itself is the file of the
same name in `fleet/routers/`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from prefixsim.scenario.base import Strict


class RoundRobin(Strict):
    """Replicas in turn.

    Example:
        router: round_robin
    """

    kind: Literal["round_robin"] = "round_robin"


class RandomRouter(Strict):
    """A replica drawn uniformly, from the scenario's seed.

    Example:
        router: random
    """

    kind: Literal["random"] = "random"


class SessionAffinity(Strict):
    """Consistent hashing: requests with the same key go to the same replica, and few move when replicas are added.

    Example:
        router: {kind: session_affinity, key: tenant}
    """

    kind: Literal["session_affinity"] = "session_affinity"
    key: Literal["session", "group", "tenant"] = "session"
    """What is hashed; a request without it is hashed by its own id."""
    virtual_nodes: int = Field(160, ge=1, le=10_000)
    """Points on the ring for each replica."""


class LeastLoaded(Strict):
    """The replica with the least unfinished work; the lowest number among equals.

    Example:
        router: {kind: least_loaded, measure: kv_tokens}
    """

    kind: Literal["least_loaded"] = "least_loaded"
    measure: Literal["requests", "kv_tokens"] = "requests"
    """What load is: unfinished requests, or KV tokens in use."""


class PowerOfTwo(Strict):
    """Two replicas drawn at random, the less loaded one taken.

    Example:
        router: power_of_two
    """

    kind: Literal["power_of_two"] = "power_of_two"
    measure: Literal["requests", "kv_tokens"] = "requests"
    """What load is: unfinished requests, or KV tokens in use."""


class CacheAware(Strict):
    """SGLang gateway's `cache_aware`: an approximate prefix tree of what was sent where; it never asks the replicas what
    they hold. Balanced load: the replica with the longest match, if that is more than `cache_threshold` of the prompt,
    else the least loaded one. Unbalanced load: the least loaded one.

    Example:
        router: {kind: cache_aware, cache_threshold: 0.5}
    """

    kind: Literal["cache_aware"] = "cache_aware"
    cache_threshold: float = Field(0.3, ge=0, le=1)
    """Share of the prompt that the longest match must exceed to be followed (0 to 1)."""
    balance_abs_threshold: int = Field(64, ge=0)
    """Load is unbalanced where the busiest replica has more than so many unfinished requests above the idlest, ..."""
    balance_rel_threshold: float = Field(1.5, ge=0)
    """... and more than so many times as many as the idlest."""
    eviction_interval_s: float = Field(120.0, gt=0, le=1e9)
    """The tree of each replica is trimmed to `max_tree_size` this often, least recently sent first."""
    max_tree_size: int = Field(1 << 26, ge=1)
    """Characters a replica."""
    chars_per_token: float = Field(4.0, gt=0)
    """The gateway counts characters, this program tokens: assumed ratio, used for `max_tree_size` only."""


class KvEvents(Strict):
    """Precise routing on the replicas' cache events, seen `lag_s` late: the replica where the least work remains, that is
    `overlap_weight` x (prompt tokens it does not hold) + KV tokens in use there.

    Example:
        router: {kind: kv_events, lag_s: 1.0}
    """

    kind: Literal["kv_events"] = "kv_events"
    lag_s: float = Field(0.1, ge=0, le=3600)
    """Seconds that the view of the caches is late."""
    overlap_weight: float = Field(1.0, ge=0)
    """Weight of prompt tokens to compute against KV tokens in use."""


class Oracle(Strict):
    """Sees every replica's cache as it is at this instant, and takes the longest match; the least loaded among equals.
    Greedy, thus a yardstick rather than a proven bound (that is the pooled ceiling).

    Example:
        router: oracle
    """

    kind: Literal["oracle"] = "oracle"


RouterOptions = RoundRobin | RandomRouter | SessionAffinity | LeastLoaded | PowerOfTwo | CacheAware | KvEvents | Oracle
ROUTERS: dict[str, type[Strict]] = {
    cls.model_fields["kind"].default: cls
    for cls in (RoundRobin, RandomRouter, SessionAffinity, LeastLoaded, PowerOfTwo, CacheAware, KvEvents, Oracle)
}


def _named(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


RouterField = Annotated[
    Annotated[RouterOptions, Field(discriminator="kind")],
    BeforeValidator(_named, json_schema_input_type=RouterOptions | Literal[tuple(ROUTERS)]),
]
"""A router's name, or its name under `kind` with options."""
