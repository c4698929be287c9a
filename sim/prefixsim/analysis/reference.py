"""Plain-Python twins of the analysis kernels, written from the definitions: token lists, whole prefixes, no tricks.

Slow on purpose (a row is compared token by token with every other row); for tests and for readers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from prefixsim.analysis.segments import outputs_known
from prefixsim.workload.intern import NamespaceRule, namespaces
from prefixsim.workload.table import Workload

Tokens = list[Hashable]


def expand(workload: Workload, rule: NamespaceRule) -> list[Tokens]:
    """Every sequence (prompt + output) as a list of hashable tokens; equal tokens of two rows compare equal only in the same
    namespace. An output of unknown content is unique."""
    space = namespaces(workload, rule)
    known = outputs_known(workload)
    out: list[Tokens] = []
    for r in range(workload.n):
        tokens: Tokens = []
        for a in range(workload.atom_offset[r], workload.atom_offset[r + 1]):
            length = 1 if workload.atom_tokens is None else int(workload.atom_tokens[a])
            tokens += [(int(space[r]), int(workload.atom_id[a]), i) for i in range(length)]
        if not known[r]:
            tokens += [("unknown", r, i) for i in range(int(workload.output_tokens[r]))]
        out.append(tokens)
    return out


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common prefix."""
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


def shared_prefix(
    rows: Sequence[Tokens], prompt: Sequence[int], inserted: Sequence[int], order: Sequence[int]
) -> list[int]:
    """Twin of `kernels.shared_prefix`."""
    out = [0] * len(rows)
    done: list[Tokens] = []
    for r in order:
        out[r] = max((common(rows[r][: prompt[r]], other) for other in done), default=0)
        done.append(rows[r][: inserted[r]])
    return out


def known_prefix(
    rows: Sequence[Tokens],
    prompt: Sequence[int],
    inserted: Sequence[int],
    arrived: Sequence[int],
    lookup: Sequence[int],
    ties_known: bool = False,
) -> list[int]:
    """Twin of `segments.known_tokens`."""

    def known(q: int, r: int) -> bool:
        came = arrived[q] >= 0 and (arrived[q] <= lookup[r] if ties_known else arrived[q] < lookup[r])
        return came or (lookup[q] >= 0 and (lookup[q], q) < (lookup[r], r))

    out = [0] * len(rows)
    for r in range(len(rows)):
        if lookup[r] >= 0:
            others = [q for q in range(len(rows)) if q != r and known(q, r)]
            out[r] = max((common(rows[r][: prompt[r]], rows[q][: inserted[q]]) for q in others), default=0)
    return out


def lru_hits(
    rows: Sequence[Tokens],
    prompt: Sequence[int],
    inserted: Sequence[int],
    order: Sequence[int],
    granularity: int,
    capacity: int,
) -> int:
    """Hit tokens of an LRU cache of `capacity` full blocks by replay: lookup, then every inserted block touched, deepest
    first, the least recently used evicted."""
    cache: OrderedDict[tuple[Hashable, ...], None] = OrderedDict()
    hits = 0
    for r in order:
        blocks = [tuple(rows[r][: (k + 1) * granularity]) for k in range(inserted[r] // granularity)]
        for block in blocks[: prompt[r] // granularity]:
            if block not in cache:
                break
            hits += granularity
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def optimal_hits(
    rows: Sequence[Tokens],
    prompt: Sequence[int],
    inserted: Sequence[int],
    order: Sequence[int],
    granularity: int,
    capacity: int,
) -> int:
    """Hit tokens of Belady's rule with bypass, block by block: of the blocks held and just used, the `capacity` whose next
    looked-up use is nearest are kept."""
    blocks = [
        [tuple(rows[r][: (k + 1) * granularity]) for k in range(inserted[r] // granularity)] for r in range(len(rows))
    ]
    asked = [set(blocks[r][: prompt[r] // granularity]) for r in range(len(rows))]
    held: set[tuple[Hashable, ...]] = set()
    hits = 0

    def next_use(block: tuple[Hashable, ...], after: int) -> int:
        for i in range(after + 1, len(order)):
            if block in blocks[order[i]]:
                return i if block in asked[order[i]] else len(order)
        return len(order)

    for i, r in enumerate(order):
        hits += granularity * len(asked[r] & held)
        held |= set(blocks[r])
        wanted = sorted((next_use(b, i), len(b), b) for b in held if next_use(b, i) < len(order))
        held = {b for _, _, b in wanted[:capacity]}
    return hits
