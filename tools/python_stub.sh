#!/usr/bin/env bash
# usage: tools/python_stub.sh: writes the package's type stub, as printed by the package with the
# release build's library (make stub); tests/torch holds it to a fresh print.
set -euo pipefail
cd "$(dirname "$0")/.."
stage=build/stub
rm -rf $stage
mkdir -p $stage
cp -r python/pestle $stage/
cp build/lib/libpestle_torch.so $stage/pestle/
(cd $stage && "$OLDPWD/.venv/bin/python" -m pestle._stub) >build/stub.pyi
mv build/stub.pyi python/pestle/__init__.pyi
