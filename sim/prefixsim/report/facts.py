"""What a finished run says, in words and rows: one source for the terminal, the HTML report and other renderings.

Everything here takes `summary`, the parsed `summary.json` of a run. A value that is absent, of the wrong type or not
finite is None here and is shown as absent; it is never replaced by a default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ABSENT = "-"
NOTE_LIMIT, NOTE_CHARS = 60, 1000


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """One part of the token ledger. label: a few words; lost: completes "loses 4.1 points to ..."; why: one sentence."""

    key: str
    label: str
    lost: str
    why: str


LEDGER_PARTS: tuple[LedgerPart, ...] = (
    LedgerPart("new", "never seen before", "new text", "No request that had come by then begins like this."),
    LedgerPart("namespace", "other namespace", "namespaces", "Known, but under another cache salt, LoRA or extra key."),
    LedgerPart("last_token", "last token", "the last token", "An engine must compute at least one token of a prompt."),
    LedgerPart(
        "granularity", "block rounding", "block rounding", "Known text that does not fill a whole block or page."
    ),
    LedgerPart("engine_rule", "engine rule", "engine rules", "KV the engine by rule does not keep or does not use."),
    LedgerPart(
        "in_flight", "not computed yet", "requests in flight", "Known from a request whose KV was not yet there."
    ),
    LedgerPart("routing", "other replica", "routing", "Cached, but on another replica than the one that served it."),
    LedgerPart("evicted", "evicted", "eviction", "Had been cached on this replica and was evicted before this lookup."),
    LedgerPart("bypass", "lookup skipped", "skipped lookups", "In the cache, but the request or an option skipped it."),
    LedgerPart("hit_device", "hit", "", "Served from the cache in GPU memory."),
    LedgerPart("hit_host", "hit, host tier", "", "Served from the host tier."),
)
LOSSES = tuple(part for part in LEDGER_PARTS if not part.key.startswith("hit"))
PART_BY_KEY = {part.key: part for part in LEDGER_PARTS}


def get(tree: Any, *keys: str) -> Any:
    """`tree[k0][k1]...`, None where a level is absent or no mapping."""
    for key in keys:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def number(tree: Any, *keys: str) -> float | None:
    """The finite number at `tree[k0][k1]...` (bool is not a number), else None."""
    value = get(tree, *keys)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond float
        return None


def engines_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Engine name -> its part of the summary, in the summary's order."""
    engines = get(summary, "engines")
    return {str(k): v for k, v in engines.items() if isinstance(v, Mapping)} if isinstance(engines, Mapping) else {}


def clean(text: object, limit: int = 200) -> str:
    """One line of printable text: control characters (terminal escapes too) are shown as \\xNN, the rest is cut at `limit`."""
    raw = str(text)
    out = "".join(c if c.isprintable() else " " if c in "\n\t\r" else f"\\x{ord(c):02x}" for c in raw[: limit + 1])
    return out if len(raw) <= limit else out[: max(limit - 3, 0)] + "..."


# ---- numbers for people ------------------------------------------------------------------------------------------


def percent(share: float | None, digits: int = 1) -> str:
    """0.581 -> "58.1 %"."""
    return ABSENT if share is None else f"{100 * share:.{digits}f} %"


def integer(value: float | None) -> str:
    """1234567 -> "1,234,567"; above 10^12 in short form."""
    if value is None:
        return ABSENT
    return f"{value:.4g}" if abs(value) >= 1e12 else f"{round(value):,}"


def seconds(value: float | None) -> str:
    """A duration in the unit a person would use: 0.0412 -> "41.2 ms", 3.5 -> "3.50 s", 4000 -> "66.7 min"."""
    if value is None:
        return ABSENT
    size = abs(value)
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1, 1e3, "ms"), (600, 1, "s"), (36_000, 1 / 60, "min")):
        if size < limit and not (size == 0 and unit == "us"):
            return f"{value * scale:#.3g}".rstrip(".") + f" {unit}" if size else "0 s"
    return f"{value / 3600:,.1f} h"


def rate(value: float | None) -> str:
    """Tokens a second."""
    return ABSENT if value is None else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def yes_no(value: object) -> str:
    """A boolean as a word."""
    return {True: "yes", False: "no"}.get(value, ABSENT) if isinstance(value, bool) else ABSENT


# ---- the comparison ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the comparison: label, unit-carrying key, and one text and one raw value an engine."""

    label: str
    key: str
    cells: tuple[str, ...]
    values: tuple[float | bool | None, ...]


def granularity_of(engine: Mapping[str, Any]) -> int | None:
    """Tokens in a block or page of this engine, where the summary says it."""
    replicas = engine.get("replicas")
    first = replicas[0] if isinstance(replicas, list) and replicas else None
    for tree in (engine, first):
        for key in ("granularity", "block_size", "page_size"):
            value = number(tree, key)
            if value is not None and value >= 1:
                return int(value)
    return None


def ceiling_of(summary: Mapping[str, Any], granularity: int | None = None) -> float | None:
    """The ceiling as a share: at one token (granularity None or 1), else at that block size."""
    if granularity is None or granularity == 1:
        value = number(summary, "ceiling", "token")
        return value if value is not None else number(summary, "ceiling", "1")
    return number(summary, "ceiling", str(granularity))


