"""The ledger, level by level against its definition, on an engine made of random choices; and what it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.helpers import token_rows
from tests.analysis.test_ceilings import workloads

from prefixsim.analysis import reference
from prefixsim.analysis.ledger import (
    LedgerError,
    LedgerFacts,
    ledger,
    ledger_by,
    ledger_totals,
)
from prefixsim.analysis.segments import inserted_tokens
from prefixsim.records import (
    LEDGER_PARTS,
    NEVER,
    REQ_ADMITTED_NS,
    REQ_CACHED_HOST_TOKENS,
    REQ_CACHED_TOKENS,
    REQ_COMPUTED_TOKENS,
    REQ_DEVICE_TOKENS,
    REQ_KNOWN_TOKENS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_FINISHED,
    STATUS_REJECTED,
    new_request_rows,
)
from prefixsim.workload.intern import build_chains, build_trie


def blocks_in_common(a, b, granularity):
    return reference.common(a, b) // granularity


@settings(max_examples=80, deadline=None, derandomize=True)
@given(workloads(), st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_level_is_its_definition(workload, g, replicas, data):
    n = workload.n
    draw = data.draw
    arrived = np.sort(np.array([draw(st.integers(0, 5)) for _ in range(n)]))
    lookup = arrived + np.array([draw(st.integers(0, 4)) for _ in range(n)])
    replica = np.array([draw(st.integers(0, replicas - 1)) for _ in range(n)])
    commit = lookup + np.array([draw(st.integers(1, 5)) for _ in range(n)])
    admitted = np.array([draw(st.integers(0, 9)) > 0 for _ in range(n)])
    rows = reference.expand(workload, "vllm")
    plain = reference.expand(workload, "none")
    prompt, inserted = workload.prompt_tokens, inserted_tokens(workload)
    chains = build_chains(build_trie(workload, "vllm"), g)
    offsets, ids = chains.expand()
    first_commit = [np.full(chains.n_chains, NEVER) for _ in range(replicas)]
    for r in np.flatnonzero(admitted):
        mine = first_commit[replica[r]]
        for chain in ids[offsets[r] : offsets[r] + inserted[r] // g]:
            mine[chain] = min(mine[chain], commit[r])

    def committed(r, on):
        done = [q for q in np.flatnonzero(admitted) if q != r and commit[q] <= lookup[r] and replica[q] in on]
        return g * max((blocks_in_common(rows[r], rows[q][: inserted[q]], g) for q in done), default=0)

    table = new_request_rows(n)
    expected = np.zeros((n, len(LEDGER_PARTS)), dtype=np.int64)
    table[:, REQ_RELEASED_NS] = arrived
    table[:, REQ_REPLICA] = replica
    table[:, REQ_STATUS] = np.where(admitted, STATUS_FINISHED, STATUS_REJECTED)
    lookups = np.where(admitted, lookup, -1)
    table[:, REQ_ADMITTED_NS] = lookups
    level2 = reference.known_prefix(rows, prompt, inserted, arrived, lookups)
    level1 = reference.known_prefix(plain, prompt, inserted, arrived, lookups)
    for r in np.flatnonzero(admitted):
        p = int(prompt[r])
        here, anywhere = committed(r, {replica[r]}), committed(r, set(range(replicas)))
        level3 = max(0, min(level2[r], p - 1))
        level4 = level3 // g * g
        level5, level6 = min(level4, anywhere), min(level4, here)
        level7 = draw(st.integers(0, level6 // g)) * g
        hit = 0 if draw(st.integers(0, 4)) == 0 else level7
        host = draw(st.integers(0, hit // g)) * g
        table[r, REQ_KNOWN_TOKENS] = here
        table[r, REQ_DEVICE_TOKENS] = level7 - host
        table[r, REQ_CACHED_TOKENS] = hit
        table[r, REQ_CACHED_HOST_TOKENS] = host
        levels = [p, level1[r], level2[r], level3, level4, level4, level5, level6, level7, hit]
        expected[r, :9] = -np.diff(levels)
        expected[r, 9:] = hit - host, host
    got = ledger(
        workload,
        table,
        granularity=g,
        rule="vllm",
        chains=chains,
        first_commit_ns=first_commit if replicas > 1 else None,
    )
    assert got.tolist() == expected.tolist()
    assert (got >= 0).all()
    assert got.sum(axis=1).tolist() == np.where(admitted, prompt, 0).tolist()
    assert sum(ledger_totals(got).values()) == int(prompt[admitted].sum())
    assert ledger_by(got, replica, replicas).sum(axis=0).tolist() == got.sum(axis=0).tolist()


def one_after_another(rows, g, **columns):
    """A table in which request r is looked up at r s; nothing cached."""
    workload = token_rows(rows, **columns)
    table = new_request_rows(workload.n)
    table[:, REQ_STATUS] = STATUS_FINISHED
    table[:, REQ_RELEASED_NS] = table[:, REQ_ADMITTED_NS] = workload.arrival_ns
    return workload, table


def test_the_parts_by_hand():
    shared = list(range(100, 140))
    workload, table = one_after_another(
        [(shared, [1]), ([*shared, 7], [1]), (shared[:32], [1]), (shared, [1])],
        16,
        salt=[0, 0, 0, 1],
        salt_names=("", "x"),
    )
    table[1, REQ_KNOWN_TOKENS] = table[1, REQ_DEVICE_TOKENS] = 32
    table[2, REQ_KNOWN_TOKENS] = 32  # uncapped: the engine may have committed the whole prompt
    table[2, REQ_DEVICE_TOKENS] = 16
    table[1:3, REQ_CACHED_TOKENS] = [32, 16]
    parts = [
        dict(zip(LEDGER_PARTS, row, strict=True))
        for row in ledger(workload, table, granularity=16, rule="vllm").tolist()
    ]
    assert parts[0]["new"] == 40
    assert (parts[1]["new"], parts[1]["granularity"], parts[1]["hit_device"]) == (1, 8, 32)
    assert (parts[2]["last_token"], parts[2]["granularity"], parts[2]["hit_device"]) == (1, 15, 16)
    assert parts[3]["namespace"] == 40
    off = ledger(
        workload,
        np.where(np.arange(16) >= REQ_CACHED_TOKENS, 0, table),
        granularity=16,
        rule="vllm",
        facts=LedgerFacts(caching=False),
    )
    assert ledger_totals(off)["engine_rule"] == 32 + 16


def test_same_instant_the_engine_may_look_up_the_later_row_first():
    workload, table = one_after_another([([1, 2, 3, 4, 5], [9]), ([1, 2, 3, 4, 6], [9])], 2, arrival_ns=[0, 0])
    table[0, REQ_KNOWN_TOKENS] = table[0, REQ_DEVICE_TOKENS] = table[0, REQ_CACHED_TOKENS] = 4
    parts = ledger(workload, table, granularity=2, rule="vllm")
    assert parts[0, LEDGER_PARTS.index("hit_device")] == 4
    assert parts[1, LEDGER_PARTS.index("in_flight")] == 4


@pytest.mark.parametrize(
    ("known", "device", "cached", "reason"),
    [
        (8, 4, 4, "only 4 were known"),
        (4, 8, 4, "add up"),
        (4, 2, 4, "add up"),
        (4, 4, 5, "add up"),
        (2, 4, 4, "add up"),
    ],
)
def test_contradictions_are_defects_not_numbers(known, device, cached, reason):
    workload, table = one_after_another([([1, 2, 3, 4, 5, 6, 7, 8, 9], [9]), ([1, 2, 3, 4, 6, 6, 6, 6, 9], [9])], 2)
    table[1, [REQ_KNOWN_TOKENS, REQ_DEVICE_TOKENS, REQ_CACHED_TOKENS]] = known, device, cached
    with pytest.raises(LedgerError, match=reason):
        ledger(workload, table, granularity=2, rule="vllm")


def test_what_a_replica_does_not_keep_is_no_loss_of_routing():
    """Of 64 tokens this replica computed 40 and by rule kept 8; another computed 48: what is lost is 32, then 8 and 16."""
    tokens = list(range(64))
    workload, table = one_after_another([([*tokens, 7], [1]), ([*tokens, 7], [1]), ([*tokens, 8], [1])], 4)
    table[:, REQ_REPLICA] = [0, 1, 0]
    table[2, [REQ_KNOWN_TOKENS, REQ_DEVICE_TOKENS, REQ_CACHED_TOKENS]] = 8
    table[2, REQ_COMPUTED_TOKENS] = 40
    table[:2, REQ_STATUS] = STATUS_REJECTED
    chains = build_chains(build_trie(workload, "vllm"), 4)
    offsets, ids = chains.expand()
    here, there = np.full(chains.n_chains, NEVER), np.full(chains.n_chains, NEVER)
    at = table[2, REQ_ADMITTED_NS]
    here[ids[offsets[2] : offsets[2] + 10]] = 0
    here[ids[offsets[2] + 10 : offsets[3]]] = at  # its own, computed from now on
    there[ids[offsets[2] : offsets[2] + 12]] = at

    def parts(*commits):
        found = ledger(workload, table, granularity=4, rule="vllm", chains=chains, first_commit_ns=commits)
        row = dict(zip(LEDGER_PARTS, found[2].tolist(), strict=True))
        return [row[k] for k in ("new", "engine_rule", "in_flight", "routing", "hit_device")]

    assert parts(here, there) == [1, 32, 16, 8, 8]
    assert parts(here, np.full_like(here, NEVER)) == [1, 32, 24, 0, 8]
    assert parts(here) == [1, 32, 24, 0, 8]
