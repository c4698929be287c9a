"""Plain-Python SGLang 0.5.23: the golden loops without a scheduler, one request or a window of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefixsim.engines.sglang.reference_cache import Cache, OutOfMemoryError, Request


def start_alone(cache: Cache, r: Request) -> bool:
    """Match, lock, allocate, prefill, first token, insert. False where it does not fit."""
    cache.next_round(r)
    r.first_hit = r.prefix
    assert r.node is not None
    cache.tree.lock(r.node)
    need = r.length - r.prefix + (cache.page if cache.page > 1 else 0)
    if need > cache.available + cache.evictable:
        cache.tree.unlock(r.node)
        return False
    r.locked = r.node
    r.extend_end = r.length
    before = cache.tree.evicted_pages
    cache.extend([r])
    cache.emit_first(r)
    r.evicted += (cache.tree.evicted_pages - before) * cache.page
    return True


def decode_alone(cache: Cache, r: Request) -> None:
    """One decode step of one request."""
    if not cache.can_decode([r]):
        raise OutOfMemoryError
    cache.decode([r])
    cache.emit(r)


def run_sequential(cache: Cache, requests: Sequence[Request], check: Callable[[], None] | None = None) -> None:
    """One request at a time, to its end."""
    for r in requests:
        before = cache.tree.evicted_pages
        r.admitted = start_alone(cache, r)
        while r.admitted and not r.finished:
            decode_alone(cache, r)
        r.evicted = (cache.tree.evicted_pages - before) * cache.page
        if check:
            check()


def run_overlap(cache: Cache, requests: Sequence[Request], width: int, check: Callable[[], None] | None = None) -> None:
    """A window of `width` running requests: one starts when the one `width` before it has been decoded to its end."""
    running: list[Request] = []

    def drain(n: int) -> None:
        while len(running) > n:
            while not running[0].finished:
                decode_alone(cache, running[0])
            running.pop(0)

    for r in requests:
        drain(width - 1)
        before = cache.tree.evicted_pages
        r.admitted = start_alone(cache, r)
        while not r.admitted and running:
            drain(len(running) - 1)
            r.admitted = start_alone(cache, r)
        if r.admitted and not r.finished:
            running.append(r)
        r.evicted = (cache.tree.evicted_pages - before) * cache.page
        if check:
            check()
    drain(0)
