"""What the real engines can do and this program does not model: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from prefixsim.errors import Problem
from prefixsim.scenario.strict_yaml import Document, Path_

NOT_MODELLED: dict[str, str] = {
    "speculative_config": "speculative decoding",
    "speculative_algorithm": "speculative decoding",
    "speculative_num_steps": "speculative decoding",
    "num_speculative_tokens": "speculative decoding",
    "pipeline_parallel_size": "pipeline parallelism",
    "pp_size": "pipeline parallelism",
    "data_parallel_size": "data parallelism inside an engine (use `replicas` and a router)",
    "dp_size": "data parallelism inside an engine (use `replicas` and a router)",
    "enable_dp_attention": "data-parallel attention",
    "enable_expert_parallel": "expert parallelism",
    "ep_size": "expert parallelism",
    "expert_parallel_size": "expert parallelism",
    "decode_context_parallel_size": "context parallelism",
    "kv_transfer_config": "prefill-decode disaggregation and remote KV connectors",
    "disaggregation_mode": "prefill-decode disaggregation",
}
"""Key -> what it switches on."""


def refused(document: Document) -> list[Problem]:
    """A problem for each key of `NOT_MODELLED` anywhere in a scenario that is not switched off (1, false, null)."""
    problems: list[Problem] = []

    def walk(value: Any, path: Path_) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                if key in NOT_MODELLED:
                    at = document.problem(
                        (*path, key), f"not modelled: {NOT_MODELLED[key]}; remove the key", at_key=True
                    )
                    problems.append(at)
                else:
                    walk(child, (*path, key))
        elif isinstance(value, list):
            for i, child in enumerate(value):
                walk(child, (*path, i))

    walk(document.data, ())
    return problems
