"""Replay of native rows on vLLM 0.33 with a sliding-window group, alone (`swa`) or beside full attention (`hybrid`).

Sequential mode runs compiled (groups_kernels.py), scheduler mode in plain Python (groups_scheduler.py); both are equal to
the real engine in every field of the golden cases. The rules are told in docs/vllm_groups.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prefixsim.engines.vllm import groups_kernels as kernels
from prefixsim.engines.vllm.groups_scheduler import SchedulerRules, replay_scheduler
from prefixsim.engines.vllm.groups_sequential import replay_sequential
from prefixsim.engines.vllm.groups_twin import MAX_MODEL_LEN, GroupRules
from prefixsim.errors import InputError, NotModelledError, Problem, TraceError, nearest
from prefixsim.workload.intern import ChainIndex, build_chains, build_trie
from prefixsim.workload.lines import TraceFile
from prefixsim.workload.table import I32, I64, Source, Workload, make_workload

LAYOUTS = ("swa", "hybrid")
MODES = ("sequential", "scheduler")
MAX_BLOCKS = 1 << 24
"""Pools above this many blocks are refused here: a replay lists its whole free queue."""

MAX_PROBLEMS = 20
_DENSE_BELOW = 1 << 24
_INT64, _MAX_STEP = 1 << 63, 1 << 53
_ROW_NEEDS = ("id", "tokens")
_ROW_KEYS: dict[str, Any] = {
    "id": (str, int),
    "tokens": list,
    "output_tokens": list,
    "step": int,
    "priority": int,
    "cache_salt": str,
    "lora": str,
    "skip_reading_prefix_cache": bool,
}
_WORDS: dict[Any, str] = {
    (str, int): "text",
    list: "a list of token ids",
    int: "a whole number",
    str: "text",
    bool: "true or false",
}
KEYS = [
    "mode",
    "block_size",
    "num_gpu_blocks",
    "layout",
    "sliding_window",
    "prefix_cache_retention_interval",
    "max_num_seqs",
    "max_num_batched_tokens",
    "async_scheduling",
    "watermark",
    "scheduler_reserve_full_isl",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "policy",
    "max_model_len",
    "max_steps",
]
DEFAULT_SEQS, DEFAULT_BUDGET = 256, 2048


@dataclass(slots=True)
class GroupState:
    """Arrays of one compiled replay; see groups_kernels.py for their layout."""

    chains: ChainIndex
    request: I64
    block: I32
    holder: I32
    table: I32
    held: I64
    judged: I64
    rule: I64
    count: I64
    chain: I64
    out: I64

    def run(self, first: int, last: int) -> None:
        """Replays requests first..last-1, each to its end."""
        c = self.chains
        kernels.replay_rows(  # type: ignore[no-untyped-call]
            first,
            last,
            c.run_offset,
            c.run_start,
            c.run_end,
            self.request,
            self.block,
            self.holder,
            self.table,
            self.held,
            self.judged,
            self.rule,
            self.count,
            self.chain,
            self.out,
        )

    def free_queue(self) -> I32:
        """Block ids in eviction order, int32 (free blocks,)."""
        queue = np.zeros(self.block.shape[1], dtype=np.int32)
        return queue[: kernels.list_free(self.block, queue)]  # type: ignore[no-untyped-call]


def new_state(workload: Workload, rules: GroupRules) -> GroupState:
    """An empty cache for a workload's rows, interned under vLLM's namespace rule (LoRA, cache salt)."""
    chains = build_chains(build_trie(workload, "vllm"), rules.block_size)
    groups, n = len(rules.groups), rules.num_gpu_blocks
    block = np.zeros((7, n), dtype=np.int32)
    ids = np.arange(n, dtype=np.int32)
    block[kernels.BLOCK_PREV] = (ids - 1) % n
    block[kernels.BLOCK_NEXT] = (ids + 1) % n
    block[kernels.BLOCK_CHAIN] = kernels.NIL
    tokens = workload.prompt_tokens + workload.output_tokens
    longest = int(tokens.max(initial=0)) // rules.block_size + 2
    rule = np.zeros(6, dtype=np.int64)
    rule[kernels.RULE_BLOCK_SIZE] = rules.block_size
    rule[kernels.RULE_GROUPS] = groups
    rule[kernels.RULE_WINDOW] = rules.sliding_window
    rule[kernels.RULE_RETENTION] = kernels.NIL if rules.retention is None else rules.retention
    rule[kernels.RULE_MAX_MODEL_LEN] = rules.max_model_len
    rule[kernels.RULE_ADMISSION_BLOCKS] = rules.window_admission_blocks
    return GroupState(
        chains=chains,
        request=np.ascontiguousarray(
            np.stack(
                [workload.prompt_tokens, workload.output_tokens, workload.skip_reading_prefix_cache.astype(np.int64)]
            )
        ),
        block=block,
        holder=np.zeros((2 * groups, chains.n_chains), dtype=np.int32),
        table=np.zeros((groups, longest), dtype=np.int32),
        held=np.zeros(groups, dtype=np.int64),
        judged=np.zeros(groups, dtype=np.int64),
        rule=rule,
        count=np.array([n - 1, 0], dtype=np.int64),
        chain=np.zeros(longest, dtype=np.int64),
        out=np.zeros((workload.n, 3), dtype=np.int64),
    )


def replay_groups(rows: list[dict[str, Any]], config: Mapping[str, Any], *, twin: bool = False) -> dict[str, Any]:
    """Replays native rows; returns a golden case's `expected` keys.

    config: mode, block_size, num_gpu_blocks (null block included), layout, sliding_window,
    prefix_cache_retention_interval (-1 or None: dense); scheduler mode also max_num_seqs (256), max_num_batched_tokens
    (2048), async_scheduling (true), watermark, scheduler_reserve_full_isl, enable_chunked_prefill,
    long_prefill_token_threshold, policy, max_model_len, max_steps. twin: use plain Python in sequential mode too.
    Raises InputError (bad option or row) and NotModelledError (layout or mode that is not modelled).
    """
    rules = group_rules(config)
    check_rows(rows)
    if config.get("mode", "sequential") == "scheduler":
        return replay_scheduler(rows, rules, scheduler_rules(config))
    if twin or not rows:
        return replay_sequential(rows, rules)
    state = new_state(table_of(rows), rules)
    state.run(0, len(rows))
    cached = state.block[kernels.BLOCK_CHAIN, state.free_queue()] != kernels.NIL
    admitted = state.out[:, kernels.OUT_REJECTED] == 0
    return {
        "evicted_blocks": int(state.count[kernels.COUNT_EVICTED]),
        "cached_tokens": int(state.out[admitted, kernels.OUT_CACHED].sum()),
        "final_free_queue_cached": np.where(cached, b"1", b"0").tobytes().decode(),
        "requests": [
            {
                "id": row["id"],
                "prompt_tokens": len(row["tokens"]),
                "cached_tokens": int(state.out[r, kernels.OUT_CACHED]),
                "rejected": not admitted[r],
            }
            for r, row in enumerate(rows)
        ],
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file as they are, for `replay_groups`. Raises TraceError with file and line."""
    file, rows, number = TraceFile(path), [], 0
    problems: list[Problem] = []
    for block in file.blocks():
        for line in block.splitlines():
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as fault:
                raise file.error(f"not JSON: {fault!s:.200}", number) from None
            if not isinstance(row, dict):
                raise file.error("a row is a JSON object", number)
            problems += [file.problem(said, number, key) for key, said in _faults(row)]
            if len(problems) >= MAX_PROBLEMS:
                raise TraceError(problems)
            rows.append(row)
    if problems:
        raise TraceError(problems)
    return rows


