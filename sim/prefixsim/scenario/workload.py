"""The `workload:` section: a trace file, or a generator with its knobs.

Exactly one of `trace`, `generator` and `mix` says which model a section is; `WorkloadSpec` is their union.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from prefixsim.scenario.arrivals import Arrivals
from prefixsim.scenario.base import MOST, Strict
from prefixsim.scenario.distribution import Distribution, constant
from prefixsim.scenario.generators import (
    AgentsWorkload,
    FewShotWorkload,
    GeneratedSharedPrefixWorkload,
    PrefixRepetitionWorkload,
    RagWorkload,
    ReuseWorkload,
    ScanWorkload,
    SharedPrefixWorkload,
    TreeOfThoughtWorkload,
)

MAX_REQUESTS = 200_000_000


class Sharing(Strict):
    """What prompts of a lengths-only trace share: a model, since the file has no content. Results are marked synthetic.

    Example:
        workload: {trace: {path: lengths.csv, sharing: {families: 16, skew: 0.9, prefix_tokens: 512, continue_probability: 0.5}}}
    """

    families: int = Field(16, ge=1, le=1_000_000)
    """Number of shared prefixes (system prompts); requests are dealt to them by `skew`."""
    skew: float = Field(0.9, ge=0, le=10)
    """Family k (from 1) has weight 1 / k^skew; 0: all alike."""
    prefix_tokens: Distribution = constant(512)
    """Tokens of each family's prefix, drawn once a family; a prompt shorter than it shares all its tokens."""
    prefix_share: float | None = Field(None, ge=0, le=1)
    """Instead of `prefix_tokens`: this share of each prompt is its family's prefix."""
    continue_probability: float = Field(0.0, ge=0, le=1)
    """Chance that a request continues an earlier session of its family (a prompt at least as long is needed)."""
    open_sessions: int = Field(400, ge=1, le=1_000_000)
    """Sessions that may be continued: the latest so many."""


class Trace(Strict):
    """A trace file and how to read it. What is left out is decided by evidence over all rows and said in the output.

    Example:
        workload: {trace: {path: conversation_trace.jsonl, format: mooncake, time_scale: 10, spread_arrivals: uniform}}
    """

    path: str
    """File, or folder for formats of many files; .gz and .zst are decompressed. Relative to the scenario."""
    format: str | None = None
    """Name of a format (`prefixsim trace formats`); default: by evidence."""
    block_size: int | None = Field(None, ge=1, le=1 << 20)
    """Tokens of one content id; default: the format's own, checked against all rows."""
    tail: Literal["ceil", "floor"] | None = None
    """Whether the partial block at the end of a prompt has an id (ceil) or not (floor); default: by evidence."""
    id_scope: Literal["file", "conversation"] | None = None
    """Whether equal content ids mean equal content across the whole file or only within a conversation."""
    time_unit: Literal["ns", "us", "ms", "s"] | None = None
    """Unit of the file's times; default: the format's own."""
    time_scale: float = Field(1.0, gt=0, le=1e6)
    """Multiplies arrival times: 10 makes the trace ten times slower (a tenth of the load). Delays stay."""
    spread_arrivals: Literal["none", "uniform"] = "none"
    """uniform: requests with equal arrival stamps are spread at random (seeded) up to the next stamp, in file order."""
    max_requests: int | None = Field(None, ge=1, le=MOST)
    """Only the first so many requests (in arrival order)."""
    max_delay_s: float | None = Field(None, ge=0, le=9e9)
    """Cap on think times (`after` + `delay`), seconds."""
    on_bad_row: Literal["error", "skip"] = "error"
    """skip: leave out and count rows that break the format."""
    failed_rows: Literal["drop", "keep"] = "drop"
    """Rows of requests that failed on the server (no output); keep: with one output token."""
    turns: Literal["cumulative", "delta"] | None = None
    """Whether a later turn's lengths hold the whole conversation or only what is new; default: by format and evidence."""
    reuse_outputs: bool = True
    """False: outputs' content is treated as unknown (never reused by later prompts)."""
    strip_thinking: bool = False
    """Thinking parts of outputs are not sent back in later turns (text formats)."""
    share_system_blocks: bool = True
    """WEKA: conversations of one model with equal tool and system lengths share these first blocks; else nothing is shared."""
    sharing: Sharing | None = None
    """For lengths-only traces: what prompts share. Needed by caches' results to mean anything."""
    arrivals: Arrivals | None = None
    """For traces without times: when conversations start. Default: one a second, said in the output."""
    tokenizer: str = "builtin"
    """For text: `builtin` (words and punctuation: an approximation), `tiktoken:FILE`, `tokenizers:FILE`."""
    chat_template: str = "chatml"
    """For chat messages: chatml, llama-3, mistral, plain."""
    cache: bool = True
    """Keep the parsed trace in the user's cache folder."""


