"""How each set of measured end-to-end points was made: the client's load and the server's options.

What a maker's public scripts say is taken from them and cited; what they leave open was read off the points `in_fit`
(`fitted` below). Nothing is set for a single point. docs/validation.md tells which other explanations were tried.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from prefixsim.workload.table import Source, Workload, make_workload


@dataclass(frozen=True, slots=True)
class Point:
    """One measured row."""

    system: str
    backend: str
    model: str
    fp8: bool
    isl: int
    osl: int
    concurrency: int
    tp: int
    ttft_ms: float
    tpot_ms: float

    @property
    def group(self) -> str:
        return f"{self.system}/{self.backend}"

    @property
    def in_fit(self) -> bool:
        """A third of the points, by a hash of what they are: the only ones anything may be fitted on."""
        text = f"{self.system}|{self.backend}|{self.model}|{self.isl}|{self.osl}|{self.concurrency}|{self.tp}"
        return hashlib.sha256(text.encode()).digest()[0] < 86


@dataclass(frozen=True, slots=True)
class Setup:
    """One maker's client and server.

    Client: all users start at once; a user sends its next request when its last one ends. rounds: requests a user that
    count; warmup_rounds: those before them, which do not. ratio: lengths are uniform in [ratio, 1] of the stated ones.
    prompts: distinct prompts, sent again and again in order; 0: every prompt is new. waiting: users beyond `concurrency`,
    which is all that the engine may run.
    Server: token_budget: what a step may hold, as a rule of the point. scheduling: whose. reserve_outputs: a request is
    admitted when the KV of its whole answer fits. wait_iterations: steps that a lone prompt waits for company.
    request_us: time before the engine sees a request, µs. fp8_kv, bf16_weights: other number formats than the rows say.
    """

    rounds: int = 10
    warmup_rounds: int = 0
    ratio: float = 0.8
    prompts: int = 0
    waiting: int = 0
    token_budget: Literal["default", "isl+1500", "isl+1500+users", "isl+osl+200"] = "default"
    scheduling: Literal["own", "vllm"] = "own"
    prefix_caching: bool = True
    reserve_outputs: bool = False
    wait_iterations: int = 0
    request_us: float = 0.0
    fp8_kv: bool = False
    bf16_weights: bool = False

    def budget(self, p: Point) -> int | None:
        """Tokens a step may hold; None: the engine's default for the GPU (8192 on these)."""
        rules = {
            "default": None,
            "isl+1500": min(8192, p.isl + 1500),
            "isl+1500+users": p.isl + 1500 + p.concurrency,
            "isl+osl+200": p.isl + p.osl + 200,
        }
        return rules[self.token_budget]


INFERENCEMAX = Setup(rounds=10, ratio=0.8, prefix_caching=False)
"""InferenceMAX's client (its README, 2025): random lengths in 80-100 %, ten requests a user, all at once; vLLM runs with
--no-enable-prefix-caching --max-num-batched-tokens 8192. What an unknown set of points is run with."""


