#!/usr/bin/env bash
# usage: tools/rust_package.sh: brings Pestle's sources into the crate pestle-sys, as its feature
# `bundled` compiles them, and packs the crates into bindings/rust/target/package.
# Only pestle-sys is compiled once more from its package: the others need it in a registry.
set -euo pipefail
cd "$(dirname "$0")/.."
sources=bindings/rust/pestle-sys/source

rm -rf $sources
mkdir -p $sources
git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt LICENSE cmake core formats backends ops files \
  bindings/c include ':!*.cu' ':!*.cuh' ':!*.md' | xargs -0 cp --parents -t $sources
cd bindings/rust
cargo package --quiet --locked --allow-dirty -p pestle-sys
# The others depend on crates that are in no registry yet: what would go in is listed.
for crate in "$@"; do cargo package --quiet --locked --allow-dirty -p "$crate" --list >/dev/null; done
ls -l target/package/*.crate