class TraceWorkload(Strict):
    """Replays a trace.

    Example:
        workload: {trace: {path: requests.jsonl, format: native}}
    """

    trace: Trace
    """The file and how it is read."""


class Segment(Strict):
    """A part of a prompt. Exactly one of `shared`, `per_tenant`, `unique` names it.

    Example:
        segments:
          - {shared: few-shot, tokens: 437, variants: 12, skew: 1.0}
          - {per_tenant: policy, tokens: 300}
          - {unique: clock, tokens: 8, every: request}
    """

    shared: str | None = None
    """Same content in every prompt, in all templates that use this name."""
    per_tenant: str | None = None
    """One content for each tenant."""
    unique: str | None = None
    """New content for every session."""
    tokens: Distribution
    """Length; for shared parts drawn once a variant, for unique ones each time."""
    variants: int = Field(1, ge=1, le=10_000_000)
    """Shared parts: number of versions; each session uses one."""
    skew: float = Field(0.0, ge=0, le=10)
    """Variant k (from 1) is used with weight 1 / k^skew."""
    every: Literal["session", "request"] = "session"
    """request: unique content changes (and a variant is drawn) at each turn, as a timestamp would."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [k for k in ("shared", "per_tenant", "unique") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of shared, per_tenant, unique names a segment")
        if self.variants > 1 and self.shared is None:
            raise ValueError("variants belong to shared segments")
        if self.tokens.constant is not None and round(self.tokens.constant) < 1:
            raise ValueError(
                f"a segment has at least one token, found tokens: {self.tokens.constant:g}; leave it out instead"
            )
        return self

    @property
    def name(self) -> str:
        """Its name."""
        return self.shared or self.per_tenant or self.unique or ""


class Template(Strict):
    """A kind of session: how its first prompt is built; the rest defaults to the workload's own settings.

    Example:
        templates:
          - {name: free, weight: 3, segments: [{shared: system, tokens: 800}, {unique: question, tokens: 60}]}
          - {name: tuned, lora: adapter-1, segments: [{shared: system, tokens: 800}, {unique: question, tokens: 60}]}
    """

    name: str
    """Group in results."""
    weight: float = Field(1.0, gt=0)
    """Share of sessions, relative to the other templates'."""
    segments: list[Segment] = Field(min_length=1, max_length=1000)
    """Parts of the first prompt, in order."""
    turns: Distribution | None = None
    """Turns of a session; default: the workload's."""
    turn_tokens: Distribution | None = None
    """Tokens a later turn adds; default: the workload's."""
    output_tokens: Distribution | None = None
    """Tokens generated; default: the workload's."""
    thinking_tokens: Distribution | None = None
    """Of these, thinking; default: the workload's."""
    think_time_s: Distribution | None = None
    """Pause before a later turn, seconds; default: the workload's."""
    cache_salt: str | None = None
    """Namespace; `per_tenant`: each tenant its own."""
    lora: str | None = None
    """LoRA adapter: a namespace of its own."""
    extra_key: str | None = None
    """SGLang's extra key: a namespace there, ignored by vLLM."""
    priority: int = Field(0, ge=-(1 << 53), le=1 << 53)
    """Of its requests, for `scheduling_policy: priority` (smaller first) and `radix_eviction_policy: priority`."""


