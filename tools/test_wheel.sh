#!/usr/bin/env bash
# usage: tools/test_wheel.sh [PYTEST_ARGUMENT]...: builds the wheel, installs it into a fresh
# environment that has .venv's torch, and runs tests/torch there.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/wheel.sh
venv=$PWD/build/wheel-venv
rm -rf "$venv"
.venv/bin/python -m venv --without-pip "$venv"
# torch, numpy and pytest are read where they are instead of being installed again.
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site .venv/bin/python >"$(site "$venv/bin/python")/tests.pth"
.venv/bin/pip --python "$venv/bin/python" install -q --disable-pip-version-check --no-index \
  dist/pestle-*manylinux*.whl
# A file goes to one of two processes, whose threads are few; -n 0 is one after the other.
PESTLE_BUILD_DIR=$PWD/build exec "$venv/bin/python" -m pytest -q tests/torch -n 2 --dist loadfile \
  ${PESTLE_TEST_RESULTS:+--junitxml="$PESTLE_TEST_RESULTS/pytest.xml"} "$@"
