#!/usr/bin/env bash
# usage: tools/test_rust.sh: the Rust crates against build/lib: format, clippy, tests, examples,
# documentation, packages. Needs build/ and tools/setup.sh rust; crates come from crates.io, as
# bindings/rust/Cargo.lock pins them.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR=$root/bindings/rust/target CARGO_TERM_COLOR=never
unset PESTLE_LIBRARY PESTLE_SOURCE_DIR PESTLE_BUILD_DIR
model=$(dirname "$(tools/demo_model.sh)")
cd bindings/rust

step() {
  local start=$SECONDS
  echo "--- $*"
  "$@"
  echo "--- $((SECONDS - start)) s"
}
example() { cargo run --locked --quiet -p pestle-candle --example "$@"; }

step cargo fmt --all --check
step cargo fetch --locked --quiet
step cargo test --locked --workspace --all-targets --quiet
step cargo test --locked --workspace --doc --quiet
step example minilm -- "$root/$model"
step example train_attention
step example llama_step
step example silu_gate
step example norms
step cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
# Neither a library nor a compiler of C++ is needed for these, as on docs.rs.
step cargo check --locked --workspace --no-default-features --quiet
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --workspace --no-default-features --no-deps --quiet
step "$root/tools/rust_check_cuda.sh"
# The library linked in: what the feature `bundled` does, but for compiling it here once more.
PESTLE_BUILD_DIR=$root/build step cargo test --locked --quiet -p pestle-sys -p pestle --no-default-features \
  --features pestle-sys/bundled,pestle/bundled
step "$root/tools/rust_package.sh"
# The sources in the package are whole: they configure by themselves.
step cmake -S "$CARGO_TARGET_DIR/package/pestle-sys-0.1.0/source" -B "$CARGO_TARGET_DIR/package/build" -G Ninja \
  -DCMAKE_BUILD_TYPE=Release -DPESTLE_TESTS=OFF --log-level=WARNING
