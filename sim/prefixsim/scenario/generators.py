"""Sections of the other generators: few-shot, RAG, agents, tree of thought, scans, requested reuse, and the knobs of the
engines' own benchmarks under their own names."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.base import MOST, Strict
from prefixsim.scenario.distribution import Distribution, Mean, Uniform, constant

MAX_REQUESTS = 200_000_000


class Load(Strict):
    """What generators of independent requests share."""

    arrivals: Arrivals
    """When requests (agents, tree of thought: sessions) start."""
    requests: int = Field(ge=1, le=MAX_REQUESTS)
    """Number of requests."""
    output_tokens: Distribution = constant(128)
    """Tokens generated."""


class FewShotWorkload(Load):
    """Instruction, then examples from a pool, then a question of its own.

    Example:
        workload: {generator: few_shot, arrivals: {process: poisson, rate_per_s: 5}, requests: 1_500, shots: 5, sets: 20}
    """

    generator: Literal["few_shot"]
    instruction_tokens: Distribution = constant(200)
    """The same instruction in every prompt."""
    examples: int = Field(100, ge=1, le=10_000_000)
    """Size of the pool."""
    example_tokens: Distribution = constant(37)
    """Length of an example, drawn once each."""
    shots: Distribution = constant(5)
    """Examples in a prompt."""
    sets: int | None = Field(None, ge=1, le=10_000_000)
    """Number of fixed sets of examples, one of which a prompt uses; default: examples are drawn for each prompt."""
    skew: float = Field(0.0, ge=0, le=10)
    """Set (or example) k from 1 has weight 1 / k^skew."""
    order: Literal["fixed", "shuffled"] = "fixed"
    """shuffled: the examples of a prompt stand in random order, so that prompts of one set share less."""
    question_tokens: Distribution = constant(60)
    """New in every prompt."""


class RagWorkload(Load):
    """System prompt, retrieved documents, question.

    Example:
        workload: {generator: rag, arrivals: {process: poisson, rate_per_s: 2}, requests: 1_000, documents: 2_000, order: fixed}
    """

    generator: Literal["rag"]
    system_tokens: Distribution = constant(300)
    """The same system prompt in every request."""
    documents: int = Field(10_000, ge=1, le=100_000_000)
    """Size of the collection."""
    document_tokens: Distribution = constant(500)
    """Length of a document, drawn once each."""
    documents_per_request: Distribution = constant(4)
    """Different documents in a prompt."""
    skew: float = Field(1.0, ge=0, le=10)
    """Popularity: document k from 1 has weight 1 / k^skew (Zipf)."""
    order: Literal["fixed", "shuffled"] = "shuffled"
    """fixed: by document number, as a canonical order would; shuffled: by relevance, different each time."""
    question_tokens: Distribution = constant(60)
    """New in every prompt."""


class AgentsWorkload(Load):
    """Agent loops: a shared system prompt with tools, a task, then steps of tool call and result; sub-agents with a prompt
    of their own, whose end the next step waits for.

    Example:
        workload: {generator: agents, arrivals: {process: poisson, rate_per_s: 0.5}, requests: 1_200, kinds: 3, tool_time_s: {exponential: {mean: 2}}}
    """

    generator: Literal["agents"]
    kinds: int = Field(1, ge=1, le=1_000_000)
    """Number of agents (system prompt and tools); sessions use them by `skew`."""
    skew: float = Field(0.0, ge=0, le=10)
    """Kind k from 1 has weight 1 / k^skew."""
    system_tokens: Distribution = constant(6000)
    """System prompt and tool definitions, drawn once a kind."""
    task_tokens: Distribution = constant(400)
    """The user's task, new in every session."""
    steps: Distribution = Distribution(geometric=Mean(mean=8.0))
    """Requests of a session."""
    result_tokens: Distribution = constant(600)
    """What a tool returns, added to the next prompt."""
    tool_time_s: Distribution = constant(1)
    """How long a tool takes."""
    sub_agent_probability: float = Field(0.0, ge=0, le=1)
    """Chance that a step starts a sub-agent instead of a tool."""
    sub_agent_system_tokens: Distribution = constant(2000)
    """Sub-agents' system prompt, one for all."""
    sub_agent_steps: Distribution = constant(3)
    """Requests of a sub-agent."""
    max_prompt_tokens: int | None = Field(None, ge=1, le=MOST)
    """A session ends before its prompt would grow beyond this."""


