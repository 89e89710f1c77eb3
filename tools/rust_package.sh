#!/usr/bin/env bash
# usage: tools/rust_package.sh: brings Pestle's sources into the crate pestle-sys, as its feature
# `bundled` compiles them, and packs the three crates into bindings/rust/target/package. Needs cargo of
# Rust 1.90, which takes crates that are in no registry yet from beside each other; pestle-sys is compiled
# from its package.
set -euo pipefail
cd "$(dirname "$0")/.."
sources=bindings/rust/pestle-sys/source

rm -rf $sources
mkdir -p $sources
git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt LICENSE cmake core formats backends ops files \
  bindings/c include ':!*.cu' ':!*.cuh' ':!*.md' | xargs -0 cp --parents -t $sources
cd bindings/rust
cargo package --quiet --locked --allow-dirty -p pestle-sys
# All three, not compiled: what would be is what the tests compile, and all of candle.
cargo package --quiet --locked --allow-dirty --no-verify -p pestle-sys -p pestle -p pestle-candle
ls -l target/package/*.crate
