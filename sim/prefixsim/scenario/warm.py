"""`prime:` and `warm_up:`: what a run begins with, and which part of its workload is not counted."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from prefixsim.scenario.base import Strict
from prefixsim.scenario.workload import MAX_REQUESTS, WorkloadSpec


class FirstRequests(Strict):
    """Priming with the workload itself.

    Example:
        prime: {first_requests: 500}
    """

    first_requests: int = Field(ge=1, le=MAX_REQUESTS)
    """The first so many requests of `workload` are served once before it begins (all, where it has fewer)."""


class SavedCache(Strict):
    """Priming with what another run has left.

    Example:
        prime: {saved: vllm.jsonl}
    """

    saved: str
    """File that `prefixsim run --save-cache` has written. Relative to the scenario."""


def _kind(value: Any) -> str:
    for key, model in (("first_requests", FirstRequests), ("saved", SavedCache)):
        if isinstance(value, model) or (isinstance(value, dict) and key in value):
            return key
    return "workload"


Prime = Annotated[
    Annotated[FirstRequests, Tag("first_requests")]
    | Annotated[SavedCache, Tag("saved")]
    | Annotated[WorkloadSpec, Tag("workload")],
    Discriminator(_kind),
]


class WarmUp(Strict):
    """The first part of the workload: simulated, not counted. Exactly one key.

    Example:
        warm_up: {requests: 200}
    """

    requests: int | None = Field(None, ge=1, le=MAX_REQUESTS)
    """The first so many requests, in order of (nominal) arrival."""
    seconds: float | None = Field(None, gt=0, le=9e9)
    """Requests that reach an engine before this time of the workload."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.requests is None) == (self.seconds is None):
            raise ValueError("warm_up has exactly one of requests, seconds (or is the word auto)")
        return self


WarmUpField = WarmUp | Literal["auto"]
