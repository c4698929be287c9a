"""Several workloads on one server."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from prefixsim.scenario.workload import MixWorkload
from prefixsim.workload.edit import concatenate, order_quietly
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.table import Workload


@register("mix")
def mix(spec: MixWorkload, context: GenerateContext) -> Workload:
    """Generates a `mix` section: each part with a seed that follows from its name, in order of arrival."""
    from prefixsim.workload.load import load_workload

    parts = []
    for part in spec.mix:
        sequence = np.random.SeedSequence(
            context.seed & (1 << 64) - 1, spawn_key=(zlib.crc32(f"mix/{part.name}".encode()),)
        )
        seed = int(sequence.generate_state(2, np.uint32)[0]) << 31 | int(sequence.generate_state(2, np.uint32)[1]) >> 1
        w = load_workload(part.workload, base_dir=context.base_dir, seed=seed)
        names = tuple(f"{part.name}/{g}" for g in w.group_names)
        group = w.group
        if bool((group < 0).any()):
            group = np.where(group < 0, len(names), group).astype(np.int32)
            names = (*names, part.name)
        parts.append(replace(w, group=group, group_names=names))
    return order_quietly(concatenate(parts, "mix"))
