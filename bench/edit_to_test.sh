#!/usr/bin/env bash
# Prints the seconds from an edit of one op's source to the result of that op's check, in a tree that
# was built before. The edit is a time stamp: the compiler runs, the cache may not help.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${PESTLE_BUILD_DIR:-build}
source=$(find ops -name '*_cpu.cpp' | sort | head -n 1)
op=$(basename "$(dirname "$source")")
cmake --build "$build" --target pestle_cli >/dev/null
start=$(date +%s.%N)
touch "$source"
CCACHE_DISABLE=1 cmake --build "$build" --target pestle_cli >/dev/null
"$build/bin/pestle" check "$op" >/dev/null
end=$(date +%s.%N)
awk -v a="$start" -v b="$end" 'BEGIN { printf "%.2f\n", b - a }'
