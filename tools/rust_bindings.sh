#!/usr/bin/env bash
# usage: tools/rust_bindings.sh: writes bindings/rust/pestle-sys/src/bindings.rs from
# include/pestle/pestle.h by bindgen, and the mark by which a test sees that the header has moved.
# Needs bindgen (cargo install bindgen-cli) and libclang (LIBCLANG_PATH); only whoever changes the
# header runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=bindings/rust/pestle-sys
command -v bindgen >/dev/null || { echo "rust_bindings: no bindgen; cargo install bindgen-cli" >&2; exit 1; }

bindgen include/pestle/pestle.h --allowlist-item 'pestle_.*' --allowlist-item 'PESTLE_.*' \
  --rust-target 1.80 --rust-edition 2021 --use-core --no-prepend-enum-name --default-enum-style consts \
  -o $crate/src/bindings.rs -- -Iinclude -I"$(gcc -print-file-name=include)"
# The header without comments and white space: what the test compares (pestle-sys/tests/header.rs).
gcc -w -E -P -fpreprocessed -dD include/pestle/pestle.h | tr -d '[:space:]' >$crate/src/header.txt
rustfmt --edition 2021 $crate/src/bindings.rs
