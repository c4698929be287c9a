"""A scenario's engines simulated at several cache sizes, to be drawn on the ideal curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixsim.analysis.inputs import Input
from prefixsim.errors import InputError
from prefixsim.pipeline.prepare import Prepared
from prefixsim.scenario.models import family, granularity_of, rule_of
from prefixsim.study.explain import Say, ideal, rerun


def simulated_points(loaded: Input, capacities_tokens: Sequence[int], say: Say | None = None) -> list[dict[str, Any]]:
    """Every engine of the scenario at each capacity (tokens a replica, rounded down to blocks). Of each run: hit tokens at
    first admission, and what an ideal LRU and the optimum serve on the run's own order of admissions.

    Raises InputError for a bare trace: an engine needs hardware or a clock.
    """
    if loaded.scenario is None:
        raise InputError("--simulate: a bare trace has no engines; give a scenario that reads it")
    prepared = Prepared(loaded.workload)
    out = []
    for options in loaded.scenario.engines:
        g = granularity_of(options)
        for tokens in capacities_tokens:
            if say is not None:
                say(f"{loaded.name}: {options.name} with {tokens:,} tokens")
            if family(options) == "vllm":  # its null block holds nothing
                settings = {f"engines.{options.name}.num_gpu_blocks_override": tokens // g + 1}
            else:
                settings = {f"engines.{options.name}.max_total_tokens": tokens}
            run = rerun(loaded, {**settings, "oversized": "reject"}, prepared, options.name)
            record, part = run.records[0], run.summary["engines"][options.name]
            capacity = sum(r.capacity_tokens for r in record.replicas)
            out.append(
                {
                    "engine": options.name,
                    "granularity": g,
                    "capacity_tokens": capacity,
                    "capacity_blocks": capacity // g,
                    "hit_tokens": part["cached_tokens"],
                    "prompt_tokens": part["prompt_tokens"],
                    "rejected": part["rejected"],
                    "same_order": ideal(run.workload, record, prepared.segments(rule_of(options)), rule_of(options), g),
                }
            )
    return out
