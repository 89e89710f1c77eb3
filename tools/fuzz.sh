#!/usr/bin/env bash
# usage: tools/fuzz.sh SECONDS [TARGET]...: runs each libFuzzer target of build/fuzz over its corpus.
# New inputs go to build/fuzz/corpus; a crash leaves its input there and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
[ $# -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do set -- "$@" "$(basename "$source" .cpp)"; done
for name in "$@"; do
  mkdir -p "build/fuzz/corpus/$name"
  echo "== $name, $seconds s"
  "build/fuzz/bin/$name" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=4096 \
    -artifact_prefix="build/fuzz/corpus/$name." "build/fuzz/corpus/$name" \
    "tests/fuzz/corpus/$name" 2>&1 | grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse)'
done
