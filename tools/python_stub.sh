#!/usr/bin/env bash
# usage: tools/python_stub.sh: writes the package's type stub, as printed by the package that
# tools/test_wheel.sh installed; tests/torch holds it to a fresh print.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd build && wheel-venv/bin/python -m pestle._stub) >build/stub.pyi
mv build/stub.pyi python/pestle/__init__.pyi
