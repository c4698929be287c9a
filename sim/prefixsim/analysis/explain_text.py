"""The text of `prefixsim explain`, from its JSON form. Plain ASCII, at most 80 columns where names allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefixsim.analysis.ledger import PART_MEANINGS
from prefixsim.records import LEDGER_PARTS
from prefixsim.wrap import fitted, wrapped

SIDE_BY_SIDE = 2
"""Engines in one table of the ledger."""
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
    return fitted("\n".join(lines))


def percent(part: float, whole: float) -> str:
    """'12.34 %', or '-' of nothing."""
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _wrap(text: str, first: str = "  ", indent: str = "    ") -> str:
    return wrapped(text, first, indent)


def _ceilings(result: Mapping[str, Any]) -> list[str]:
    lines = ["Ceilings: what an infinite cache could serve, in order of arrival"]
    with_outputs, prompts = result["ceilings"]["with_outputs"], result["ceilings"]["prompts_only"]
    both = result["outputs_known"] > 0
    lines.append(
        f"  {'blocks of':>9}{'hit tokens':>16}{'share':>10}{'lost to blocks':>17}{'':>9}"
        + (f"{'prompts only':>15}" if both else "")
    )
    for key, row in with_outputs.items():
        prompt = row["prompt_tokens"]
        name = "1 token" if key == "token" else f"{int(key):,}"
        line = f"  {name:>9}{row['hit_tokens']:>16,}{percent(row['hit_tokens'], prompt):>10}"
        line += f"{row['lost_to_granularity']:>17,}{percent(row['lost_to_granularity'], prompt):>9}"
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
        head = f"  {'':<28}{'prompt tokens':>18}{'by token':>11}"
        lines += ["", f"Ceiling by {column}", head + (f"{f'blocks of {key}':>15}" if key != "token" else "")]
        shown = rows[:SHOWN_LABELS]
        for row in shown:
            name = "(others)" if row["name"] is None else str(row["name"])
            line = f"  {name[:28]:<28}{row['prompt_tokens']:>18,}{percent(row['token'], row['prompt_tokens']):>11}"
            if key != "token":
                line += f"{percent(row[key], row['prompt_tokens']):>15}"
            lines.append(line)
        if len(rows) > len(shown):
            lines.append(f"  ... and {len(rows) - len(shown):,} more (--json)")
    return lines


def _capacity(result: Mapping[str, Any]) -> list[str]:
    lines = ["", "Cache size that reaches a share of the ceiling"]
    known = [entry["90%"] for entry in result["capacity"]]
    gib, gpus = any("gib" in at for at in known), any("gpus" in at for at in known)
    head = f"  {'cache':<10}{'blocks of':>10}{'share':>8}{'tokens':>18}"
    lines.append(head + (f"{'GiB':>12}" if gib else "") + (f"{'GPUs':>7}" if gpus else ""))
    for entry in result["capacity"]:
        name = {"lru": "ideal LRU", "optimal": "optimum"}[entry["policy"]]
        for share in ("90%", "95%", "99%"):
            at = entry[share]
            line = f"  {name:<10}{entry['granularity']:>10,}{share:>8}{at['tokens']:>18,}"
            line += f"{at['gib']:>12,.1f}" if "gib" in at else ""
            lines.append(line + (f"{at['gpus']:>7,}" if "gpus" in at else ""))
    return lines


def _ledger(engines: Mapping[str, Any]) -> list[str]:
    names = list(engines)
    lines = ["Ledger: where every prompt token went, at first admission"]
    shown = [
        p for p in LEDGER_PARTS if p in ("new", "evicted", "hit_device") or any(engines[n]["ledger"][p] for n in names)
    ]
    for some in (names[i : i + SIDE_BY_SIDE] for i in range(0, len(names), SIDE_BY_SIDE)):
        lines.append("  " + " " * 14 + "".join(f"{n[:24]:>26}" for n in some))
        for part in shown:
            values = [(engines[n]["ledger"][part], engines[n]["prompt_tokens"]) for n in some]
            lines.append(f"  {part:<14}" + "".join(f"{v:>17,}{percent(v, prompt):>9}" for v, prompt in values))
        lines.append(f"  {'total':<14}" + "".join(f"{engines[n]['prompt_tokens']:>17,}{'':>9}" for n in some))
    lines += [f"    {part}: {PART_MEANINGS[part]}" for part in shown]
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
