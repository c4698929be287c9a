"""Comparison with a baseline: which way is worse, how far is too far, and why a value fell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefixsim.report.checks import CheckResult
from prefixsim.scenario.expect import BaselineMetric, BaselinePoint, BaselineScenario

RATE_TOLERANCE = 0.002
"""Default for shares between 0 and 1: hit rates and ceilings."""
RELATIVE_TOLERANCE = 0.03
"""Default for everything else."""
_HIGHER = ("hit_rate", "cached_tokens", "finished")
_LOWER = ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "evicted_tokens", "preemptions", "rejected", "saturated", "recomputed_tokens")  # fmt: skip


def better(metric: str) -> int:
    """+1: higher is better, -1: lower is better, 0: any change counts."""
    parts = metric.split(".")
    if parts[0] == "ceiling" or any(p in _HIGHER or p.endswith("_per_s") for p in parts):
        return 1
    return -1 if any(p in _LOWER for p in parts) else 0


def default_tolerance(metric: str, value: float) -> float:
    """Absolute tolerance a new baseline entry gets; a person may change it in the file."""
    if metric.startswith("ceiling.") or metric.endswith("hit_rate"):
        return RATE_TOLERANCE
    return 0.0 if metric.endswith("saturated") else round(abs(value) * RELATIVE_TOLERANCE, 9)


def default_metrics(summary: Mapping[str, Any]) -> list[str]:
    """What a baseline keeps besides the metrics of `expect:`: token ceiling, each engine's own ceiling and hit rate."""
    out = ["ceiling.token"] if "token" in summary.get("ceiling", {}) else []
    for name, part in summary["engines"].items():
        if part.get("ledger") is not None:
            out.append(f"{name}.hit_rate")
    return out


def compare(metric: str, was: BaselineMetric, mean: float, half_width: float, *, boolean: bool = False) -> CheckResult:
    """Fails when the value is worse by more than the tolerance and both confidence intervals. boolean: 0 and 1 are spelt
    false and true."""
    room = was.tolerance + was.half_width + half_width
    change = mean - was.value
    side = better(metric)
    ok = abs(change) <= room + 1e-12 if side == 0 else change * side >= -room - 1e-12
    bound = {1: f"at least {number(was.value - was.tolerance)}", -1: f"at most {number(was.value + was.tolerance)}"}
    wanted = bound.get(side, f"{number(was.value)} +- {number(was.tolerance)}")
    before = number(was.value)
    if boolean and was.value in (0, 1):
        before = spelt(was.value)
        wanted = "true or false" if side == (-1 if was.value else 1) else before
    return CheckResult(
        metric=metric,
        kind="baseline",
        ok=ok,
        found=spelt(mean) if boolean and mean in (0, 1) else with_interval(mean, half_width),
        wanted=f"{wanted} (was {before})",
        values={"value": mean, "half_width": half_width, "baseline": was.value, "tolerance": was.tolerance},
    )


def number(value: float) -> str:
    """At most six significant digits, whole numbers in full."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def spelt(value: float) -> str:
    """ "true" or "false"."""
    return "true" if value else "false"


def with_interval(mean: float, half_width: float) -> str:
    """ "0.412 +- 0.003"."""
    return number(mean) + (f" +- {number(half_width)}" if half_width else "")


def reasons(
    was: BaselineScenario, summary: Mapping[str, Any], divergence: Sequence[Mapping[str, Any]], same_run: bool
) -> list[str]:
    """Why hits fell: new divergence points first, then what grew in each engine's ledger."""
    out = []
    prompt = max(int(summary["prompt_tokens"]), 1)
    for point in divergence:
        lost = int(point["lost_tokens"])
        if lost * 1000 < prompt or _known(point, was.divergence):
            continue
        names = [g["name"] for g in point["groups"] if g["name"] and g["lost_tokens"]]
        of = f"template `{'` and `'.join(names[:3])}`" if names else "prompts"
        out.append(
            f"{of} now differ{'s' if len(names) == 1 else ''} at token {point['depth_tokens']:,} "
            f"({point['differing']:,} requests with {point['branches']:,} different pieces of about "
            f"{point['piece_tokens']['median']:,} tokens; {point['kind_meaning']}): "
            f"{lost:,} tokens behind it are no longer shared"
        )
    for name, part in summary["engines"].items():
        now, before = part.get("ledger"), was.ledger.get(name)
        if not now or not before:
            continue
        out += _ledger_change(name, before, now)
    if not out and same_run:
        out.append("scenario, workload and profiles are the baseline's own: the program computes something else now")
    return out


def _known(point: Mapping[str, Any], old: Sequence[BaselinePoint]) -> bool:
    main = next((g["name"] for g in point["groups"] if g["name"]), None)
    return any(
        o.kind == point["kind"] and o.group == main and (o.depth_tokens == point["depth_tokens"] or o.lost_tokens * 2 > point["lost_tokens"])
        for o in old
    )  # fmt: skip


def _ledger_change(name: str, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """One sentence: the parts whose share of the prompt tokens grew by 0.1 points or more."""
    old_total, new_total = max(sum(before.values()), 1), max(sum(now.values()), 1)
    grew = []
    for part, tokens in now.items():
        if part.startswith("hit_"):
            continue
        points = 100 * (tokens / new_total - before.get(part, 0) / old_total)
        if points >= 0.1:
            grew.append((points, part, before.get(part, 0), tokens))
    if not grew:
        return []
    words = [
        f"`{p}` {old:,} -> {new:,} tokens (+{points:.1f} points)"
        for points, p, old, new in sorted(grew, reverse=True)[:3]
    ]
    return [f"ledger of {name}: " + ", ".join(words)]


def make_entry(
    summary: Mapping[str, Any],
    metrics: Mapping[str, tuple[float, float]],
    divergence: Sequence[Mapping[str, Any]],
    repeats: int,
    version: str,
    old: BaselineScenario | None,
) -> BaselineScenario:
    """A new baseline entry; tolerances a person has set in the old one are kept."""
    kept = {k: m.tolerance for k, m in old.metrics.items()} if old is not None else {}
    return BaselineScenario(
        run_id=summary["run_id"],
        prefixsim=version,
        repeats=repeats,
        prompt_tokens=summary["prompt_tokens"],
        metrics={
            name: BaselineMetric(value=mean, half_width=half, tolerance=kept.get(name, default_tolerance(name, mean)))
            for name, (mean, half) in metrics.items()
        },
        ledger={name: dict(part["ledger"]) for name, part in summary["engines"].items() if part.get("ledger")},
        divergence=[
            BaselinePoint(
                depth_tokens=p["depth_tokens"],
                group=next((g["name"] for g in p["groups"] if g["name"]), None),
                kind=p["kind"],
                lost_tokens=p["lost_tokens"],
            )
            for p in divergence
            if p["lost_tokens"]
        ],
    )