def check_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError with every row (20 at most) that is not a native token row."""
    problems: list[Problem] = []
    for number, row in enumerate(rows, 1):
        what = f"row {number}" + (f" (id {row['id']!r:.60})" if "id" in row else "")
        problems += [Problem(f"{what}: {said}", key=key) for key, said in _faults(row)]
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise InputError(problems)


def _faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of a row."""
    for key, wanted in _ROW_KEYS.items():
        value = row.get(key)
        if value is None and key not in _ROW_NEEDS:
            continue
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            found = "is missing" if value is None else f"found {str(value)[:40]!r}"
            yield key, f"{found}; expected {_WORDS[wanted]}"
        elif isinstance(value, list) and not all(type(token) is int and -_INT64 <= token < _INT64 for token in value):
            yield key, "holds something that is not a whole number of 64 bits"
        elif wanted is int and not (0 if key == "step" else -_MAX_STEP) <= value <= _MAX_STEP:
            yield (
                key,
                f"found {str(value)[:40]}; expected a whole number {'from 0 ' if key == 'step' else ''}up to 2^53",
            )
        elif key == "tokens" and not value:
            yield key, "is empty; a prompt has one token at least"


def table_of(rows: Sequence[Mapping[str, Any]]) -> Workload:
    """A workload table of native rows already checked; a missing or empty output counts as one token."""
    outputs = [row.get("output_tokens") or [0] for row in rows]
    prompts = [len(row["tokens"]) for row in rows]
    tokens = np.array(
        [t for row, out in zip(rows, outputs, strict=True) for t in (*row["tokens"], *out)], dtype=np.int64
    )
    if tokens.size and (tokens.min() < 0 or tokens.max() > _DENSE_BELOW):
        tokens = np.unique(tokens, return_inverse=True)[1]
    salts = {"": 0}
    loras = {"": 0}
    lengths = [p + len(out) for p, out in zip(prompts, outputs, strict=True)]
    return make_workload(
        source=Source(kind="native"),
        prompt_tokens=prompts,
        output_tokens=[len(out) for out in outputs],
        atom_offset=np.concatenate([[0], np.cumsum(lengths)]),
        prompt_atoms=prompts,
        atom_id=tokens,
        atom_tokens=None,
        skip_reading_prefix_cache=[bool(row.get("skip_reading_prefix_cache")) for row in rows],
        salt=[salts.setdefault(row.get("cache_salt") or "", len(salts)) for row in rows],
        lora=[loras.setdefault(row.get("lora") or "", len(loras)) for row in rows],
        salt_names=tuple(salts),
        lora_names=tuple(loras),
    )


