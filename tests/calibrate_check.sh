#!/usr/bin/env bash
# Calibration end to end on the CPU: torch in an environment of its own, a profile measured there, its held-out matmuls
# within 25 %, and the profile used. `make test` never installs torch.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install -q "${TORCH:-torch==2.13.0}" "$root[calibrate]"
cd "$work"
"$work/venv/bin/prefixsim" calibrate --device cpu --budget 90 --out hw_profiles --json > result.json
"$work/venv/bin/python" - <<'PY'
import json
from pathlib import Path

row = json.loads(Path("result.json").read_text())
gemm = row["held_out"]["gemm_bf16"]
print("sections:", ", ".join(row["sections_done"]), "| rows:", row["rows"], "| held-out matmuls:", gemm)
assert not list(Path("hw_profiles").rglob("*.unfinished.json")) and Path(row["profile"]).is_file() and Path(row["raw"]).is_file()
assert gemm["n"] >= 6, "too few matmuls were held out"
assert gemm["mape_pct"] < 25, "the CPU profile does not predict its own held-out matmuls within 25 %"
PY
"$work/venv/bin/prefixsim" step-time --gpu cpu --model llama-3.1-8b --decode 1x16 --json
"$work/venv/bin/prefixsim" hw show cpu > /dev/null
echo "calibration on the CPU: fine"
