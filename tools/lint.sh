#!/usr/bin/env bash
# usage: tools/lint.sh [--fix]: format, import rules, Python and clang-tidy; --fix rewrites what can be
# rewritten. Expects .venv/bin in PATH and a configured build/ (make lint sees to both).
set -uo pipefail
cd "$(dirname "$0")/.."

code() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
sources=('*.h' '*.hpp' '*.c' '*.cpp' '*.cu' '*.cuh')

if [ "${1:-}" = --fix ]; then
  code "${sources[@]}" | xargs -0 -r clang-format -i
  ruff check --quiet --fix . ; ruff format --quiet .
  exit
fi

failed=0
code "${sources[@]}" | xargs -0 -r clang-format --dry-run -Werror ||
  { echo "clang-format: run make format"; failed=1; }
ruff check --quiet . || failed=1
ruff format --quiet --check . || { echo "ruff: run make format"; failed=1; }
python3 tools/lint.py || failed=1
python3 tools/tidy.py build "$(nproc)" || failed=1
exit $failed
