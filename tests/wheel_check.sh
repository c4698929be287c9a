#!/usr/bin/env bash
# Builds sdist and wheel, installs the wheel into a fresh virtual environment and runs the quickstart in an empty folder.
# Usage: wheel_check.sh BASE_PYTHON BUILD_PYTHON
set -euo pipefail
base=$1
build=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build" -m build -q --outdir "$work/dist" "$root" >/dev/null
"$base" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$root/requirements/dev.txt" "$work"/dist/*.whl
mkdir "$work/empty" && cd "$work/empty"
"$work/venv/bin/prefixsim" run quickstart --out "$work/empty/out" >"$work/table.txt"
test -s "$work/empty/out/summary.json" && test -s "$work/empty/out/report.html"
head -n 12 "$work/table.txt"
echo "wheel: quickstart ran in an empty folder"