def group_rules(config: Mapping[str, Any]) -> GroupRules:
    """Cache rules from replay options, checked. Raises InputError with every fault, NotModelledError."""
    layout, mode = config.get("layout"), config.get("mode", "sequential")
    if layout not in LAYOUTS:
        raise NotModelledError(
            f"layout {layout!r}: groups are modelled for swa (one sliding-window group) and hybrid (full attention and "
            "one sliding-window group) only; Mamba, chunked-local and cross-attention groups are not"
        )
    if mode not in MODES:
        raise NotModelledError(f"mode {mode!r} with layout {layout}{nearest(str(mode), MODES)}")
    for key in ("enable_prefix_caching", "split_free_queue"):
        if config.get(key) is False:
            raise NotModelledError(f"{key}: false with layout {layout}; groups are modelled as in vLLM 0.33, cache on")
    problems = [
        Problem(f"not an option of a vLLM replay with layout {layout}{nearest(str(key), KEYS)}", key=str(key))
        for key in config
        if key not in KEYS and key not in ("enable_prefix_caching", "split_free_queue")
    ]
    for key in ("async_scheduling", "scheduler_reserve_full_isl", "enable_chunked_prefill"):
        if not isinstance(config.get(key, True), bool):
            problems.append(Problem(f"found {config[key]!r}; expected true or false", key=key))
    block_size = _integer(config, "block_size", None, 1, 1 << 20, problems)
    blocks = _integer(config, "num_gpu_blocks", None, 2, MAX_BLOCKS, problems)
    window = _integer(config, "sliding_window", None, 1, 1 << 40, problems)
    retention: int | None = None
    if config.get("prefix_cache_retention_interval", 0) is not None:
        retention = _integer(config, "prefix_cache_retention_interval", 0, -1, 1 << 40, problems)
    if retention == -1:
        retention = None
    if retention and block_size and retention % block_size:
        near = retention // block_size * block_size
        problems.append(
            Problem(
                f"{retention} is not a multiple of block_size {block_size}, as vLLM demands (0: only replay boundaries "
                f"and junctions; -1: dense; nearest: {near or block_size})",
                key="prefix_cache_retention_interval",
            )
        )
    longest, in_flight, watermark_blocks = MAX_MODEL_LEN, None, 0
    if mode == "scheduler":
        budget = _integer(config, "max_num_batched_tokens", DEFAULT_BUDGET, 1, 1 << 40, problems)
        chunked = config.get("enable_chunked_prefill", True)
        longest = _integer(config, "max_model_len", MAX_MODEL_LEN if chunked else budget, 1, 1 << 40, problems)
        if not chunked:
            longest = min(longest, budget)
        in_flight = budget * (2 if config.get("async_scheduling", True) else 1)
        watermark = config.get("watermark", 0.0)
        if isinstance(watermark, bool) or not isinstance(watermark, int | float) or not 0 <= watermark < 1:
            problems.append(Problem(f"expected a number >= 0 and < 1, found {watermark!r}", key="watermark"))
        else:
            watermark_blocks = int(watermark * blocks)
    if problems:
        raise InputError(problems)
    return GroupRules(layout, block_size, blocks, window, retention, longest, in_flight, watermark_blocks)


