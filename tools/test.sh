#!/usr/bin/env bash
# usage: tools/test.sh: every test, stage by stage; make test calls it, and CI calls make test.
# A failing stage does not hide the later ones; the exit status is non-zero if any failed.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=build/test-logs
mkdir -p $logs
failed=()
: >$logs/stages.tsv

# stage NAME COMMAND...: runs it, keeps its output in $logs/NAME.log and its tests' JUnit files in
# $logs/NAME, notes time and verdict.
stage() {
  local name=$1 start=$SECONDS verdict=ok
  shift
  export PESTLE_TEST_RESULTS=$PWD/$logs/$name
  rm -rf "$PESTLE_TEST_RESULTS"
  mkdir "$PESTLE_TEST_RESULTS"
  echo "=== $name: $*"
  if ! "$@" </dev/null 2>&1 | tee "$logs/$name.log"; then
    verdict=FAILED
    failed+=("$name")
  fi
  printf '%s\t%s\t%d\n' "$name" $verdict $((SECONDS - start)) >>$logs/stages.tsv
  echo "=== $name: $verdict, $((SECONDS - start)) s"
  [ $verdict = ok ]
}

run_ctest() {
  local verdict=0
  rm -rf "$1/test-results"
  ctest --test-dir "$1" --output-on-failure --no-tests=error -j "$(nproc)" || verdict=$?
  cp "$1"/test-results/*.xml "$PESTLE_TEST_RESULTS"/
  return $verdict
}
sanitizer() { tools/build.sh "$1" && run_ctest "build/$1"; }
# Beside build/, as deep as it and build-wheel/, so that the compiler cache serves all three. CI has no
# GPU: its kernels end as PTX, unoptimised, since assembling those of sm_90a alone takes two cores 25
# minutes. tests/cuda/instructions.cu shows the assembler each instruction; what else it says, make cuda
# and tools/gpu_evidence.py pack tell.
[ -z "${CI:-}" ] || export CUDAARCHS="80-virtual;90a-virtual" CUDAFLAGS="-Xcicc -O0 --compress-mode=speed"
build_cuda() {
  cmake --preset cuda -B build-cuda >build/cuda-configure.log 2>&1 ||
    { cat build/cuda-configure.log; return 1; }
  cmake --build build-cuda --target pestle_cli pestle pestle_cuda_formats pestle_cuda_chains \
    pestle_cuda_instructions
}
run_pytest() {
  PESTLE_BUILD_DIR=$PWD/build PESTLE_BIN=$PWD/build/bin/pestle python -m pytest -q tests -n 2 --dist loadfile \
    --junitxml="$PESTLE_TEST_RESULTS/pytest.xml" --ignore=tests/torch \
    --ignore=tests/torch_pure --ignore=tests/lab \
    --ignore=tests/lab_ray --ignore=tests/comfyui
}

# What ComfyUI needs (0.9 GB) is installed where there is a ComfyUI to test with.
comfyui=$([ ! -d ../shared/comfyui ] || echo comfyui)
stage setup tools/setup.sh test wheel cuda torch25 docs lab rust $comfyui || exit 1
stage build tools/build.sh release || exit 1
stage lint tools/lint.sh
stage asan-ubsan sanitizer asan-ubsan
stage tsan sanitizer tsan
stage cuda build_cuda
stage docs .venv/bin/python tools/docs.py
stage ctest run_ctest build
stage pytest run_pytest
stage rust tools/test_rust.sh
stage wheel tools/test_wheel.sh
stage lab tools/test_lab.sh
stage wheel-pure tools/test_wheel_pure.sh
stage comfyui tools/test_comfyui.sh

echo "=== summary"
tools/test_budgets.py $logs
for name in asan-ubsan tsan ctest pytest wheel lab wheel-pure comfyui; do
  echo "$name: $(grep -E 'tests passed|tests failed| passed| failed' $logs/$name.log | tail -n 1)"
done
tools/gpu_evidence.py age
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
# Once more on its own lines, for whatever reads only the end of a log.
tail -n 3 $logs/ctest.log
tail -n 1 $logs/pytest.log
tail -n 1 $logs/wheel.log
