# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Compiled: which node begins with a page: open addressing by the page's chain id. Compiled through `prefixsim.jit`.
Twin: `Node.children` in `reference_tree`."""

from __future__ import annotations

from prefixsim.engines.sglang.state import NIL
from prefixsim.jit import lean_kernel


@lean_kernel
def table_home(table, chain):
    """Slot where a chain id would like to be."""
    h = ((chain ^ (chain >> 29)) & 0x7FFFFFFF) * 0x9E3779B1
    return (h >> 15) & (table.shape[0] - 1)


@lean_kernel
def table_find(table, chain):
    """Node whose segment begins with this chain id, or NIL."""
    mask = table.shape[0] - 1
    at = table_home(table, chain)
    while table[at, 1] != NIL:
        if table[at, 0] == chain:
            return table[at, 1]
        at = (at + 1) & mask
    return NIL


@lean_kernel
def table_set(table, chain, node):
    """Adds a chain id, or gives it another node."""
    mask = table.shape[0] - 1
    at = table_home(table, chain)
    while table[at, 1] != NIL and table[at, 0] != chain:
        at = (at + 1) & mask
    table[at, 0] = chain
    table[at, 1] = node


@lean_kernel
def table_drop(table, chain):
    """Removes a chain id that is there; entries behind it move up, so no tombstones pile up."""
    mask = table.shape[0] - 1
    hole = table_home(table, chain)
    while table[hole, 0] != chain:  # no free slot lies before it, so what stands here is no leftover
        hole = (hole + 1) & mask
    at = hole
    while True:
        at = (at + 1) & mask
        if table[at, 1] == NIL:
            break
        home = table_home(table, table[at, 0])
        if ((at - home) & mask) >= ((at - hole) & mask):
            table[hole, 0] = table[at, 0]
            table[hole, 1] = table[at, 1]
            hole = at
    table[hole, 1] = NIL


@lean_kernel
def table_refill(old, table):
    """Moves the entries of a table into a larger, empty one."""
    for at in range(old.shape[0]):
        if old[at, 1] != NIL:
            table_set(table, old[at, 0], old[at, 1])
