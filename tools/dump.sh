#!/usr/bin/env bash
# usage: tools/dump.sh [FOLDER]: writes the files that are made from the op table, as printed by
# `pestle dump`, here or under FOLDER. tests/golden holds the ones here to a fresh print.
set -euo pipefail
cd "$(dirname "$0")/.."
pestle=${PESTLE_BIN:-$PWD/build/bin/pestle}
to=${1:-.}
[ -x "$pestle" ] || { echo "dump: no $pestle; run make build first" >&2; exit 1; }

# Printed whole before the old file goes, so that a failure leaves it.
print() {
  mkdir -p "$(dirname "$to/$2")"
  "$pestle" dump "$1" >"$to/$2.new"
  mv "$to/$2.new" "$to/$2"
}
print c include/pestle/ops.h
print markdown docs/ops.md
print rust bindings/rust/pestle/src/ops.rs
