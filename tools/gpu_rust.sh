#!/usr/bin/env bash
# pestle-candle with its feature `cuda` on a GPU machine that has no network and no compiler.
#
# usage: tools/gpu_rust.sh pack   here, after tools/gpu.sh pack: tests and bench into build/gpu-rust
#        tools/gpu_rust.sh run    there: the tests, then the bench; JSON lines in $OUT/gpu-rust.jsonl
#
# Candle's own kernels are compiled by the nvcc of tools/setup.sh cuda. There is no driver here, so
# a stand-in for libcuda, with the names that cudarc calls, is linked against; cuBLAS, cuRAND and
# NVRTC are those of PyTorch's packages, here and there.
set -euo pipefail
cd "$(dirname "$0")/.."

out=build/gpu-rust
room=$PWD/build/rust-cuda
tests=(cuda attention gradients kaio qlinear checkpoint table)

# A folder that looks like an installed CUDA toolkit.
make_toolkit() {
  local toolkit=$1 cuda=$PWD/.venv/cuda/nvidia/cu13 name cudarc
  local libraries=$PWD/.venv/lib/python3*/site-packages/nvidia/cu13/lib
  rm -rf "$toolkit" && mkdir -p "$toolkit/lib64"
  ln -s "$cuda/bin" "$cuda/include" "$cuda/nvvm" "$toolkit"/
  ln -s "$cuda/lib/libcudart.so.13" "$toolkit/lib64/libcudart.so"
  for name in cublas cublasLt curand nvrtc; do
    ln -s $libraries/lib$name.so.* "$toolkit/lib64/lib$name.so"
  done
  cargo fetch --quiet --locked --manifest-path bindings/rust/Cargo.toml
  cudarc=$(cargo metadata --quiet --locked --format-version 1 --manifest-path bindings/rust/Cargo.toml \
    --filter-platform x86_64-unknown-linux-gnu --features pestle-candle/cuda |
    python3 -c 'import json, sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"))')
  { grep -oE '\bfn cu[A-Z]\w*' "$(dirname "$cudarc")/src/driver/sys/mod.rs" | sort -u |
    sed 's/fn \(.*\)/void \1(void) {}/'; } >"$toolkit/libcuda.c"
  cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$toolkit/lib64/libcuda.so" "$toolkit/libcuda.c"
}

pack() {
  [ -d build/gpu/lib ] || { echo "gpu_rust.sh: first run tools/gpu.sh pack" >&2; exit 2; }
  mkdir -p "$room"
  make_toolkit "$room/toolkit"
  export PATH=$room/toolkit/bin:$PATH CUDA_HOME=$room/toolkit CUDA_PATH=$room/toolkit
  export CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90 CARGO_TARGET_DIR=$room/target
  export LIBRARY_PATH=$room/toolkit/lib64 RUSTFLAGS="-L native=$room/toolkit/lib64"
  local name file
  rm -rf $out && mkdir -p $out
  (
    cd bindings/rust
    cargo build --locked --release -p pestle-candle --features cuda --example candle_bench
    cargo test --locked --release -p pestle-candle --features cuda --no-run --message-format json \
      "${tests[@]/#/--test=}" >"$room/built.json"
  )
  cp "$room/target/release/examples/candle_bench" $out/
  for name in "${tests[@]}"; do
    file=$(python3 - "$room/built.json" "$name" <<'PY'
import json, sys
built = [json.loads(line) for line in open(sys.argv[1])]
print([b["executable"] for b in built if b.get("executable") and b["target"]["name"] == sys.argv[2]][-1])
PY
    )
    cp "$file" "$out/test_$name"
  done
  strip $out/*
  cp tools/gpu_rust.sh $out/
  git rev-parse --short=12 HEAD >$out/commit.txt
  du -sh $out
}

run() {
  local libraries name status=0 results=${OUT:-build/gpu-results}
  mkdir -p "$results"
  libraries=$(python3 -c 'import nvidia, pathlib; print(next(pathlib.Path(p) / "cu13/lib" for p in nvidia.__path__))')
  export LD_LIBRARY_PATH=$libraries:$PWD/build/gpu/lib:${LD_LIBRARY_PATH:-}
  export PESTLE_LIBRARY=$PWD/build/gpu/lib/libpestle.so.0 RUST_BACKTRACE=0
  [ -e "$PESTLE_LIBRARY" ] || PESTLE_LIBRARY=$(ls "$PWD"/build/gpu/lib/libpestle.so* | head -n 1)
  for name in "${tests[@]}"; do
    echo "=== $name" | tee -a "$results/gpu-rust.log"
    "$out/test_$name" --test-threads 4 2>&1 | tee -a "$results/gpu-rust.log" || status=1
  done
  "$out/candle_bench" "$(cat $out/commit.txt)" | tee -a "$results/gpu-rust.jsonl" || status=1
  return $status
}

case ${1:-} in
  pack) pack ;;
  run) run ;;
  *) sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
