#!/usr/bin/env bash
# usage: tools/wheel.sh: builds the PyTorch package into dist/, as one wheel whose tag says which
# Linuxes it runs on. Needs tools/setup.sh wheel; neither torch nor a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH
# As in other builds: the compiler cache knows a compiler by its name.
export CC=${CC:-cc} CXX=${CXX:-c++}
raw=build/wheel-raw
log=build/wheel.log
rm -rf $raw dist/pestle-*.whl
mkdir -p $raw dist
pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w $raw . >$log 2>&1 ||
  { cat $log; exit 1; }
# Libraries that not every Linux has (Highway) move into the wheel; the tag follows from the rest.
auditwheel repair --wheel-dir dist $raw/pestle-*.whl >$log 2>&1 || { cat $log; exit 1; }
ls -l dist/pestle-*.whl
