#!/usr/bin/env bash
# usage: tools/test_comfyui.sh [PYTEST_ARGUMENT]...: runs tests/comfyui in the real ComfyUI 0.33.0 of
# ../shared/comfyui. Needs a release build and tools/setup.sh test comfyui. Without that folder nothing
# is run and a sentence says so; in CI (the environment's CI is set) that is a failure.
# tools/test_comfyui.sh -k test_page --write-pictures takes the pictures of the documentation anew.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=../shared/comfyui/comfyui-0.33.0.tar.xz
sum=493ff6a202bc89521c9654553766434bdf8892e183bbce80e9a9237e9a135634
if [ ! -f $archive ]; then
  echo "tests/comfyui is skipped: there is no $archive, the ComfyUI that it drives"
  [ -z "${CI:-}" ]
  exit
fi
folder=$PWD/build/comfyui
if [ ! -f "$folder/$sum" ]; then
  echo "$sum  $archive" | sha256sum --check --quiet
  rm -rf "$folder"
  mkdir -p "$folder"
  tar -xJf $archive -C "$folder"
  touch "$folder/$sum"
fi
# The package as a wheel would hold it: Python files, and the library of the release build.
package=$PWD/build/comfyui-package
rm -rf "$package"
mkdir -p "$package"
cp -r python/pestle "$package"
cp --remove-destination build/lib/libpestle_torch.so "$package/pestle/"
export PESTLE_COMFYUI=$folder/comfyui-0.33.0 PESTLE_BIN=${PESTLE_BIN:-$PWD/build/bin/pestle}
export PYTHONPATH=$package:$PWD/.venv/comfyui:$PWD/tests/browser PYTHONDONTWRITEBYTECODE=1
exec .venv/bin/python -m pytest -q -rs -p no:cacheprovider tests/comfyui \
  ${PESTLE_TEST_RESULTS:+--junitxml="$PESTLE_TEST_RESULTS/pytest.xml"} "$@"