def comparison(summary: Mapping[str, Any]) -> list[Row]:
    """The rows that set the engines side by side. Rows absent from every engine are kept and show "-"."""
    engines = list(engines_of(summary).values())

    def row(label: str, key: str, show: Any, pick: Any) -> Row:
        values = tuple(pick(e) for e in engines)
        return Row(label, key, tuple(show(v) for v in values), values)

    def plain(label: str, key: str, show: Any, *path: str) -> Row:
        return row(label, key, show, lambda e: number(e, *(path or (key,))))

    rows = [
        plain("prompt tokens", "prompt_tokens", integer),
        plain("cached tokens", "cached_tokens", integer),
        plain("hit rate", "hit_rate", lambda v: percent(v, 2)),
        row("ceiling, any cache", "ceiling.token", lambda v: percent(v, 2), lambda e: ceiling_of(summary)),
    ]
    if any((granularity_of(e) or 1) > 1 for e in engines):
        own = [granularity_of(e) for e in engines]
        shares = [ceiling_of(summary, g) if g is not None else None for g in own]
        cells = tuple(
            ABSENT if s is None else percent(s, 2) + ("" if g == 1 else f" @{g}")
            for g, s in zip(own, shares, strict=True)
        )
        rows.append(Row("ceiling, own blocks", "ceiling.own", cells, tuple(shares)))
    rows += [
        row(
            "saturated", "saturated", yes_no, lambda e: e["saturated"] if isinstance(e.get("saturated"), bool) else None
        ),
        plain("TTFT p50", "ttft_s.p50", seconds, "ttft_s", "p50"),
        plain("TTFT p99", "ttft_s.p99", seconds, "ttft_s", "p99"),
        plain("ITL p50", "itl_s.p50", seconds, "itl_s", "p50"),
        plain("ITL p99", "itl_s.p99", seconds, "itl_s", "p99"),
        plain("output tokens/s", "output_tokens_per_s", rate),
        plain("peak KV use", "kv_usage_peak", percent),
        plain("evicted tokens", "evicted_tokens", integer),
        plain("preemptions", "preemptions", integer),
    ]
    if any(number(e, "rejected") for e in engines):
        rows.append(plain("rejected requests", "rejected", integer))
    return rows


def ledger(engine: Mapping[str, Any]) -> dict[str, float] | None:
    """The engine's ledger in tokens, all parts in order (absent parts are 0); None where it has none."""
    raw = engine.get("ledger")
    if not isinstance(raw, Mapping):
        return None
    parts = {part.key: number(raw, part.key) for part in LEDGER_PARTS}
    return None if all(v is None for v in parts.values()) else {k: v or 0 for k, v in parts.items()}


# ---- sentences ---------------------------------------------------------------------------------------------------


def sentences(value: Any) -> Iterator[str]:
    """Whatever a summary holds for notes (text, list, mapping) as lines of text."""
    if value is None or value == "" or value is False:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            for text in sentences(item):
                yield f"{clean(key, 60)}: {text}"
    elif isinstance(value, list | tuple):
        for item in value:
            yield from sentences(item)
    else:
        yield clean(value, NOTE_CHARS)


def always_said(note: str) -> bool:
    """Whether a note is shown even where notes are not asked for: what is saturated or wrong, or not in the numbers."""
    return "saturated" in note or "DEFECT" in note or note.startswith(("primed with", "warm-up ("))


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Everything a reader must know to judge the numbers: saturation, assumptions, validity, defects. No duplicates."""
    out: list[str] = []
    for name, engine in engines_of(summary).items():
        shown = clean(name, 40)
        if engine.get("saturated") is True:
            out += [f"{shown}: saturated: {text}" for text in sentences(engine.get("saturation_note"))]
        out += [f"{shown}: {text}" for text in sentences(engine.get("notes"))]
        parts, prompt = ledger(engine), number(engine, "prompt_tokens")
        if parts is not None and prompt is not None and sum(parts.values()) != prompt:
            total = integer(sum(parts.values()))
            out.append(f"{shown}: DEFECT: the ledger sums to {total}, not to the {integer(prompt)} prompt tokens.")
    out += sentences(get(summary, "workload", "notes"))
    for decision in get(summary, "workload", "decisions") or []:
        if isinstance(decision, Mapping):
            by = " (set by you)" if decision.get("overridden") is True else ""
            why = "; ".join(sentences(decision.get("evidence")))
            text = f"{clean(decision.get('name'), 60)} = {clean(decision.get('value'), 80)}{by}"
            out.append(text + (f": {why}" if why else ""))
    out += [f"validity: {text}" for text in sentences(get(summary, "hardware", "validity"))]
    out += sentences(summary.get("notes"))
    unique = list(dict.fromkeys(out))
    if len(unique) > NOTE_LIMIT:
        unique = [*unique[:NOTE_LIMIT], f"... and {len(unique) - NOTE_LIMIT} more notes in summary.json"]
    return unique


def value_of(summary: Mapping[str, Any], name: str) -> float | None:
    """A number of a summary by its dotted name, engines without their prefix; true is 1."""
    value = named(summary, name)
    return None if value is None else float(value)


def named(summary: Mapping[str, Any], name: str) -> float | bool | None:
    """As `value_of`, with true and false as they stand."""
    for root in (summary.get("engines", {}), summary):
        node: Any = root
        for part in name.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        value = node if isinstance(node, bool) else number({"": node}, "")
        if value is not None:
            return value
    return None
