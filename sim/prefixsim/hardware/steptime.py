"""What a step costs: the coefficient vector and tables that `step_kernels.step_ns` reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefixsim.hardware.step_kernels import C_CLOCK_STEPS, N_COEF

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Costs on the scheduler's CPU, ns (float). hash_ns_per_token: block hashing at request creation;
    the rest: radix-tree work per node touched, on the scheduler's one thread. tree_node_bytes: memory of one node."""

    hash_ns_per_token: float = 0.0
    match_ns_per_node: float = 0.0
    insert_ns_per_node: float = 0.0
    split_ns_per_node: float = 0.0
    evict_ns_per_node: float = 0.0
    tree_node_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """coef: float64 (N_COEF,); gemm_us: float64 (M,) by tokens in the step; lm_head_us: float64 (S,) by sampled sequences."""

    coef: F64
    gemm_us: F64
    lm_head_us: F64
    host: HostCosts = HostCosts()

    @classmethod
    def steps(cls, unit_ns: int = 1) -> StepCosts:
        """`clock: steps`: every step lasts `unit_ns` ns, the host costs nothing. How golden cases run."""
        coef = np.zeros(N_COEF, dtype=np.float64)
        coef[C_CLOCK_STEPS] = unit_ns
        return cls(coef=coef, gemm_us=np.zeros(2), lm_head_us=np.zeros(2))
