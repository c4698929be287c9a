"""Sequential replay on the plain-Python group cache: one request at a time, to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefixsim.engines.vllm.groups_twin import GroupCache, GroupRequest, GroupRules, Hit

Row = Mapping[str, Any]


class ChainNames:
    """Dense names of whole prefixes: a block's name is decided by the name before it, its tokens and, first, the namespace."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.names: dict[tuple[Any, ...], int] = {}

    def row(self, row: Row) -> list[int]:
        """Names of the full blocks of a row's prompt and outputs."""
        tokens = [*row["tokens"], *(row.get("output_tokens") or [0])]
        name: Any = ("namespace", row.get("cache_salt") or "", row.get("lora") or "")
        chain = []
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            name = self.names.setdefault((name, tuple(tokens[end - self.block_size : end])), len(self.names))
            chain.append(name)
        return chain


def replay_sequential(rows: Sequence[Row], rules: GroupRules) -> dict[str, Any]:
    """Looks up, allocates, decodes token by token and frees each row in turn; a row that does not fit is rejected."""
    cache = GroupCache(rules)
    names = ChainNames(rules.block_size)
    results = []
    cached_tokens = 0
    for number, row in enumerate(rows):
        prompt = len(row["tokens"])
        request = GroupRequest(number, prompt, prompt, names.row(row))
        hit: Hit | None = None
        if not row.get("skip_reading_prefix_cache"):
            hit = cache.lookup(request)
            request.junction = hit.junction
        hit_tokens = hit.tokens if hit else 0
        admitted = cache.allocate(request, prompt - hit_tokens, hit, whole_sequence=True)
        if admitted:
            cached_tokens += hit_tokens
            request.computed = prompt
            for _ in (row.get("output_tokens") or [])[:-1]:  # the last output token is never computed
                request.tokens += 1
                if not cache.allocate(request, 1):
                    break
                request.computed += 1
            cache.free(request)
        results.append(
            {"id": row["id"], "prompt_tokens": prompt, "cached_tokens": hit_tokens, "rejected": not admitted}
        )
    return {
        "evicted_blocks": cache.pool.evicted,
        "cached_tokens": cached_tokens,
        "final_free_queue_cached": cache.pool.cached_flags(),
        "requests": results,
    }
