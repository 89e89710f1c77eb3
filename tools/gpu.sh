#!/usr/bin/env bash
# Checks and benches on a GPU machine that has no network and no compiler.
#
# usage: tools/gpu.sh pack               here: builds the cuda preset, where CI builds it, into build/gpu
#        tools/gpu.sh run [OP...] ...    there: checks and benches all ops, or these (run --help)
set -uo pipefail
cd "$(dirname "$0")/.."

die() { echo "gpu.sh: $*" >&2; exit 2; }

pack() {
  [ -z "$(git status --porcelain 2>/dev/null)" ] ||
    echo "gpu.sh: the tree is edited: tools/performance.py will reject these results" >&2
  tools/setup.sh cuda || exit 1
  # Beside build/ and as deep as build-wheel/, so that one compilation serves all (tools/test.sh).
  cmake --preset cuda -B build-cuda >/dev/null &&
    cmake --build build-cuda --target pestle_cli pestle || exit 1
  local out=build/gpu library
  rm -rf $out && mkdir -p $out/bin $out/lib
  cp build-cuda/bin/pestle $out/bin/
  cp -P build-cuda/lib/libpestle.so* $out/lib/
  # The libraries that the GPU machine may lack.
  ldd $out/bin/pestle | awk '/libhwy/ {print $3}' | while read -r library; do
    cp -L "$library" $out/lib/
  done
  cp -r bench/peers bench/*_cuda.json $out/
  cp tools/gpu.sh tools/gpu_run.py $out/
  strip $out/bin/pestle $out/lib/libpestle.so.*.*.* 2>/dev/null
  git rev-parse --short=12 HEAD >$out/commit.txt
  du -sh $out
  echo "on the GPU machine: tools/gpu.sh run"
}

case ${1:-} in
  pack) pack ;;
  run) shift; exec python3 tools/gpu_run.py "$@" ;;
  *)
    sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
    ;;
esac
