# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The gateway's approximate prefix tree, compiled. Twin: `approx_tree_twin.TwinTree`, which reads like the rule."""

from __future__ import annotations

from prefixsim.jit import kernel


@kernel
def longest_match(run_offset, run_start, run_end, element_end, last, request, prompt):
    """(tokens of the longest prefix of the prompt in any replica's tree, replica that it was last sent to or -1).

    run_offset, run_start, run_end int64, element_end int64: the trie's rows. last int32 (E,): replica an element was last
    sent to, -1 none. prompt: tokens of the request's prompt; elements beyond it are output.
    """
    matched = 0
    replica = -1
    before = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        for e in range(run_start[j], run_start[j] + run_end[j] - before):
            if element_end[e] > prompt or last[e] < 0:
                return matched, replica
            matched = element_end[e]
            replica = last[e]
        before = run_end[j]
    return matched, replica


@kernel
def enter(run_offset, run_start, run_end, element_end, element_tokens, sent, last, request, prompt, replica, number):
    """Notes that the prompt was sent to `replica` as sending `number` (> 0). Returns the tokens new to its tree.

    sent int32 (replicas, E): number of the latest sending of an element to a replica, 0 never.
    """
    new = 0
    before = 0
    for j in range(run_offset[request], run_offset[request + 1]):
        for e in range(run_start[j], run_start[j] + run_end[j] - before):
            if element_end[e] > prompt:
                return new
            if sent[replica, e] == 0:
                new += element_tokens[e]
            sent[replica, e] = number
            last[e] = replica
        before = run_end[j]
    return new
