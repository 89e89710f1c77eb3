#!/usr/bin/env bash
# usage: tools/wheel_pure.sh: the pure-Python wheel into dist/, for torch 2.5 and later: the Triton
# and eager backends, with the table of build/lib/libpestle_torch.so as JSON in the library's place.
# Needs tools/setup.sh wheel and a release build; not torch.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH
stage=build/wheel-pure
log=build/wheel-pure.log
rm -rf $stage dist/pestle-*-none-any.whl
mkdir -p $stage dist
cp -r python/pestle README.md LICENSE $stage/
find $stage -name '*.so*' -delete
python tools/table_json.py build/lib/libpestle_torch.so >$stage/pestle/table.json
version=$(python -c 'import json, sys; print(json.load(sys.stdin)["version"])' <$stage/pestle/table.json)
cat >$stage/pyproject.toml <<TOML
[build-system]
requires = ["scikit-build-core>=0.11"]
build-backend = "scikit_build_core.build"

[project]
name = "pestle"
version = "$version"
description = "Kernels for quantised diffusion and transformer models, by Triton and plain PyTorch"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.10"
dependencies = ["torch>=2.5", "tqdm>=4.60", "tomli>=2; python_version < '3.11'"]

[tool.scikit-build]
wheel.cmake = false
wheel.packages = ["pestle"]
TOML
pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist $stage >$log 2>&1 ||
  { cat $log; exit 1; }
ls -l dist/pestle-*-none-any.whl