def scheduler_rules(config: Mapping[str, Any]) -> SchedulerRules:
    """Scheduler options from replay options, checked. Raises InputError."""
    problems: list[Problem] = []
    policy = config.get("policy") or "fcfs"
    budget = _integer(config, "max_num_batched_tokens", DEFAULT_BUDGET, 1, 1 << 40, problems)
    if policy not in ("fcfs", "priority"):
        problems.append(Problem(f"found {policy!r}{nearest(str(policy), ('fcfs', 'priority'))}", key="policy"))
    rules = SchedulerRules(
        max_num_seqs=_integer(config, "max_num_seqs", min(DEFAULT_SEQS, budget), 1, 1 << 31, problems),
        max_num_batched_tokens=budget,
        async_scheduling=bool(config.get("async_scheduling", True)),
        scheduler_reserve_full_isl=bool(config.get("scheduler_reserve_full_isl", True)),
        enable_chunked_prefill=bool(config.get("enable_chunked_prefill", True)),
        long_prefill_token_threshold=_integer(config, "long_prefill_token_threshold", 0, 0, 1 << 40, problems),
        priority_policy=policy == "priority",
        max_steps=_integer(config, "max_steps", 1_000_000, 1, 1 << 40, problems),
    )
    if rules.max_num_batched_tokens < rules.max_num_seqs:
        problems.append(
            Problem(
                f"{rules.max_num_batched_tokens} is less than max_num_seqs {rules.max_num_seqs}; vLLM does not start so",
                key="max_num_batched_tokens",
            )
        )
    if problems:
        raise InputError(problems)
    return rules


def _integer(
    config: Mapping[str, Any], key: str, default: int | None, low: int, high: int, problems: list[Problem]
) -> int:
    """config[key] as an int in [low, high]; a fault is put into `problems` and `low` returned."""
    value: Sequence[Any] | Any = config.get(key, default)
    if value is None and default is not None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        what = "is missing" if value is None else f"found {value!r}"
        problems.append(Problem(f"{what}; expected a whole number from {low} to {high}", key=key))
        return low
    return value
