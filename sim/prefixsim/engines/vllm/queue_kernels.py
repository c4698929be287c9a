# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The waiting queue, compiled. Twin: `TwinScheduler.add`, `head`, `pop_head`, `remove_waiting`.

fcfs: a stack of preempted requests in front of the slice [HEAD, FOLLOWING) of the arrivals. A preempted request is resumed
before anything new is admitted, so stack + running never exceed the number of slots.
priority: a binary heap of queue positions on (priority, position).
"""

from __future__ import annotations

from prefixsim.engines.vllm.state import (
    I_FOLLOWING,
    I_HEAD,
    I_HEAP,
    I_HOST_NS,
    I_PRIORITY,
    I_STACK,
    I_SUBMITTED,
    LIST_PREEMPTED,
    Q_READY_NS,
    Q_REQ,
)
from prefixsim.jit import inline_kernel, lean_kernel
from prefixsim.records import (
    REQ_READY_NS,
    REQ_RELEASED_NS,
    REQ_REPLICA,
    REQ_STATUS,
    STATUS_REJECTED,
    STATUS_WAITING,
)


@lean_kernel
def enqueue(state, queue, rows, prompt_tokens, requests, at_ns, replica, hash_ns, longest_prompt):
    """Requests reach the engine. One input thread hashes prompts in order of arrival, `hash_ns` (float) a token; a prompt
    longer than `longest_prompt` is refused at once. Returns the number refused."""
    refused = 0
    for i in range(requests.shape[0]):
        r = requests[i]
        rows[r, REQ_REPLICA] = replica
        rows[r, REQ_RELEASED_NS] = at_ns[i]
        if prompt_tokens[r] > longest_prompt:
            rows[r, REQ_STATUS] = STATUS_REJECTED
            refused += 1
            continue
        ready = max(at_ns[i], state[I_HOST_NS]) + round(hash_ns * prompt_tokens[r])
        state[I_HOST_NS] = ready
        rows[r, REQ_STATUS] = STATUS_WAITING
        rows[r, REQ_READY_NS] = ready
        pos = state[I_SUBMITTED]
        queue[pos, Q_REQ] = r
        queue[pos, Q_READY_NS] = ready
        state[I_SUBMITTED] = pos + 1
    return refused


@inline_kernel
def waiting_count(state):
    """Requests waiting: preempted ones in front and arrived ones behind, or those in the heap."""
    if state[I_PRIORITY] != 0:
        return state[I_HEAP]
    return state[I_STACK] + state[I_FOLLOWING] - state[I_HEAD]


@lean_kernel
def _before(queue, priority, a, b):
    p, q = priority[queue[a, Q_REQ]], priority[queue[b, Q_REQ]]
    return p < q or (p == q and a < b)


@lean_kernel
def _rise(queue, heap, priority, i):
    """Moves entry i towards the root until its parent goes first."""
    pos = heap[i]
    while i > 0:
        up = (i - 1) // 2
        if not _before(queue, priority, pos, heap[up]):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = pos
    return i


@lean_kernel
def _sink(queue, heap, priority, i, n):
    """Moves entry i towards the leaves until its children go after it."""
    pos = heap[i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _before(queue, priority, heap[child + 1], heap[child]):
            child += 1
        if not _before(queue, priority, heap[child], pos):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = pos


@lean_kernel
def push_waiting(state, lists, queue, heap, priority, pos):
    """A preempted request (fcfs: in front), or an arrival under the priority policy."""
    if state[I_PRIORITY] != 0:
        n = state[I_HEAP]
        heap[n] = pos
        state[I_HEAP] = n + 1
        _rise(queue, heap, priority, n)
    else:
        lists[LIST_PREEMPTED, state[I_STACK]] = pos
        state[I_STACK] += 1


@lean_kernel
def head_of_queue(state, lists, heap):
    """Queue position of the request to be admitted next; the queue is not empty."""
    if state[I_PRIORITY] != 0:
        return heap[0]
    if state[I_STACK] > 0:
        return lists[LIST_PREEMPTED, state[I_STACK] - 1]
    return state[I_HEAD]


@lean_kernel
def pop_waiting(state, lists, queue, heap, priority):
    """Takes the head away."""
    if state[I_PRIORITY] != 0:
        remove_at(state, queue, heap, priority, 0)
    elif state[I_STACK] > 0:
        state[I_STACK] -= 1
    else:
        state[I_HEAD] += 1


@lean_kernel
def remove_at(state, queue, heap, priority, i):
    """Takes entry i out of the heap."""
    n = state[I_HEAP] - 1
    state[I_HEAP] = n
    if i < n:
        heap[i] = heap[n]
        i = _rise(queue, heap, priority, i)
        _sink(queue, heap, priority, i, n)


@lean_kernel
def remove_waiting(state, lists, queue, heap, priority, pos):
    """Takes a preempted request out of the queue, wherever it is."""
    if state[I_PRIORITY] != 0:
        i = 0
        while heap[i] != pos:
            i += 1
        remove_at(state, queue, heap, priority, i)
    else:
        i = state[I_STACK] - 1
        while lists[LIST_PREEMPTED, i] != pos:
            i -= 1
        state[I_STACK] -= 1
        for k in range(i, state[I_STACK]):
            lists[LIST_PREEMPTED, k] = lists[LIST_PREEMPTED, k + 1]
