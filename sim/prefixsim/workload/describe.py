"""What is in a workload: counts, lengths, arrivals, sessions, working set; as plain data for terminal, JSON and HTML."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixsim.workload.intern import Trie, build_chains
from prefixsim.workload.table import Workload
from prefixsim.wrap import fitted

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def spread(values: Any) -> dict[str, float]:
    """Mean, standard deviation and quantiles."""
    v = np.asarray(values, dtype=np.float64)
    if v.shape[0] == 0:
        return {}
    names = ("min", "p5", "p25", "p50", "p75", "p95", "p99", "max")
    points = np.quantile(v, QUANTILES)
    return {"mean": float(v.mean()), "std": float(v.std())} | {n: float(q) for n, q in zip(names, points, strict=True)}


def arrivals(w: Workload) -> dict[str, Any]:
    """Requests that wait for nobody: span, rate, burstiness (coefficient of variation of gaps), stamps, busiest second."""
    times = np.sort(w.arrival_ns[w.after < 0])
    linked = int((w.after >= 0).sum())
    out: dict[str, Any] = {"timed": int(times.shape[0]), "awaiting_others": linked}
    if times.shape[0] < 2 or times[-1] == times[0]:
        return out | {"span_s": 0.0}
    gaps = np.diff(times)
    span = float(times[-1] - times[0]) / 1e9
    stamps, sizes = np.unique(times, return_counts=True)
    step = np.diff(stamps)
    out |= {
        "span_s": span,
        "rate_per_s": times.shape[0] / span,
        "gap_cv": float(gaps.std() / gaps.mean()),
        "distinct_stamps": int(stamps.shape[0]),
        "most_on_one_stamp": int(sizes.max()),
        "median_gap_between_stamps_s": float(np.median(step)) / 1e9,
        "busiest_second": int(np.unique((times - times[0]) // 1_000_000_000, return_counts=True)[1].max()),
    }
    quantised = times.shape[0] > 4 * stamps.shape[0] or (
        sizes.mean() > 2 and float(step.std()) < 0.1 * float(step.mean())
    )
    out["quantised"] = bool(quantised)
    return out


def sessions(w: Workload) -> dict[str, Any]:
    """Sessions, turns, think times."""
    known = w.session >= 0
    if not known.any():
        return {}
    turns = np.bincount(w.session[known])
    delay = w.delay_ns[w.after >= 0] / 1e9
    return {
        "sessions": int((turns > 0).sum()),
        "turns": spread(turns[turns > 0]),
        "think_time_s": spread(delay),
        "requests_without_session": int((~known).sum()),
    }


def working_set(w: Workload, trie: Trie) -> dict[str, Any]:
    """Distinct tokens (each distinct prefix position once) and what one distinct 16-token block is used."""
    chains = build_chains(trie, 16)
    return {
        "distinct_tokens": int(trie.element_tokens.astype(np.int64).sum()),
        "sequence_tokens": int((w.prompt_tokens + w.output_tokens).sum()),
        "distinct_blocks_of_16": chains.n_chains,
        "tree_elements": trie.n_elements,
    }


def groups(w: Workload) -> list[dict[str, Any]]:
    """Requests and prompt tokens of each group, largest first."""
    if not (w.group >= 0).any():
        return []
    count = np.bincount(w.group[w.group >= 0], minlength=len(w.group_names))
    tokens = np.bincount(w.group[w.group >= 0], weights=w.prompt_tokens[w.group >= 0], minlength=len(w.group_names))
    order = np.argsort(-tokens, kind="stable")
    return [
        {"group": w.group_names[g], "requests": int(count[g]), "prompt_tokens": int(tokens[g])} for g in order.tolist()
    ]


def missing(w: Workload) -> list[str]:
    """What the file does not say, in words."""
    out = []
    known = np.diff(w.atom_offset) > w.prompt_atoms
    if not w.source.content_known:
        out.append("contents: which prompts share prefixes is unknown (give `sharing:` for a model of it)")
    elif not known.all():
        out.append(f"content of {int((~known).sum()):,} of {w.n:,} outputs: later prompts cannot reuse them")
    if w.max_tokens_assumed:
        out.append("max_tokens of requests: the true output length is taken")
    if not (w.session >= 0).any():
        out.append("sessions")
    if not (w.after >= 0).any():
        out.append("which requests wait for others: arrivals are fixed, a slow server does not delay later turns")
    if not w.stop.any():
        out.append("whether outputs ended by EOS or by length: by length is taken")
    return out


def describe(w: Workload, trie: Trie | None) -> dict[str, Any]:
    """Everything above; `trie` None for traces without content."""
    s = w.source
    out: dict[str, Any] = {
        "kind": s.kind,
        "path": s.path,
        "sha256": s.sha256,
        "content_known": s.content_known,
        "synthetic": s.synthetic,
        "block_tokens": s.block_tokens,
        "decisions": [
            {"name": d.name, "value": d.value, "evidence": d.evidence, "given": d.overridden} for d in s.decisions
        ],
        "counts": dict(sorted(s.counts.items())),
        "notes": list(s.notes),
        "requests": w.n,
        "prompt_tokens": int(w.prompt_tokens.sum()),
        "output_tokens": int(w.output_tokens.sum()),
        "prompt_length": spread(w.prompt_tokens),
        "output_length": spread(w.output_tokens),
        "arrivals": arrivals(w),
        "sessions": sessions(w),
        "groups": groups(w),
        "namespaces": {
            "cache_salt": len(w.salt_names) - 1,
            "lora": len(w.lora_names) - 1,
            "extra_key": len(w.extra_key_names) - 1,
        },
        "missing": missing(w),
    }
    if trie is not None:
        out["working_set"] = working_set(w, trie)
    if w.reported_cached_tokens is not None:
        stated = w.reported_cached_tokens >= 0
        out["reported_cached_tokens"] = {
            "requests": int(stated.sum()),
            "cached_tokens": int(w.reported_cached_tokens[stated].sum()),
            "prompt_tokens": int(w.prompt_tokens[stated].sum()),
        }
    return out


def describe_text(d: dict[str, Any]) -> str:
    """The description as lines for a terminal."""
    lines = [f"{d['path'] or d['kind']}: {d['kind']}, {d['requests']:,} requests"]
    if d["synthetic"]:
        lines.append("  SYNTHETIC: contents or arrivals come from a model, not from the file")
    lines.append("decided")
    for c in d["decisions"]:
        lines.append(f"  {c['name']:<20} {c['value']}{' (given)' if c['given'] else ''}: {c['evidence']}")
    lines.append("tokens")
    lines.append(f"  prompt {d['prompt_tokens']:,}, output {d['output_tokens']:,}")
    lines.append(f"  {'':<8} {'mean':>10} {'p5':>8} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>9}")
    for name in ("prompt", "output"):
        q = d[f"{name}_length"]
        row = " ".join(f"{q[k]:>{n},.0f}" for k, n in (("p5", 8), ("p50", 8), ("p95", 8), ("p99", 8), ("max", 9)))
        lines.append(f"  {name:<8} {q['mean']:>10,.1f} {row}")
    a = d["arrivals"]
    lines.append("arrivals")
    if a.get("span_s"):
        lines.append(
            f"  {a['timed']:,} timed over {a['span_s']:,.1f} s, {a['rate_per_s']:.3g}/s, gaps vary by {a['gap_cv']:.2f} "
            f"(Poisson: 1), busiest second {a['busiest_second']:,}"
        )
        if a["quantised"]:
            lines.append(
                f"  quantised: {a['distinct_stamps']:,} distinct stamps, {a['median_gap_between_stamps_s']:g} s apart, up to "
                f"{a['most_on_one_stamp']:,} on one; `spread_arrivals: uniform` spreads them"
            )
    else:
        lines.append(f"  {a['timed']:,} at one moment")
    if a["awaiting_others"]:
        lines.append(f"  {a['awaiting_others']:,} wait for another request to finish")
    if s := d["sessions"]:
        t = s["turns"]
        lines.append("sessions")
        lines.append(f"  {s['sessions']:,}, turns mean {t['mean']:.2f}, p50 {t['p50']:.0f}, max {t['max']:.0f}")
        if s["think_time_s"]:
            q = s["think_time_s"]
            lines.append(f"  pauses mean {q['mean']:.2f} s, p50 {q['p50']:.2f} s, max {q['max']:,.1f} s")
    if d["groups"]:
        lines.append("groups")
        for g in d["groups"][:10]:
            lines.append(
                f"  {g['group'] or '(none)':<26.26} {g['requests']:>10,} requests {g['prompt_tokens']:>15,} prompt tokens"
            )
        if len(d["groups"]) > 10:
            lines.append(f"  ... and {len(d['groups']) - 10:,} more")
    lines += _shared_text(d)
    lines.append("counted: " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in d["counts"].items() if v))
    for note in d["notes"]:
        lines.append(f"note: {note}")
    for what in d["missing"]:
        lines.append(f"not in the file: {what}")
    return fitted("\n".join(lines))


def _shared_text(d: dict[str, Any]) -> list[str]:
    lines = []
    if "ceilings" in d:
        lines.append("ceilings (infinite cache, order of arrival, prompt tokens)")
        for g, c in d["ceilings"].items():
            label = "token" if g == "token" else f"blocks of {g}"
            lines.append(f"  {label:<16} {c['hit_tokens']:>16,} of {c['prompt_tokens']:,} = {c['share']:.2%}")
    elif not d["content_known"]:
        lines.append("ceilings: unknown, not 0: the trace has lengths only")
    if "working_set" in d:
        s = d["working_set"]
        lines.append(
            f"working set: {s['distinct_tokens']:,} distinct of {s['sequence_tokens']:,} tokens (prompts and outputs)"
        )
    if "reported_cached_tokens" in d:
        r = d["reported_cached_tokens"]
        lines.append(f"reported by the server: {r['cached_tokens']:,} cached of {r['prompt_tokens']:,} prompt tokens")
    return lines
