"""The synthetic data sets of the engines' own benchmarks, under their option names."""

from __future__ import annotations

import numpy as np

from prefixsim.errors import ScenarioError
from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.generators import (
    MAX_REQUESTS,
    GeneratedSharedPrefixWorkload,
    PrefixRepetitionWorkload,
    SharedPrefixWorkload,
)
from prefixsim.workload.generators.build import Ids, Parts, independent, linked, pieces
from prefixsim.workload.generators.registry import GenerateContext, register
from prefixsim.workload.streams import sample_tokens, stream
from prefixsim.workload.table import I64, Workload


def _grouped(
    kind: str,
    group: I64,
    groups: int,
    prefix: int,
    suffix: int,
    output: int,
    arrivals: Arrivals,
    context: GenerateContext,
) -> Workload:
    n = group.shape[0]
    ids = Ids()
    heads = Parts(n)
    heads.add(ids.shared("prefix", groups) + group, prefix)
    heads.add(ids.fresh(n), suffix)
    outputs = np.full(n, output, dtype=np.int64)
    return independent(
        kind,
        arrivals,
        pieces(n, ids, heads, outputs),
        context,
        group=group,
        group_names=tuple(f"prefix-{k}" for k in range(groups)),
    )


def _rate(rate: float | None, burstiness: float = 1.0) -> Arrivals:
    if rate is None:
        return Arrivals(process="all_at_once")
    if burstiness == 1.0:
        return Arrivals(process="poisson", rate_per_s=rate)
    return Arrivals(process="gamma", rate_per_s=rate, shape=burstiness)


@register("prefix_repetition")
def prefix_repetition(spec: PrefixRepetitionWorkload, context: GenerateContext) -> Workload:
    """vLLM's: num_prompts // num_prefixes prompts of each prefix, shuffled."""
    each = spec.num_prompts // spec.prefix_repetition_num_prefixes
    if each == 0:
        raise ScenarioError(
            f"num_prompts ({spec.num_prompts}) is below prefix_repetition_num_prefixes ({spec.prefix_repetition_num_prefixes})"
        )
    group = np.repeat(np.arange(spec.prefix_repetition_num_prefixes, dtype=np.int64), each)
    if not spec.disable_shuffle:
        group = stream(context.seed, "shuffle").permutation(group)
    return _grouped(
        "prefix_repetition", group, spec.prefix_repetition_num_prefixes, spec.prefix_repetition_prefix_len,
        spec.prefix_repetition_suffix_len, spec.prefix_repetition_output_len, _rate(spec.request_rate, spec.burstiness), context,
    )  # fmt: skip


@register("generated-shared-prefix")
def generated_shared_prefix(spec: GeneratedSharedPrefixWorkload, context: GenerateContext) -> Workload:
    """SGLang's: groups x prompts, shuffled unless ordered."""
    n = spec.gsp_num_groups * spec.gsp_prompts_per_group
    if n > MAX_REQUESTS:
        raise ScenarioError(f"{n:,} requests asked for (at most {MAX_REQUESTS:,})")
    group = np.repeat(np.arange(spec.gsp_num_groups, dtype=np.int64), spec.gsp_prompts_per_group)
    if not spec.gsp_ordered:
        group = stream(context.seed, "shuffle").permutation(group)
    return _grouped(
        "generated-shared-prefix", group, spec.gsp_num_groups, spec.gsp_system_prompt_len, spec.gsp_question_len,
        spec.gsp_output_len, _rate(spec.request_rate), context,
    )  # fmt: skip


@register("shared_prefix")
def shared_prefix(spec: SharedPrefixWorkload, context: GenerateContext) -> Workload:
    """inference-perf's: every user of every system prompt, shuffled, round and round; with chat, users have a history."""
    users = spec.num_unique_system_prompts * spec.num_users_per_system_prompt
    n = spec.requests or users
    if max(n, users) > MAX_REQUESTS:
        raise ScenarioError(f"{max(n, users):,} requests asked for (at most {MAX_REQUESTS:,})")
    seed = context.seed
    order = stream(seed, "shuffle").permutation(users)
    user = order[np.arange(n) % users].astype(np.int64)
    group = user // spec.num_users_per_system_prompt
    names = tuple(f"prefix-{k}" for k in range(spec.num_unique_system_prompts))
    ids = Ids()
    questions = sample_tokens(spec.question_len, n, stream(seed, "question_len"))
    outputs = sample_tokens(spec.output_len, n, stream(seed, "output_len"))
    prompts = ids.shared("prefix", spec.num_unique_system_prompts) + group
    fresh = ids.fresh(n)
    if not spec.enable_multi_turn_chat:
        heads = Parts(n)
        heads.add(prompts, spec.system_prompt_len)
        heads.add(fresh, questions)
        made = pieces(n, ids, heads, outputs)
        return independent("shared_prefix", spec.arrivals, made, context, group=group, group_names=names)
    index = np.arange(n, dtype=np.int64)
    parent = np.where(index >= users, index - users, -1)
    heads, tails = Parts(n), Parts(n)
    heads.add(prompts, spec.system_prompt_len, parent < 0)
    tails.add(fresh, questions)
    made = pieces(n, ids, heads, outputs, parent=parent, tails=tails)
    session = np.unique(user, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return linked(
        "shared_prefix",
        spec.arrivals,
        made,
        session,
        parent,
        np.zeros(n, np.int64),
        context,
        group=group,
        group_names=names,
    )
