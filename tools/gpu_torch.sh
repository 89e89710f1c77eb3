#!/usr/bin/env bash
# The wheel's tests on a GPU machine that has PyTorch, but neither network nor compiler.
#
# usage: tools/gpu_torch.sh pack [PYTHON]          here, after make wheel: build/gpu-torch, with the
#                                                  tests' packages for that Python (3.12)
#        tools/gpu_torch.sh run [PYTEST_ARGUMENT]  there, in that folder: installs dist's wheel into a
#                                                  folder of its own, runs tests/torch against it on
#                                                  all GPUs and cores, host costs first
#        tools/gpu_torch.sh python FILE [ARG]...   there: a program with the wheel installed
#
# PESTLE_SITE_WHEELS: a folder with the packages' wheels, which are downloaded otherwise.
# PESTLE_WORKERS: processes beside those of test_aoti.py, which go on their own; as many as cores.
# PESTLE_TESTS_SECONDS: when the tests are stopped, with the log of what has run by then (480).
# The log - counts per file, versions, the wheel's hash - is gpu-torch.log, failures lie beside it,
# host costs in gpu-torch.host.txt; all are in $OUT if that is set.
set -euo pipefail
cd "$(dirname "$0")/.."

packages="pytest pytest-xdist execnet iniconfig pluggy packaging pygments ml_dtypes safetensors tqdm
  pyelftools comfy-kitchen==0.2.40 torchao==0.18.0 gguf"

pack() {
  local out=build/gpu-torch library
  ls dist/pestle-*manylinux*.whl >/dev/null || { echo "no wheel in dist: make wheel" >&2; exit 2; }
  rm -rf $out && mkdir -p $out/build/lib $out/site-wheels $out/dist
  cp dist/pestle-*manylinux*.whl $out/dist/
  # What the tests read of the tree. The package itself is the wheel's, so not python/pestle.
  git ls-files -- tests bench docs examples tools ops/ops.def python/csrc README.md ':!tests/fuzz' |
    tar c -T - | tar x -C $out
  # The C library that codes are held to, and what it needs.
  mkdir -p $out/build/bin
  cp -L build/lib/libpestle.so $out/build/lib/ && strip $out/build/lib/libpestle.so
  cp build/bin/pestle $out/build/bin/ && strip $out/build/bin/pestle
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
  # Compiled here, for there is no compiler there.
  c++ -std=c++20 -O2 -shared -fPIC -I. bench/torch_floor.cpp python/csrc/torch_abi.cpp -ldl \
    -o $out/build/lib/libtorch_floor.so
  git log -1 --format=%h >$out/commit.txt
  du -sh $out
  echo "on the GPU machine, in that folder: tools/gpu_torch.sh run"
}

# The tests' environment: the wheel as a file, installed beside torch; every GPU visible.
install() {
  local site=$PWD/site count
  wheel=$(ls "$PWD"/dist/pestle-*manylinux*.whl)
  rm -rf "$site"
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheel" \
    site-wheels/*.whl
  export PYTHONPATH=$site:$PWD/tools PESTLE_BUILD_DIR=$PWD/build PESTLE_TORCH_WHEEL=$wheel
  export LD_LIBRARY_PATH=$PWD/build/lib:${LD_LIBRARY_PATH:-} PESTLE_COMMIT
  export PESTLE_TORCH_FLOOR=$PWD/build/lib/libtorch_floor.so
  PESTLE_COMMIT=$(cat commit.txt)
  count=$(nvidia-smi -L | wc -l)
  export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((count - 1)))}
  # AOTInductor compiles models by $CXX. One that brings a libstdc++ of its own along made models
  # that crash when they are loaded, with or without our ops.
  export CXX CC
  CXX=$(command -v c++) CC=$(command -v cc)
}

# PART WORKERS PYTEST_ARGUMENT...: a run of pytest with a log and a time limit of its own.
part() {
  local name=$1 workers=$2
  shift 2
  PESTLE_TORCH_LOG=$out/gpu-torch$name.log timeout -k 5 "${PESTLE_TESTS_SECONDS:-480}" \
    python3 -m pytest -q -n "$workers" --dist worksteal --tb=short -W ignore -p no:cacheprovider \
    -p gpu_torch_log "$@" >"$out/gpu-torch$name.pytest.txt" 2>&1
}

run() {
  local out=${OUT:-$PWD} wheel status=0 aoti=0
  install
  # As many processes as cores: none of them needs more threads. (A program that is run alone keeps
  # the compiler's, as its users have them.)
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCHINDUCTOR_COMPILE_THREADS=1
  rm -f "$out"/gpu-torch*
  if [ $# -gt 0 ]; then
    part "" "${PESTLE_WORKERS:-auto}" "$@" || status=$?
  else
    # Host costs while nothing else runs here.
    python3 bench/torch_host_cost.py cuda >"$out/gpu-torch.host.txt" 2>&1 || status=$?
    # AOTInductor compiles whole models, half a minute each, side by side and beside the rest.
    part .aoti 7 tests/torch/test_aoti.py & aoti=$!
    part "" "${PESTLE_WORKERS:-auto}" tests/torch --ignore=tests/torch/test_aoti.py || status=$?
    wait $aoti || status=$?
  fi
  tail -qn 2 "$out"/gpu-torch*.pytest.txt
  cat "$out"/gpu-torch*.log
  return $status
}

case ${1:-} in
  pack) shift; pack "$@" ;;
  run) shift; run "$@" ;;
  python) shift; install; exec python3 "$@" ;;
  *)
    sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
    ;;
esac
