"""Consistent hashing of sessions onto a ring of replicas."""

from __future__ import annotations

import bisect
import hashlib
from typing import Any

from prefixsim.fleet.routers.base import Router, RouterContext, View


class SessionAffinity(Router):
    """Each replica owns `virtual_nodes` points of a ring of 64-bit hashes; a key belongs to the first point at or after its
    own hash. A replica more takes about 1/n of the keys and moves no others."""

    kind = "session_affinity"

    def __init__(self, options: Any, context: RouterContext) -> None:
        super().__init__(options, context)
        points = sorted(
            (_hash(f"replica {replica} point {i}"), replica)
            for replica in range(context.n_replicas)
            for i in range(options.virtual_nodes)
        )
        self.ring = [point for point, _ in points]
        self.owner = [replica for _, replica in points]
        self.known: dict[str, int] = {}

    def route(self, request: int, view: View) -> int:
        """The owner of the request's key."""
        key = self.key(request)
        found = self.known.get(key)
        if found is None:
            found = self.owner[bisect.bisect_left(self.ring, _hash(key)) % len(self.ring)]
            self.known[key] = found
        return found

    def key(self, request: int) -> str:
        """What is hashed: the session (group, tenant), or the request's id where it has none."""
        w, what = self.context.workload, self.options.key
        index = int(getattr(w, what)[request])
        names = getattr(w, f"{what}_names")
        if index < 0:
            return f"request {w.request_id(request)}"
        return f"{what} {names[index] if index < len(names) else index}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


ROUTER = SessionAffinity
