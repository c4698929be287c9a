"""Small hostile cases in time: arrivals in seconds, made-up step costs of which every term counts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from small_cases import small_case

from prefixsim.engines.vllm.facts import Settings
from prefixsim.hardware import step_kernels as sk
from prefixsim.hardware.steptime import StepCosts
from prefixsim.workload.formats.native import workload_from_rows
from prefixsim.workload.table import Source, Workload


def coefficients() -> StepCosts:
    """Step costs of no real card: every term of the formula counts."""
    coef = np.zeros(sk.N_COEF)
    for column, value in (
        (sk.C_LAYERS, 4.0),
        (sk.C_PF_T0_US, 3.0),
        (sk.C_PF_TILE_US, 1.0),
        (sk.C_PF_US_PER_UNIT, 0.01),
        (sk.C_PF_LONGEST, 0.3),
        (sk.C_PF_GROUP, 4.0),
        (sk.C_PF_KV_HEADS, 8.0),
        (sk.C_SMS, 132.0),
        (sk.C_DEC_T0_US, 2.0),
        (sk.C_DEC_CTA_US, 0.5),
        (sk.C_DEC_KV_HEADS, 8.0),
        (sk.C_DEC_RAMP, 20.0),
        (sk.C_DEC_US_PER_KV_TOKEN, 0.01),
        (sk.C_MIXED_PENALTY, 1.1),
        (sk.C_ENGINE_STEP_US, 50.0),
        (sk.C_ENGINE_PER_SEQ_US, 5.0),
    ):
        coef[column] = value
    return StepCosts(coef, 20.0 + 0.1 * np.arange(64), 30.0 + np.arange(16.0))


def timed_case(seed: int) -> tuple[list[dict[str, Any]], Workload, Settings]:
    """A small case with arrivals in seconds, ends by EOS and max_tokens beyond the true length."""
    rng = random.Random(seed)
    rows, config = small_case(rng.randrange(2**32) * 4 + 1 + rng.randrange(3))
    for row in rows:
        row["arrival"] = row.pop("step") * rng.choice([0.0001, 0.0005])
    at = 0.0
    for row in rows:
        at = row["arrival"] = max(at, row["arrival"])
        if rng.random() < 0.3:
            row["finish_reason"] = "stop"
    if rng.random() < 0.5:
        for row in rows:
            row["max_tokens"] = len(row["output_tokens"]) + rng.choice([0, 1, 7])
    workload = workload_from_rows(rows, Source(kind="test"))
    blocks = config["num_gpu_blocks"]
    limit = (blocks - 1) * config["block_size"]
    if rng.random() < 0.3:
        limit = rng.randint(limit // 2, limit)
    settings_ = Settings(
        block_size=config["block_size"],
        num_gpu_blocks=blocks,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=limit,
        watermark=config["watermark"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        async_scheduling=config["async_scheduling"],
        priority=config["policy"] == "priority",
    )
    return rows, workload, settings_