class TreeOfThoughtWorkload(Load):
    """Search over thoughts: at each level several thoughts are sampled for every kept node; the best go on.

    Example:
        workload: {generator: tree_of_thought, arrivals: {process: poisson, rate_per_s: 1}, requests: 1_500, depth: 3, branches: 5, keep: 2}
    """

    generator: Literal["tree_of_thought"]
    instruction_tokens: Distribution = constant(800)
    """The same instruction in every prompt."""
    problem_tokens: Distribution = constant(200)
    """New in every search."""
    depth: int = Field(3, ge=1, le=100)
    """Levels of the search."""
    branches: int = Field(5, ge=1, le=1000)
    """Thoughts sampled for a node (identical prompts)."""
    keep: int = Field(2, ge=1, le=1000)
    """Thoughts of a level that are expanded."""
    step_tokens: Distribution = constant(20)
    """Shared text between a thought and the next prompt."""
    evaluate: bool = True
    """Each thought is also scored by a request whose prompt holds it."""
    evaluation_tokens: Distribution = constant(5)
    """Output of a scoring request."""


class ScanWorkload(Load):
    """Traffic that reads much and returns late or never: batch jobs that pollute a cache.

    Example:
        workload: {generator: scan, arrivals: {process: poisson, rate_per_s: 4}, requests: 1_200, document_tokens: 3000}
    """

    generator: Literal["scan"]
    instruction_tokens: Distribution = constant(50)
    """The same instruction in every prompt."""
    documents: int = Field(0, ge=0, le=1_000_000_000)
    """Documents that are read one after another, round and round; 0: each is new."""
    document_tokens: Distribution = constant(4000)
    """Length of a document, drawn once each."""


class HitRateGoal(Strict):
    """A ceiling to reach: `share` of prompt tokens in full blocks of `granularity` tokens, infinite cache.

    Example:
        workload: {generator: reuse, arrivals: {process: poisson, rate_per_s: 5}, requests: 2_000, hit_rate: {share: 0.62, granularity: 16}}
    """

    share: float = Field(ge=0, lt=1)
    """Share of all prompt tokens."""
    granularity: int = Field(16, ge=1, le=1 << 20)
    """Tokens of a block."""


