#!/usr/bin/env bash
# What needs a real GPU: run it from a checkout on a machine that has one.
#
#   tests/gpu/check.sh [part …]      parts: fingerprint capture graph (default: all)
#   OUT=DIR                          where the results go (default: ./gpu-check)
#   PYTHON=FILE                      a Python with rip, torch with CUDA and, for capture and graph, Triton and numba
#
# It only reads: no setting of the GPU is changed. Exit code 0: every check held, 1: one did not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OUT=${OUT:-gpu-check}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
failed=0

say() { printf '%s\n' "$*" | tee -a "$OUT/summary.txt"; }

# Run a check; a failure is counted, and the others still run.
check() {
  local name=$1
  shift
  if "$@" >"$OUT/$name.log" 2>&1; then say "ok      $name"; else
    failed=1
    say "FAILED  $name: $(tail -n 1 "$OUT/$name.log")"
  fi
}

# A Python that can run rip from this checkout: $PYTHON, .venv, or a fresh environment that borrows the system's torch.
set_up() {
  if [[ -z ${PYTHON:-} && -x .venv/bin/python ]] && .venv/bin/python -c 'import sys' 2>/dev/null; then PYTHON=.venv/bin/python; fi
  if [[ -z ${PYTHON:-} ]]; then
    python3 -m venv --system-site-packages "$OUT/venv"
    PYTHON=$OUT/venv/bin/python
  fi
  if ! "$PYTHON" -c 'import rip' 2>/dev/null; then "$PYTHON" -m pip install --quiet --editable . >"$OUT/install.log" 2>&1; fi
}

rip() { "$PYTHON" -c 'from rip.cli import main; main()' "$@"; }

part_fingerprint() {
  check fingerprint-read rip fingerprint --force -o "$OUT/fingerprint.json"
  check fingerprint-again rip fingerprint --against "$OUT/fingerprint.json"
  check fingerprint-hidden rip fingerprint --hash-ids --force -o "$OUT/fingerprint-hidden.json"
  check fingerprint-truth "$PYTHON" tests/gpu/compare_fingerprint.py "$OUT"
  cat "$OUT/fingerprint-truth.log"
  # Seconds of three readings; the driver's own start is part of them.
  for _ in 1 2 3; do
    local begun=$EPOCHREALTIME
    rip fingerprint >/dev/null 2>&1
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f s\n", b - a }'
  done | tee "$OUT/fingerprint-seconds.txt"
}

# Runs one part of capture_check.py and shows what it measured.
capture_check() {
  check "capture-$1" timeout 300 env PYTHONUNBUFFERED=1 "$PYTHON" tests/gpu/capture_check.py "$1"
  cat "$OUT/capture-$1.log"
}

part_capture() {
  capture_check kernel
  capture_check speed
  capture_check decode
}

part_graph() {
  capture_check graph
  capture_check compiled
}

: >"$OUT/summary.txt"
set_up
if [[ $# -eq 0 ]]; then set -- fingerprint capture graph; fi
for part in "$@"; do "part_$part"; done
exit "$failed"