class SessionKnobs(Strict):
    """What all session-like generators share."""

    arrivals: Arrivals
    """When sessions start."""
    requests: int = Field(ge=1, le=MAX_REQUESTS)
    """Number of requests, all turns counted."""
    turns: Distribution = constant(1)
    """Turns of a session."""
    turn_tokens: Distribution | None = None
    """Tokens a later turn adds (the user's next message); default: as the last unique segment."""
    output_tokens: Distribution = constant(128)
    """Tokens a turn generates, thinking included."""
    thinking_tokens: Distribution = constant(0)
    """Of these, thinking (at most all but one)."""
    strip_thinking: bool = False
    """Thinking is left out of later turns' prompts."""
    max_tokens: Distribution | None = None
    """The clients' `max_tokens` (at least the true length); default: the true length, marked as assumed."""
    think_time_s: Distribution = constant(0)
    """Pause between a turn's end and the next turn, seconds."""
    abandon_probability: float = Field(0.0, ge=0, le=1)
    """Chance after each turn that the user leaves."""
    fork_probability: float = Field(0.0, ge=0, le=1)
    """Chance that a session is a fork: it starts from a random turn of an earlier session of its template."""
    stop_probability: float = Field(0.0, ge=0, le=1)
    """Share of requests that end by EOS rather than by length."""
    max_prompt_tokens: int | None = Field(None, ge=1, le=MOST)
    """A session ends before its prompt would grow beyond this."""
    tenants: int = Field(1, ge=1, le=10_000_000)
    """Number of tenants; each session belongs to one."""
    tenant_skew: float = Field(0.0, ge=0, le=10)
    """Tenant k (from 1) has weight 1 / k^skew."""


class SessionsWorkload(SessionKnobs):
    """Templates of shared and unique segments, and multi-turn sessions that carry their history.

    Example:
        workload:
          generator: sessions
          arrivals: {process: poisson, rate_per_s: 4}
          requests: 2_000
          templates: [{name: support, segments: [{shared: system, tokens: 1234}, {unique: question, tokens: 80}]}]
          turns: {geometric: {mean: 4}}
    """

    generator: Literal["sessions"]
    templates: list[Template] = Field(min_length=1, max_length=10_000)
    """Kinds of sessions, drawn by weight."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [t.name for t in self.templates]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"two templates are called {sorted(twice)[0]!r}")
        return self


class Part(Strict):
    """A workload in a mix."""

    name: str = Field(min_length=1)
    """Its own random streams hang on the name; groups are called NAME/GROUP."""
    workload: WorkloadSpec
    """Any workload, with its own arrivals."""


class MixWorkload(Strict):
    """Several workloads on one server, in order of arrival. They share no content: adding one changes no other.

    Example:
        workload:
          mix:
            - {name: chat, workload: {generator: rag, arrivals: {process: poisson, rate_per_s: 2}, requests: 1_000}}
            - {name: nightly, workload: {generator: scan, arrivals: {process: all_at_once}, requests: 200}}
    """

    mix: list[Part] = Field(min_length=1, max_length=100)
    """The parts, merged in order of arrival."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [p.name for p in self.mix]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"two parts are called {sorted(twice)[0]!r}")
        return self


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        for key in ("trace", "mix"):
            if key in value:
                return key
        return str(value.get("generator", ""))
    for key, model in (("trace", TraceWorkload), ("mix", MixWorkload)):
        if isinstance(value, model):
            return key
    return str(getattr(value, "generator", ""))


GENERATORS = (
    "sessions", "few_shot", "rag", "agents", "tree_of_thought", "scan", "reuse", "prefix_repetition",
    "generated-shared-prefix", "shared_prefix",
)  # fmt: skip

WorkloadSpec = Annotated[
    Annotated[TraceWorkload, Tag("trace")]
    | Annotated[SessionsWorkload, Tag("sessions")]
    | Annotated[FewShotWorkload, Tag("few_shot")]
    | Annotated[RagWorkload, Tag("rag")]
    | Annotated[AgentsWorkload, Tag("agents")]
    | Annotated[TreeOfThoughtWorkload, Tag("tree_of_thought")]
    | Annotated[ScanWorkload, Tag("scan")]
    | Annotated[ReuseWorkload, Tag("reuse")]
    | Annotated[PrefixRepetitionWorkload, Tag("prefix_repetition")]
    | Annotated[GeneratedSharedPrefixWorkload, Tag("generated-shared-prefix")]
    | Annotated[SharedPrefixWorkload, Tag("shared_prefix")]
    | Annotated[MixWorkload, Tag("mix")],
    Discriminator(
        _kind,
        custom_error_type="workload_kind",
        custom_error_message="a workload has `trace: {path: ...}`, `mix: [...]`, or `generator:` with one of "
        + ", ".join(GENERATORS),
    ),
]
Part.model_rebuild()
MixWorkload.model_rebuild()
WORKLOAD: TypeAdapter[Any] = TypeAdapter(WorkloadSpec)
"""Validates a workload section by itself."""