def setup_of(p: Point) -> Setup:
    """The setup that made a point."""
    if p.group == "h200_sxm/trtllm":
        # InferenceMAX benchmarks/70b_fp8_h200_trt_slurm.sh: no block reuse, max_num_tokens = max length, no chunks' option;
        # at 1024/1024 below TP 8 batch_wait_timeout_iters 20. TensorRT-LLM's default capacity policy never evicts.
        waits = p.isl == p.osl == 1024 and p.tp < 8
        return Setup(
            rounds=10,
            ratio=0.8,
            prefix_caching=False,
            token_budget="isl+osl+200",
            reserve_outputs=True,
            wait_iterations=20 if waits else 0,
            request_us=36_500.0,
        )
    if p.group == "h100_sxm/trtllm":
        # aiconfigurator's eval pipeline: genai-perf, exact lengths, 10 requests a user after 2 that do not count; its
        # generated server: max_num_tokens = batch + isl + 1500, max_batch_size = users, no block reuse.
        # fitted: one user more than slots (TTFT is prefill + time of a request / users).
        return Setup(
            rounds=10, warmup_rounds=2, ratio=1.0, waiting=1, token_budget="isl+1500+users", prefix_caching=False
        )
    if p.group == "h200_sxm/vllm" and p.model == "llama-3.1-8b":
        # aiconfigurator's generated benchmark: AIPerf, exact lengths, --num-dataset-entries left at its default of 100
        # prompts; its generated vLLM server caches prefixes. fitted: 15 requests a user (the script of today says 50).
        return Setup(rounds=15, ratio=1.0, prompts=100)
    if p.group == "h200_sxm/sglang":
        # aiconfigurator's generated server: --enable-mixed-chunk (our SGLang engine has no such option: vLLM's scheduling
        # stands in), --max-prefill-tokens isl + 1500. fitted: 6 requests a user; no prompt is sent twice.
        return Setup(rounds=6, ratio=1.0, scheduling="vllm", token_budget="isl+1500", prefix_caching=False)
    if p.group == "h200_sxm/vllm":
        return replace(INFERENCEMAX, request_us=10_700.0)
    return INFERENCEMAX


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another explanation of a set of points: what is changed in its setup."""

    points: str
    what: str
    changes: dict[str, Any]


ALTERNATIVES = [
    Alternative("h200_sxm/vllm, llama-3.1-8b", "no prompt is sent twice", {"prompts": 0}),
    Alternative("h200_sxm/vllm, llama-3.1-8b", "all prompts were cached before", {"warmup_rounds": 7}),
    Alternative(
        "h200_sxm/vllm, llama-3.1-8b", "50 requests a user after 2 (script of 2026)", {"rounds": 50, "warmup_rounds": 2}
    ),
    Alternative("h200_sxm/vllm, llama-3.1-8b", "FP8 KV cache", {"fp8_kv": True}),
    Alternative("h200_sxm/vllm, llama-3.1-8b", "lengths 80 to 100 %", {"ratio": 0.8}),
    Alternative("h200_sxm/sglang, llama-3.1-8b", "prefill before decode, no mixed chunks", {"scheduling": "own"}),
    Alternative("h200_sxm/sglang, llama-3.1-8b", "100 prompts, sent again", {"prompts": 100, "prefix_caching": True}),
    Alternative("h200_sxm/sglang, llama-3.1-8b", "FP8 KV cache", {"fp8_kv": True}),
    Alternative("h200_sxm/sglang, llama-3.1-8b", "16-bit weights", {"bf16_weights": True}),
    Alternative("h200_sxm/sglang, llama-3.1-8b", "10 requests a user", {"rounds": 10}),
    Alternative("h200_sxm/trtllm, llama-3.1-70b", "prompts do not wait for company", {"wait_iterations": 0}),
    Alternative("h200_sxm/trtllm, llama-3.1-70b", "vLLM's admission", {"reserve_outputs": False}),
    Alternative("h100_sxm/trtllm, llama-3.1-8b", "as many slots as users", {"waiting": 0}),
    Alternative("h100_sxm/trtllm, llama-3.1-8b", "a step holds 8192 tokens", {"token_budget": "default"}),
    Alternative("h100_sxm/trtllm, llama-3.1-8b", "lengths 80 to 100 %, no warm-up", {"ratio": 0.8, "warmup_rounds": 0}),
    Alternative("h200_sxm/vllm, llama-3.1-70b", "FP8 KV cache", {"fp8_kv": True}),
]
"""What docs/validation.md shows next to the setups above."""


def closed_loop(p: Point, setup: Setup) -> Workload:
    """The requests of one point."""
    users = p.concurrency + setup.waiting
    n = users * (setup.warmup_rounds + setup.rounds)
    after = np.arange(n, dtype=np.int32) - users
    after[after < 0] = -1
    rng = np.random.default_rng(1)

    def lengths(size: int) -> np.ndarray:
        return rng.integers(max(1, int(size * setup.ratio)), size + 1, n)

    prompts, outputs = lengths(p.isl), lengths(p.osl)
    atoms = np.arange(n)
    if setup.prompts:
        atoms = atoms % setup.prompts
        prompts = prompts[atoms]
    return make_workload(
        source=Source("closed-loop", synthetic=True),
        prompt_tokens=prompts,
        output_tokens=outputs,
        atom_offset=np.arange(n + 1),
        prompt_atoms=np.ones(n),
        atom_id=atoms,
        atom_tokens=prompts,
        after=after,
    )
