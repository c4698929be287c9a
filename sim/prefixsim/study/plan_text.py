"""A plan's answers in words and as a table."""

from __future__ import annotations

from prefixsim.scenario.study import PlanSpec
from prefixsim.study.metrics import mean_interval
from prefixsim.study.plan import Answer


def conclusion(spec: PlanSpec, answers: list[Answer]) -> list[str]:
    """Sentences: the best answer, what caching saves, what more memory would give; or by how much the best one misses."""
    good = [a for a in answers if a.caching and a.value is not None]
    if not good:
        said = [f"No fleet in the grid meets the limits ({_limits(spec)})."]
        for a in answers:
            if a.caching:
                said.append(f"  {label(a)}: {a.error or a.miss or 'nothing passes'}")
        return said
    best = _best(spec, good)
    said = [f"{label(best)} {_value(spec, best)} under {_limits(spec)}."]
    if best.capped:
        said.append(f"This is the upper bound of the search ({spec.rate[1]:g}/s): the true limit is higher.")
    if best.short:
        said.append(f"Careful: {best.short}.")
    off = next((a for a in answers if not a.caching and a.engine == best.engine and a.shape == best.shape), None)
    if off is not None:
        said.append(_saving(spec, best, off))
    if best.usd_per_million_tokens is not None:
        said.append(
            f"At that point a million tokens (prompt and output) cost ${best.usd_per_million_tokens:.3f}; "
            f"the fleet costs ${best.usd_per_hour:.2f} an hour."
        )
    elif best.usd_per_hour is None:
        said.append("No price is known for this GPU: give `prices:` in the study to see costs.")
    for a in answers:
        if a.value is None and (a.caching or a is not off):
            said.append(
                f"{label(a)}{'' if a.caching else ' without caching'}: none passes ({a.error or a.miss or 'no reason known'})."
            )
    gradient = best.kv_gradient
    if gradient:
        said.append(
            f"One more GiB of KV cache a GPU changes the hit rate by {gradient.get('hit_rate', 0) * 100:+.3f} points "
            f"and p99 TTFT by {gradient.get('ttft_s.p99', 0) * 1000:+.1f} ms (one re-run, seed of the first repeat)."
        )
    return said


def table(spec: PlanSpec, answers: list[Answer]) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of all answers."""
    unit = "rate/s" if spec.find == "max_rate" else "replicas"
    keys = list(dict.fromkeys(k for a in answers for k in a.shape))
    header = [
        "engine",
        *(k.rsplit(".", 1)[-1] for k in keys),
        "caching",
        unit,
        "95 %",
        "hit rate",
        "p99 TTFT s",
        "$/h",
        "$/M tokens",
    ]
    rows = []
    for a in answers:
        found = [v for v in a.per_seed if v is not None]
        mean, half = mean_interval(found) if a.value is not None else (None, None)
        rows.append(
            [
                a.engine,
                *(str(a.shape.get(k, "")) for k in keys),
                "on" if a.caching else "off",
                ("error" if a.error else "none") if mean is None else f"{mean:.4g}{'+' if a.capped else ''}",
                "" if half is None or len(found) < 2 else f"± {half:.2g}",
                _number(a.at.get("hit_rate"), "{:.1%}"),
                _number(a.at.get("ttft_s.p99"), "{:.3f}"),
                _number(a.usd_per_hour, "{:.2f}"),
                _number(a.usd_per_million_tokens, "{:.3f}"),
            ]
        )
    return header, rows


def label(answer: Answer) -> str:
    """Engine and shape in a few words."""
    shape = ", ".join(f"{k.rsplit('.', 1)[-1]} {v}" for k, v in answer.shape.items())
    return f"{answer.engine}" + (f" ({shape})" if shape else "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _best(spec: PlanSpec, good: list[Answer]) -> Answer:
    if spec.find == "max_rate":
        return max(good, key=lambda a: a.value or 0.0)
    priced = [a for a in good if a.usd_per_hour is not None]
    if priced and len(priced) == len(good):
        return min(good, key=lambda a: (a.usd_per_hour or 0.0, a.value or 0.0))
    return min(good, key=lambda a: a.value or 0.0)


def _value(spec: PlanSpec, answer: Answer) -> str:
    found = [v for v in answer.per_seed if v is not None]
    mean, half = mean_interval(found)
    shown = f"{mean:.4g}" + (f" ± {half:.2g} (95 %, {len(found)} seeds)" if len(found) > 1 else " (one seed)")
    return f"sustains {shown} sessions/s" if spec.find == "max_rate" else f"needs {shown} replicas"


def _limits(spec: PlanSpec) -> str:
    parts = [
        f"{x.metric} {'<=' if x.at_most is not None else '>='} {x.at_most if x.at_most is not None else x.at_least:g}"
        for x in spec.limits
    ]
    return " and ".join([*parts, "no growing queue"])


def _saving(spec: PlanSpec, best: Answer, off: Answer) -> str:
    if off.value is None:
        return f"Without prefix caching no fleet in the bounds passes ({off.error or off.miss})."
    assert best.value is not None
    if spec.find == "max_rate":
        return f"Prefix caching multiplies the rate by {best.value / off.value:.2f} (without: {off.value:.4g}/s)."
    saved = 1.0 - best.value / off.value
    return f"Without prefix caching {off.value:.4g} replicas are needed: caching saves {saved:.0%} of the fleet."
