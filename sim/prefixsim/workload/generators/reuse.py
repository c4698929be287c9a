"""Prefix reuse by numbers: each prompt takes a prefix of an earlier sequence and goes on with content of its own."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.generators import HitRateGoal, ReuseWorkload
from prefixsim.workload.edit import add_to_source, order_quietly
from prefixsim.workload.generators.arrivals import session_starts
from prefixsim.workload.generators.assemble import MAX_ATOMS
from prefixsim.workload.generators.registry import GenerateContext, register, synthetic_source
from prefixsim.workload.links import resolve
from prefixsim.workload.streams import sample, sample_tokens, stream
from prefixsim.workload.table import I64, Decision, Workload, make_workload


@register("reuse")
def reuse(spec: ReuseWorkload, context: GenerateContext) -> Workload:
    """Generates a `reuse` section. Raises ScenarioError when the wanted hit rate cannot be reached."""
    from prefixsim.workload.generators.reuse_kernels import choose_sources, put_feasible_first

    n, seed = spec.requests, context.seed
    if spec.rows is not None:
        table = np.array(spec.rows, dtype=np.int64)
        rounds = -(-n // table.shape[0])
        order = np.concatenate([stream(seed, f"rows/{k}").permutation(table.shape[0]) for k in range(rounds)])[:n]
        prompts, outputs, shared, back = (np.ascontiguousarray(table[order, k]) for k in range(4))
    else:
        prompts = sample_tokens(spec.prompt_tokens, n, stream(seed, "prompt_tokens"))
        outputs = sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens"))
        share = np.minimum(sample(spec.shared_share, n, stream(seed, "shared_share")), 1.0)
        reused = stream(seed, "reused").random(n) < spec.reuse_share
        shared = np.where(reused, np.rint(prompts * share), 0).astype(np.int64)
        back = np.maximum(1, np.rint(sample(spec.back, n, stream(seed, "back")))).astype(np.int64)
    order = np.arange(n, dtype=np.int64)
    put_feasible_first(order, prompts + outputs, prompts, shared)
    prompts, outputs, shared, back = (np.ascontiguousarray(c[order]) for c in (prompts, outputs, shared, back))
    decisions: tuple[Decision, ...] = ()
    if spec.hit_rate is not None:
        shared = _scaled(prompts, outputs, shared, back, spec.hit_rate)
    source, taken = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    choose_sources(prompts + outputs, prompts, shared, back, source, taken)
    offset, ids, tokens, prompt_atoms = _rows(source, taken, prompts, outputs)
    if spec.hit_rate is not None:
        g = spec.hit_rate.granularity
        reached = float((taken // g * g).sum() / prompts.sum())
        if abs(reached - spec.hit_rate.share) > 0.005:
            raise ScenarioError(
                f"hit_rate {spec.hit_rate.share:.2%} at {g} tokens cannot be reached with these lengths: {reached:.2%} is the "
                "nearest (longer prompts, more requests, reuse_share 1 or a smaller granularity help)"
            )
        evidence = f"asked for {spec.hit_rate.share:.2%} in blocks of {g}; the ceiling is {reached:.2%}"
        decisions = (Decision("hit_rate", f"{reached:.4f}", evidence, True),)
    starts = session_starts(spec.arrivals, n, context)
    after = np.full(n, -1, dtype=np.int64)
    delay = np.zeros(n, dtype=np.int64)
    if starts.previous is not None and starts.pause_ns is not None:
        after = starts.previous
        delay = np.where(after >= 0, starts.pause_ns, 0)
    arrival, _ = resolve(after.astype(np.int32), delay, starts.start_ns, after < 0)
    w = make_workload(
        source=add_to_source(synthetic_source("reuse"), *decisions),
        prompt_tokens=prompts,
        output_tokens=outputs,
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        atom_id=ids,
        atom_tokens=tokens,
        arrival_ns=arrival,
        after=after,
        delay_ns=delay,
    )
    return order_quietly(w)


def _rows(source: I64, taken: I64, prompts: I64, outputs: I64) -> tuple[I64, Any, Any, I64]:
    """(offset, ids, tokens, prompt_atoms) of all rows. Raises ScenarioError past `MAX_ATOMS`."""
    from prefixsim.workload.generators.reuse_kernels import copy_prefixes

    n = source.shape[0]
    offset, prompt_atoms = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    size = 8 * n + 1024
    ids, tokens = np.empty(size, np.int32), np.empty(size, np.int32)
    row = fresh = 0
    while True:
        row, fresh = copy_prefixes(row, fresh, source, taken, prompts, outputs, offset, ids, tokens, prompt_atoms)
        if row == n:
            break
        size *= 2
        if size > MAX_ATOMS:
            raise ScenarioError(
                f"prompts would have more than {MAX_ATOMS:,} parts: fewer requests or less reuse are needed"
            )
        ids, tokens = np.resize(ids, size), np.resize(tokens, size)
    used = int(offset[n])
    return offset, ids[:used].copy(), tokens[:used].copy(), prompt_atoms


def _scaled(prompts: I64, outputs: I64, shared: I64, back: I64, goal: HitRateGoal) -> I64:
    """Shared parts scaled by bisection until full blocks of them are the wanted share of all prompt tokens."""
    from prefixsim.workload.generators.reuse_kernels import choose_sources

    n, g = prompts.shape[0], goal.granularity
    length = prompts + outputs
    wish = np.where(shared > 0, shared / prompts, 0.0)
    source, taken = np.zeros(n, np.int64), np.zeros(n, np.int64)

    def reached(factor: float) -> tuple[float, I64]:
        # below 1 the shares shrink; above 1 what is left of each prompt shrinks, and requests without reuse join at the end
        share = wish * factor if factor <= 1 else 1 - (1 - wish) * (2 - factor)
        parts = np.rint(prompts * np.clip(share, 0, 1)).astype(np.int64)
        choose_sources(length, prompts, parts, back, source, taken)
        return float((taken // g * g).sum() / prompts.sum()), parts

    low, high = 0.0, 2.0
    best = reached(0.0)
    for _ in range(40):
        middle = (low + high) / 2
        found = reached(middle)
        if abs(found[0] - goal.share) < abs(best[0] - goal.share):
            best = found
        if abs(found[0] - goal.share) < 2e-4:
            break
        low, high = (middle, high) if found[0] < goal.share else (low, middle)
    return best[1]