class ReuseWorkload(Strict):
    """Each prompt takes a prefix of an earlier request's sequence and goes on with content of its own: reuse by numbers.

    With `hit_rate` the shared parts are scaled until the ceiling is reached; `rows` (what `trace fit` writes) gives
    lengths, shared parts and distances together.

    Example:
        workload: {generator: reuse, arrivals: {process: poisson, rate_per_s: 5}, requests: 2_000, prompt_tokens: 2000, reuse_share: 0.7}
    """

    generator: Literal["reuse"]
    arrivals: Arrivals
    """When requests arrive."""
    requests: int = Field(ge=1, le=MAX_REQUESTS)
    """Number of requests."""
    prompt_tokens: Distribution = constant(1000)
    """Tokens of a prompt."""
    output_tokens: Distribution = constant(128)
    """Tokens generated."""
    reuse_share: float = Field(0.8, ge=0, le=1)
    """Share of requests that take over a prefix."""
    shared_share: Distribution = Distribution(uniform=Uniform(low=0.2, high=1.0))
    """Share of the prompt that is taken over."""
    back: Distribution = Distribution(exponential=Mean(mean=100.0))
    """How many requests ago the prefix was used."""
    hit_rate: HitRateGoal | None = None
    """A ceiling to reach instead of `reuse_share`."""
    rows: list[list[int]] | None = Field(None, min_length=1, max_length=50_000)
    """[prompt, output, shared, back] of sampled requests, instead of the distributions above."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for k, row in enumerate(self.rows or ()):
            if len(row) != 4 or row[0] < 1 or row[1] < 1 or not 0 <= row[2] <= row[0] or row[3] < 0 or max(row) > 10**9:
                raise ValueError(
                    f"rows[{k}]: expected [prompt >= 1, output >= 1, shared <= prompt, back >= 0], found {row}"
                )
        return self


class PrefixRepetitionWorkload(Strict):
    """vLLM's `bench serve --dataset-name prefix_repetition`, under its option names.

    Example:
        workload: {generator: prefix_repetition, num_prompts: 1000, prefix_repetition_prefix_len: 512, request_rate: 20}
    """

    generator: Literal["prefix_repetition"]
    num_prompts: int = Field(1000, ge=1, le=MAX_REQUESTS)
    """Number of requests."""
    prefix_repetition_prefix_len: int = Field(256, ge=1, le=10**9)
    """Tokens of a prefix."""
    prefix_repetition_suffix_len: int = Field(256, ge=1, le=10**9)
    """Tokens of a prompt behind its prefix, new each time."""
    prefix_repetition_num_prefixes: int = Field(10, ge=1, le=10**8)
    """Number of prefixes."""
    prefix_repetition_output_len: int = Field(128, ge=1, le=10**9)
    """Tokens generated."""
    request_rate: float | None = Field(None, gt=0, le=1e9)
    """Requests a second; default: all at once (vLLM's `inf`)."""
    burstiness: float = Field(1.0, gt=0, le=1e6)
    """Shape of gamma gaps; 1: Poisson."""
    disable_shuffle: bool = False
    """True: prefix after prefix."""


class GeneratedSharedPrefixWorkload(Strict):
    """SGLang's `bench_serving --dataset-name generated-shared-prefix`, under its option names.

    Example:
        workload: {generator: generated-shared-prefix, gsp_num_groups: 64, gsp_prompts_per_group: 16, request_rate: 20}
    """

    generator: Literal["generated-shared-prefix"]
    gsp_num_groups: int = Field(64, ge=1, le=10**8)
    """Number of system prompts."""
    gsp_prompts_per_group: int = Field(16, ge=1, le=10**8)
    """Requests of each."""
    gsp_system_prompt_len: int = Field(2048, ge=1, le=10**9)
    """Tokens of a system prompt."""
    gsp_question_len: int = Field(128, ge=1, le=10**9)
    """Tokens of a question, new each time."""
    gsp_output_len: int = Field(256, ge=1, le=10**9)
    """Tokens generated."""
    gsp_ordered: bool = False
    """True: group after group instead of shuffled."""
    request_rate: float | None = Field(None, gt=0, le=1e9)
    """Requests a second; default: all at once."""


class SharedPrefixWorkload(Strict):
    """inference-perf's `shared_prefix`, under its option names.

    Example:
        workload: {generator: shared_prefix, arrivals: {process: poisson, rate_per_s: 5}, system_prompt_len: 1000, enable_multi_turn_chat: true}
    """

    generator: Literal["shared_prefix"]
    arrivals: Arrivals
    """When requests arrive."""
    requests: int | None = Field(None, ge=1, le=MAX_REQUESTS)
    """Default: every user of every group once."""
    num_unique_system_prompts: int = Field(10, ge=1, le=10**7)
    """Number of groups."""
    num_users_per_system_prompt: int = Field(10, ge=1, le=10**7)
    """Users of each group."""
    system_prompt_len: int = Field(100, ge=1, le=10**9)
    """Tokens of a system prompt."""
    question_len: Distribution = constant(50)
    """Tokens of a question, new each time."""
    output_len: Distribution = constant(50)
    """Tokens generated."""
    enable_multi_turn_chat: bool = False
    """A user's later requests carry the conversation and wait for its last answer."""
