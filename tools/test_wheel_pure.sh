#!/usr/bin/env bash
# usage: tools/test_wheel_pure.sh [PYTEST_ARGUMENT]...: builds the pure-Python wheel, and runs its tests
# under the oldest torch that it takes and under .venv's. Needs a release build.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/wheel_pure.sh
site=$PWD/build/pure-site
rm -rf "$site"
.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-index --target "$site" \
  dist/pestle-*-none-any.whl
export PESTLE_BUILD_DIR=$PWD/build
for torch in "$PWD/.venv/torch25" ""; do
  export PYTHONPATH=$site${torch:+:$torch}
  .venv/bin/python -c 'import torch; print("torch", torch.__version__)'
  .venv/bin/python -m pytest -q tests/torch_pure \
    ${PESTLE_TEST_RESULTS:+--junitxml="$PESTLE_TEST_RESULTS/torch${torch:+25}.xml"} "$@"
done
