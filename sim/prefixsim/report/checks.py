"""Results of `prefixsim check`: records that every renderer (terminal, JUnit, GitHub, Markdown, JSON) shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One comparison. metric: as written; kind: "expect" or "baseline"; ok; found: what was measured, as text; wanted: the
    condition, as text; line, column: 1-based place in the scenario file; values: for JSON (value, half_width, bounds)."""

    metric: str
    kind: str
    ok: bool
    found: str
    wanted: str
    line: int | None = None
    column: int | None = None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """ "vllm.hit_rate is 0.412, expected at least 0.55"."""
        return f"{self.metric} is {self.found}, expected {self.wanted}"


@dataclass(frozen=True, slots=True)
class FileResult:
    """One scenario file. error: why it could not be run (None: it ran); problems: (file, line, column, message) behind it.
    reasons: why values fell against the baseline; notes: other things to know. wall_s: seconds it took."""

    file: str
    scenario: str
    checks: tuple[CheckResult, ...] = ()
    error: str | None = None
    problems: tuple[tuple[str | None, int | None, int | None, str], ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        """It ran and every check held."""
        return self.error is None and all(c.ok for c in self.checks)


def counts(results: list[FileResult]) -> tuple[int, int, int]:
    """(checks that held, checks that failed, files that could not be run)."""
    checks = [c for r in results for c in r.checks]
    return sum(c.ok for c in checks), sum(not c.ok for c in checks), sum(r.error is not None for r in results)


def text(results: list[FileResult]) -> str:
    """The terminal form: a table, reasons under each file, one line at the end."""
    lines: list[str] = []
    for r in results:
        lines.append(f"{r.scenario} ({r.file})")
        if r.error is not None:
            lines += ["  ERROR  " + part for part in r.error.splitlines()]
        if r.checks:
            width = min(max(len(c.metric) for c in r.checks), 48)
            for c in r.checks:
                mark = "ok    " if c.ok else "FAILED"
                of = " (baseline)" if c.kind == "baseline" else ""
                lines.append(f"  {mark} {c.metric:<{width}}  {c.found}; expected {c.wanted}{of}")
        lines += [f"  why: {reason}" for reason in r.reasons]
        lines += [f"  note: {note}" for note in r.notes]
        if r.error is None and not r.checks:
            lines.append("  no expectations: nothing was checked")
    held, failed, broken = counts(results)
    tail = f"{held} held, {failed} failed" + (f", {broken} could not be run" if broken else "")
    return "\n".join([*lines, tail])


def as_dict(results: list[FileResult]) -> dict[str, Any]:
    """JSON form."""
    held, failed, broken = counts(results)
    return {
        "held": held,
        "failed": failed,
        "could_not_run": broken,
        "files": [
            {
                "file": r.file,
                "scenario": r.scenario,
                "ok": r.ok,
                "error": r.error,
                "checks": [
                    {
                        "metric": c.metric,
                        "kind": c.kind,
                        "ok": c.ok,
                        "found": c.found,
                        "expected": c.wanted,
                        "line": c.line,
                        "column": c.column,
                        **c.values,
                    }
                    for c in r.checks
                ],
                "reasons": list(r.reasons),
                "notes": list(r.notes),
                "wall_s": round(r.wall_s, 3),
            }
            for r in results
        ],
    }
