#!/usr/bin/env bash
# usage: tools/wheel.sh [--release] [PIP_ARGUMENT]...: builds the PyTorch package into dist/, as one
# wheel whose tag says which Linuxes it runs on. Needs tools/setup.sh wheel cuda; neither torch nor a
# GPU. --release compiles the kernels for every architecture of a release. Other settings are
# scikit-build-core's (docs/building.md): tools/wheel.sh -C cmake.define.PESTLE_CUDA=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH
# As in other builds: the compiler cache knows a compiler by its name.
export CC=${CC:-cc} CXX=${CXX:-c++}
if [ "${1:-}" = --release ]; then
  shift
  set -- -C 'cmake.define.CMAKE_CUDA_ARCHITECTURES=80-real;89-real;90a-real;100f-real;120f-real' "$@"
fi
raw=build/wheel-raw
log=build/wheel.log
rm -rf $raw dist/pestle-*-manylinux*.whl
mkdir -p $raw dist
rm -f build-wheel/CMakeCache.txt # where settings of another call would stay
start=$SECONDS
pip wheel -v --disable-pip-version-check --no-deps --no-build-isolation -w $raw "$@" . 2>&1 |
  tools/ninja_progress.py $log wheel ||
  { cat $log; exit 1; }
# Libraries that not every Linux has (Highway) move into the wheel; the tag follows from the rest.
auditwheel repair --wheel-dir dist $raw/pestle-*.whl >$log 2>&1 || { cat $log; exit 1; }
# What was just written must hold what its name promises.
auditwheel show dist/pestle-*-manylinux*.whl >$log
tag=$(basename dist/pestle-*-manylinux*.whl .whl)
grep -q "consistent with" $log && grep -q "${tag##*-none-}" <(tr -d '\n' <$log | tr '"' ' ') ||
  { cat $log; exit 1; }
python - dist/pestle-*-manylinux*.whl $((SECONDS - start)) <<'PYTHON'
import sys, zipfile
from pathlib import Path

wheel, seconds = Path(sys.argv[1]), sys.argv[2]
library = next(i for i in zipfile.ZipFile(wheel).infolist() if i.filename.endswith("_torch.so"))
print(f"{wheel}: {wheel.stat().st_size:,} bytes, library {library.file_size:,}, {seconds} s")
PYTHON
