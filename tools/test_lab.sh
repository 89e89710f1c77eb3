#!/usr/bin/env bash
# usage: tools/test_lab.sh [PYTEST_ARGUMENT]...: the workbench's tests, in the environment that
# tools/test_wheel.sh installed the wheel into. Needs tools/setup.sh lab.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/build/wheel-venv/bin/python
[ -x "$python" ] || { echo "test_lab: run tools/test_wheel.sh first: it installs the wheel" >&2; exit 2; }
# The package is the wheel's; the tests find their kernels beside them. Two at a time, since most of
# their time is PyTorch being imported by one process after the other; -n 0 is one at a time.
PYTHONPATH=$PWD/tests/lab:$PWD/tests/browser exec "$python" -m pytest -q tests/lab -n 2 --dist loadfile \
  ${PESTLE_TEST_RESULTS:+--junitxml="$PESTLE_TEST_RESULTS/pytest.xml"} "$@"
