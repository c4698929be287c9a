"""What is certain before any run: where no block of an engine can ever be hit, and what a trace's ids cannot show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prefixsim.analysis.segments import Segments, build_segments, inserted_tokens, shared_with_others
from prefixsim.workload.intern import NamespaceRule, build_trie
from prefixsim.workload.table import Workload


@dataclass(frozen=True, slots=True)
class SharedLengths:
    """Of a workload under one namespace rule, whatever the order: longest_prompt, and longest_shared: the longest prefix of
    a prompt that any other request has too (its outputs[:-1] included), in tokens."""

    longest_prompt: int
    longest_shared: int


def shared_lengths(
    workload: Workload, rule: NamespaceRule = "vllm", *, segments: Segments | None = None
) -> SharedLengths:
    """Longest prompt and longest shared prefix. Content must be known."""
    if segments is None:
        segments = build_segments(build_trie(workload, rule))
    prompt = workload.prompt_tokens
    shared = shared_with_others(segments, prompt, inserted_tokens(workload), np.arange(workload.n))
    return SharedLengths(int(prompt.max(initial=0)), int(shared.max(initial=0)))


def certain(lengths: SharedLengths, granularity: int, name: str = "") -> list[str]:
    """Sentences about an engine whose block (page) has `granularity` tokens; [] where nothing is certain. True for every
    order of arrival, pool size and policy."""
    who = f"{name}: " if name else ""
    usable = min(lengths.longest_shared, lengths.longest_prompt - 1)
    if lengths.longest_prompt <= granularity:
        return [
            f"{who}0 hits are certain: the longest prompt is {lengths.longest_prompt:,} tokens, a block is {granularity:,} and "
            "one token must always be computed"
        ]
    if usable < granularity:
        return [
            f"{who}0 hits are certain: the longest shared prefix is {lengths.longest_shared:,} tokens, "
            f"a block is {granularity:,}"
        ]
    return []


def certainties(
    workload: Workload,
    granularities: dict[str, int],
    rule: NamespaceRule = "vllm",
    *,
    segments: Segments | None = None,
) -> list[str]:
    """Sentences for engines (name -> tokens of a block), and for a trace whose ids are coarser than a block."""
    source = workload.source
    if not source.content_known:
        return []
    lengths = shared_lengths(workload, rule, segments=segments)
    out = [s for name, g in granularities.items() for s in certain(lengths, g, name)]
    if source.block_tokens > 1 and any(g < source.block_tokens for g in granularities.values()):
        out.append(
            f"the trace's content ids cover {source.block_tokens:,} tokens: sharing inside them is not visible, so hits of "
            "smaller blocks are a lower bound"
        )
    return out
