"""The text of `prefixsim explain`, from its JSON form. Plain ASCII, at most 100 columns where names allow."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from prefixsim.analysis.ledger import PART_MEANINGS
from prefixsim.records import LEDGER_PARTS

WIDTH = 100
SHOWN_LABELS = 12
WORTH = 2_000
"""Points that lose less than 1 / WORTH of the prompt tokens are not pointed at."""


def explain_text(result: Mapping[str, Any]) -> str:
    """Everything a person should read, most important first."""
    lines = [
        f"{result['name']}: {result['requests']:,} requests, {result['prompt_tokens']:,} prompt tokens"
        + (" (what requests share is synthetic)" if result["synthetic"] else "")
    ]
    lines += [_wrap(s, "! ") for s in result["certainties"]]
    lines += ["", *_ceilings(result), *_labels(result), *_capacity(result)]
    engines = result.get("engines")
    if engines:
        lines += ["", *_ledger(engines)]
    lines += ["", *_divergence(result["divergence"], result["prompt_tokens"]), "", *_advice(result)]
    return "\n".join(lines)


def percent(part: float, whole: float) -> str:
    """'12.34 %', or '-' of nothing."""
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _wrap(text: str, first: str = "  ", indent: str = "    ") -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False))


def _ceilings(result: Mapping[str, Any]) -> list[str]:
    lines = ["Ceilings: what an infinite cache could serve, in order of arrival"]
    with_outputs, prompts = result["ceilings"]["with_outputs"], result["ceilings"]["prompts_only"]
    both = result["outputs_known"] > 0
    lines.append(
        f"  {'blocks of':>12}{'hit tokens':>18}{'share':>10}{'lost to blocks':>18}{'':>10}"
        + ("   prompts only" if both else "")
    )
    for key, row in with_outputs.items():
        prompt = row["prompt_tokens"]
        name = "1 token" if key == "token" else f"{int(key):,}"
        line = f"  {name:>12}{row['hit_tokens']:>18,}{percent(row['hit_tokens'], prompt):>10}"
        line += f"{row['lost_to_granularity']:>18,}{percent(row['lost_to_granularity'], prompt):>10}"
        if both:
            line += f"{percent(prompts[key]['hit_tokens'], prompt):>15}"
        lines.append(line)
    if both:
        lines.append(
            f"  (output contents are known for {result['outputs_known']:,} requests; the last output token has no KV)"
        )
    else:
        lines.append("  (output contents are not known: what a later prompt repeats of them counts as new)")
    return lines


def _labels(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for column, rows in result["by"].items():
        if column == "session" or (len(rows) < 2 and rows and rows[0]["name"] in (None, "")):
            continue
        key = next(k for k in rows[0] if k not in ("name", "prompt_tokens", "token")) if len(rows[0]) > 3 else "token"
        lines += ["", f"Ceiling by {column}"]
        shown = rows[:SHOWN_LABELS]
        for row in shown:
            name = "(others)" if row["name"] is None else str(row["name"])
            line = f"  {name[:28]:<28}{row['prompt_tokens']:>18,}{percent(row['token'], row['prompt_tokens']):>10} by token"
            if key != "token":
                line += f"{percent(row[key], row['prompt_tokens']):>10} in blocks of {key}"
            lines.append(line)
        if len(rows) > len(shown):
            lines.append(f"  ... and {len(rows) - len(shown):,} more (--json)")
    return lines


def _capacity(result: Mapping[str, Any]) -> list[str]:
    lines = ["", "Cache size that reaches a share of the ceiling (tokens)"]
    for entry in result["capacity"]:
        cells = []
        for share in ("90%", "95%", "99%"):
            at = entry[share]
            text = f"{share}: {at['tokens']:,}"
            if "gib" in at:
                text += f" ({at['gib']:,.1f} GiB" + (f", {at['gpus']} GPU)" if "gpus" in at else ")")
            cells.append(text)
        name = {"lru": "ideal LRU", "optimal": "optimum"}[entry["policy"]]
        lines.append(f"  {name:<10} blocks of {entry['granularity']:<5}" + "   ".join(cells))
    return lines


def _ledger(engines: Mapping[str, Any]) -> list[str]:
    names = list(engines)
    lines = ["Ledger: where every prompt token went, at first admission"]
    lines.append("  " + " " * 14 + "".join(f"{n[:22]:>24}" for n in names))
    for part in LEDGER_PARTS:
        values = [engines[n]["ledger"][part] for n in names]
        if not any(values) and part not in ("new", "evicted", "hit_device"):
            continue
        cells = "".join(
            f"{v:>15,}{percent(v, engines[n]['prompt_tokens']):>9}" for v, n in zip(values, names, strict=True)
        )
        lines.append(f"  {part:<14}{cells}   {PART_MEANINGS[part]}")
    lines.append(f"  {'total':<14}" + "".join(f"{engines[n]['prompt_tokens']:>15,}{'':>9}" for n in names))
    for n in names:
        e = engines[n]
        ideal = e["same_order"]
        lines.append(
            _wrap(
                f"{n}: hit rate {percent(e['cached_tokens'], e['prompt_tokens'])}; on its own order of admissions and with its "
                f"{e['capacity_tokens']:,} tokens an ideal LRU reaches {percent(ideal['lru_tokens'], e['prompt_tokens'])}, "
                f"the optimum {percent(ideal['optimal_tokens'], e['prompt_tokens'])}, an infinite cache "
                f"{percent(ideal['infinite_tokens'], e['prompt_tokens'])}"
            )
        )
        lines += _worst_groups(n, e)
    return lines


def _worst_groups(name: str, engine: Mapping[str, Any]) -> list[str]:
    rows = [r for r in engine["ledger_by"].get("group", []) if r["name"] is not None]
    if len(rows) < 2:
        return []
    lines = []
    for row in rows[:SHOWN_LABELS]:
        prompt = sum(row[p] for p in LEDGER_PARTS)
        hit = row["hit_device"] + row["hit_host"]
        lost = sorted(((row[p], p) for p in LEDGER_PARTS[1:9] if row[p]), reverse=True)[:2]
        words = ", ".join(f"{p} {percent(v, prompt)}" for v, p in lost) or "nothing lost"
        lines.append(
            f"    {str(row['name'])[:24]:<24} hit {percent(hit, prompt):>8}, new {percent(row['new'], prompt):>8}; {words}"
        )
    return lines


def _divergence(points: Sequence[Mapping[str, Any]], prompt: int) -> list[str]:
    lines = ["Divergence points: where traffic splits, and what is lost behind"]
    if not points:
        return [*lines, "  none: no two requests share a beginning and then part"]
    lossy = [p for p in points if p["lost_tokens"] * WORTH > prompt]
    for p in [*lossy, *[q for q in points if q not in lossy][: max(0, 3 - len(lossy))]]:
        lines.append(_wrap(p["sentence"], "  - "))
        if p["examples"] and p in lossy:
            shown = "; ".join(" ".join(str(i) for i in e) for e in p["examples"])
            lines.append(_wrap(f"differing pieces, as content ids: {shown}", "      ", "      "))
    if not lossy:
        lines.append(
            "  Next to nothing that follows a split is shared again: moving or reordering parts would gain nothing."
        )
    return lines


def _advice(result: Mapping[str, Any]) -> list[str]:
    lines = ["Advice, each tried"]
    if not result["advice"]:
        lines.append("  none: no edit that was tried saves 0.1 % of the prompt tokens")
    for a in result["advice"]:
        lines.append(_wrap(a["text"], "  - "))
        ideal = a.get("infinite_cache")
        if ideal:
            lines.append(
                f"      infinite cache, blocks of {a['granularity']}: hit tokens {ideal['hit_tokens_before']:,} -> "
                f"{ideal['hit_tokens_after']:,}; {_saved(ideal['saved_tokens'])}"
            )
        for name, g in a.get("engines", {}).items():
            lines.append(
                f"      {name}: hit rate {_rate(g['hit_rate_before'])} -> {_rate(g['hit_rate_after'])}; "
                f"{_saved(g['saved_tokens'])}"
            )
    for a in result.get("tried_without_gain", []):
        lines.append(_wrap(f"tried without gain: {a['text']}", "  - "))
    return lines


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _saved(tokens: int) -> str:
    return f"{abs(tokens):,} prompt tokens {'less' if tokens >= 0 else 'more'} to compute"
