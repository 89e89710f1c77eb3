#!/usr/bin/env bash
# usage: tools/torch25.sh: torch 2.5.1 into .venv/torch25, for tests of the pure-Python wheel on the CPU;
# tools/setup.sh torch25 calls it. PyPI's torch for Linux wants 2 GB of CUDA libraries, which such tests
# never call: libraries of the same names stand in, in which every function answers 100, "no device".
set -euo pipefail
cd "$(dirname "$0")/.."
target=.venv/torch25.part  # in its place when complete
rm -rf $target
.venv/bin/pip install -q --disable-pip-version-check --no-input --no-deps --target $target torch==2.5.1
libraries=$target/torch/lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -D --undefined-only $libraries/*.so* 2>/dev/null | awk '$1 == "U" {print $2}' | sort -u >"$work/wanted"
needed() { readelf -d $libraries/*.so* | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u; }
needed | grep -E '^lib(cu|nccl|nv)' | while read -r name; do
  [ ! -e "$libraries/$name" ] || continue
  {
    grep -F "@$name" "$work/wanted" | sed 's/@.*//' || true
    # What has no version may be in any of them.
    [ "$name" != libcudart.so.12 ] || grep -E '^(cu|nccl|nvrtc|nvJit|nvtx)[^@]*$' "$work/wanted"
  } | sort -u | awk '{print ".globl " $1 "\n.type " $1 ",@function\n" $1 ":"}' >"$work/symbols"
  { echo .text; cat "$work/symbols"; echo "movl \$100, %eax; ret"; } >"$work/stub.s"
  echo "$name { global: *; };" >"$work/stub.map"
  gcc -shared -nostdlib -Wl,-soname,"$name" -Wl,--version-script="$work/stub.map" \
    -o "$libraries/$name" "$work/stub.s"
done
PYTHONPATH=$target .venv/bin/python -c 'import torch; assert torch.__version__.startswith("2.5.1")'
rm -rf .venv/torch25
mv $target .venv/torch25
