"""Every bench in turn; writes bench/results.json and the table in docs/performance.md.

    make bench         ours alone
    make bench-peers   with the peers, see bench/README.md

Each bench_*.py prints its rows as JSON; one that fails is reported and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import ratio_text

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
MARKS = ("<!-- table: begin, written by bench/run.py -->", "<!-- table: end -->")


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import numba
    import numpy

    cpu = "unknown"
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": numpy.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def table(rows: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The rows as Markdown."""
    out = [
        f"Measured on {about['date']}: {about['cpu']}, {about['processors']} processors, Python {about['python']}, "
        f"Numba {about['numba']}. Medians of rounds in which all columns of a row were run in turn; kernels warm.",
        "",
        "| workload | work | median | spread | rate | against | target |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for r in rows:
        rate = f"{r['requests_per_s']:,}/s" if "requests_per_s" in r else ""
        ratio = ratio_text(r)
        target = f"{r['target']}: {'met' if r['met'] else '**missed**'}" if "target" in r else ""
        spread = f"{r['min_ms']:,.1f}-{r['max_ms']:,.1f}"
        out.append(
            f"| {r['workload']} | {r['work']} | {r['median_ms']:,.2f} ms | {spread} | {rate} | {ratio} | {target} |"
        )
    return "\n".join(out)


def main() -> None:
    """Runs, prints, writes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peers", action="store_true", help="fail where a peer's Python is not named")
    options.add_argument("--only", action="append", help="name of a bench file, e.g. bench_full; may be repeated")
    options.add_argument("--no-write", action="store_true", help="print only")
    args = options.parse_args()
    if args.peers and not os.environ.get("PREFIXSIM_BENCH_DYNOSIM"):
        sys.exit("PREFIXSIM_BENCH_DYNOSIM must name a Python with the peer: see bench/README.md")
    rows: list[dict[str, Any]] = []
    failed = []
    for file in sorted(HERE.glob("bench_*.py")):
        if args.only and file.stem not in args.only:
            continue
        print(f"{file.stem} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(file), "--json"], capture_output=True, text=True, check=False)
        try:
            found = json.loads(done.stdout.strip().splitlines()[-1])["rows"]
            rows += [{"bench": file.stem, **row} for row in found]
        except (ValueError, IndexError, KeyError):
            failed.append(file.stem)
            print(f"{file.stem} failed: {done.stderr.strip()[-400:]}", file=sys.stderr)
    about = machine()
    kept = HERE / "results.json"
    if args.only and kept.exists():  # rows of the others stay as they were measured last
        done_now = {r["bench"] for r in rows}
        rows += [r for r in json.loads(kept.read_text())["rows"] if r.get("bench") not in done_now]
        rows.sort(key=lambda r: str(r.get("bench")))
    text = table(rows, about)
    print(text)
    if not args.no_write:
        kept.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
        if PAGE.exists():
            page = PAGE.read_text()
            before, _, rest = page.partition(MARKS[0])
            _, _, after = rest.partition(MARKS[1])
            PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
