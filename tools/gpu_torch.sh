#!/usr/bin/env bash
# The wheel's tests on a GPU machine that has PyTorch, but neither network nor compiler.
#
# usage: tools/gpu_torch.sh pack [PYTHON]          here, after make wheel: build/gpu-torch, with the
#                                                  tests' packages for that Python (3.12)
#        tools/gpu_torch.sh run [PYTEST_ARGUMENT]  there, in that folder: installs dist's wheel into a
#                                                  folder of its own and runs tests/torch against it
#
# PESTLE_SITE_WHEELS: a folder with the packages' wheels, which are downloaded otherwise.
# The log - counts per file, versions, the wheel's hash - is gpu-torch.log, failures lie beside it;
# both are in $OUT if that is set.
set -euo pipefail
cd "$(dirname "$0")/.."

packages="pytest pytest-xdist execnet iniconfig pluggy packaging pygments ml_dtypes safetensors tqdm
  pyelftools comfy-kitchen==0.2.40"

pack() {
  local out=build/gpu-torch library
  ls dist/pestle-*manylinux*.whl >/dev/null || { echo "no wheel in dist: make wheel" >&2; exit 2; }
  rm -rf $out && mkdir -p $out/build/lib $out/site-wheels $out/dist
  cp dist/pestle-*manylinux*.whl $out/dist/
  # What the tests read of the tree. The package itself is the wheel's, so not python/pestle.
  git ls-files -- tests bench docs tools ops/ops.def python/csrc README.md ':!tests/fuzz' |
    tar c -T - | tar x -C $out
  # The C library that codes are held to, and what it needs.
  cp -L build/lib/libpestle.so $out/build/lib/ && strip $out/build/lib/libpestle.so
  ldd build/lib/libpestle.so | awk '/libhwy/ {print $3}' | while read -r library; do
    cp -L "$library" $out/build/lib/
  done
  if [ -n "${PESTLE_SITE_WHEELS:-}" ]; then
    cp "$PESTLE_SITE_WHEELS"/*.whl $out/site-wheels/
  else
    # shellcheck disable=SC2086
    .venv/bin/pip download -q --no-deps --only-binary=:all: --implementation cp \
      --python-version "${1:-3.12}" --platform manylinux_2_28_x86_64 \
      --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
      --platform manylinux2014_x86_64 -d $out/site-wheels $packages
  fi
  git log -1 --format=%h >$out/commit.txt
  du -sh $out
  echo "on the GPU machine, in that folder: tools/gpu_torch.sh run"
}

run() {
  local site=$PWD/site out=${OUT:-$PWD} wheel
  wheel=$(ls "$PWD"/dist/pestle-*manylinux*.whl)
  rm -rf "$site"
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheel" \
    site-wheels/*.whl
  export PYTHONPATH=$site:$PWD/tools PESTLE_BUILD_DIR=$PWD/build PESTLE_TORCH_WHEEL=$wheel
  export LD_LIBRARY_PATH=$PWD/build/lib:${LD_LIBRARY_PATH:-}
  export PESTLE_TORCH_LOG=$out/gpu-torch.log PESTLE_COMMIT OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
  PESTLE_COMMIT=$(cat commit.txt)
  rm -f "$out"/gpu-torch*
  status=0
  python3 -m pytest -q -n "${PESTLE_WORKERS:-auto}" --dist worksteal --tb=short -W ignore \
    -p no:cacheprovider -p gpu_torch_log "${@:-tests/torch}" >"$out/gpu-torch.pytest.txt" 2>&1 ||
    status=$?
  tail -n 3 "$out/gpu-torch.pytest.txt"
  cat "$out/gpu-torch.log"
  return $status
}

case ${1:-} in
  pack) shift; pack "$@" ;;
  run) shift; run "$@" ;;
  *)
    sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
    ;;
esac
