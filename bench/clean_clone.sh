#!/usr/bin/env bash
# Prints the seconds from a clean clone of the last commit to green tests.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
start=$(date +%s.%N)
git clone -q . "$folder/pestle"
# An empty compiler cache, as on a new machine.
CCACHE_DIR=$folder/ccache make -C "$folder/pestle" test >&2
end=$(date +%s.%N)
awk -v a="$start" -v b="$end" 'BEGIN { printf "%.0f\n", b - a }'
