# mypy: disable-error-code="no-untyped-call"
"""How requests reach a vLLM replica, whatever its KV groups: arrays that grow, the queue, and prompts refused at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefixsim.engines.contract import EngineInputs
from prefixsim.engines.vllm.queue_kernels import enqueue
from prefixsim.records import I64, REQ_STATUS, STATUS_REJECTED

MAX_TIMELINE_ROWS = 1 << 18
"""27 MB: more steps than that are joined to groups. Longer tables would take a third of a long run's time to write."""


class FrontEnd:
    """vLLM's front end: it refuses prompts that can never fit. longest_prompt: tokens. n_refused: how many so far."""

    def __init__(self, inputs: EngineInputs, longest_prompt: int, hash_ns_per_token: float) -> None:
        self.inputs, self.longest_prompt, self.hash_ns_per_token = inputs, longest_prompt, hash_ns_per_token
        self.n_refused = 0
        self._awaited: list[tuple[int, int]] = []

    def take_in(self, state: I64, queue: I64, requests: I64, at_ns: I64) -> None:
        """Puts requests into the queue, which has room for them, in order of arrival."""
        w, rows = self.inputs.workload, self.inputs.rows
        refused = enqueue(
            state, queue, rows, w.prompt_tokens, requests, at_ns, self.inputs.replica, self.hash_ns_per_token,
            self.longest_prompt,
        )  # fmt: skip
        if refused:
            self.n_refused += int(refused)
            out = (rows[requests, REQ_STATUS] == STATUS_REJECTED) & self.inputs.awaited[requests]
            self._awaited += zip(requests[out].tolist(), at_ns[out].tolist(), strict=True)

    def completed(self) -> I64 | None:
        """Refused requests that somebody waits for, int64 (k, 2): request and instant, once; None where there are none. They
        count as completed when they were refused."""
        if not self._awaited:
            return None
        completed, self._awaited = np.array(self._awaited, dtype=np.int64), []
        return completed


def as_columns(requests: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]) -> tuple[I64, I64]:
    """Both contiguous and int64, as kernels want them."""
    return np.ascontiguousarray(requests, dtype=np.int64), np.ascontiguousarray(at_ns, dtype=np.int64)


def grown(array: I64, rows: int) -> I64:
    """The array with more rows, new ones 0."""
    out = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    out[: array.shape[0]] = array
    return out
