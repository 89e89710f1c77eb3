#!/usr/bin/env bash
# usage: tools/build.sh PRESET [TARGET]...: configures (quietly) and builds one preset.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset "$preset" ${@:+--target "$@"}
