#!/usr/bin/env bash
# Checks and benches on a GPU machine that has no network and no compiler.
#
# usage: tools/gpu.sh pack                    here: builds the cuda preset into build/gpu
#        tools/gpu.sh run [OP...] [options]   there: checks and benches all ops, or these
#
#   --only check|mutants|bench|host   one part; default: all four
#   --shard I/N       only every N-th op, from the I-th (1 to N)
#   --minutes M       start nothing new after so many (8); then exit 75: run again to go on
#   --tags-check T    (smoke,edge,bar)    --tags-bench T  (bar)
#   --device D        (cuda)
#   --peers           time PyTorch on the same cases, before and after ours (python3 needs torch)
#   --done FOLDER     an earlier run's results: what is done there is not done again
#   --sanitizer       the smoke and edge checks under compute-sanitizer's four tools instead
#
# Results lie in build/gpu-results/HASH-OF-THE-PROGRAM, so that the same command goes on where it
# stopped, and are copied to $OUT if that is set: check.jsonl, mutants.jsonl, bench.jsonl, host.jsonl
# (copy them to bench/results/), log.txt, and done/ with a mark for each finished step. A failing step
# is named at the end, makes the exit status 1, and is tried again by the next run; its lines are in
# failed.jsonl.
set -uo pipefail
cd "$(dirname "$0")/.."

die() { echo "gpu.sh: $*" >&2; exit 2; }

pack() {
  [ -z "$(git status --porcelain 2>/dev/null)" ] ||
    echo "gpu.sh: the tree is edited: tools/performance.py will reject these results" >&2
  tools/setup.sh cuda || exit 1
  tools/build.sh cuda pestle_cli pestle || exit 1
  local out=build/gpu library
  rm -rf $out && mkdir -p $out/bin $out/lib
  cp build/cuda/bin/pestle $out/bin/
  cp -P build/cuda/lib/libpestle.so* $out/lib/
  # The libraries that the GPU machine may lack.
  ldd $out/bin/pestle | awk '/libhwy/ {print $3}' | while read -r library; do
    cp -L "$library" $out/lib/
  done
  cp -r bench/peers $out/
  cp tools/gpu.sh $out/
  strip $out/bin/pestle $out/lib/libpestle.so.*.*.* 2>/dev/null
  build/cuda/bin/pestle env | sed -n 2p >$out/commit.txt
  du -sh $out
  echo "on the GPU machine: tools/gpu.sh run"
}

find_pestle() {
  local folder
  pestle=${PESTLE_BIN:-}
  [ -z "$pestle" ] || return
  for folder in build/gpu build/cuda .; do
    if [ -x $folder/bin/pestle ]; then
      pestle=$folder/bin/pestle
      export LD_LIBRARY_PATH=$PWD/$folder/lib:${LD_LIBRARY_PATH:-}
      return
    fi
  done
  die "no build/gpu/bin/pestle: run tools/gpu.sh pack where the compiler is"
}

# step NAME COMMAND...: once, unless the time is up; its lines reach the results only if it ended.
step() {
  local name=$1 left status lines
  shift
  if [ -e "$out/done/$name" ] || { [ -n "$done_folder" ] && [ -e "$done_folder/done/$name" ]; }; then
    skipped=$((skipped + 1))
    return
  fi
  left=$((minutes * 60 - SECONDS))
  if [ $left -le 0 ]; then
    unfinished=$((unfinished + 1))
    return
  fi
  echo "=== $name: $*" | tee -a "$out/log.txt"
  rm -f "$out/part.jsonl"
  # Within nine minutes of the start in any case.
  timeout -k 5 $((left + 40)) "$@" --out "$out/part.jsonl" >"$out/step.txt" 2>&1
  status=$?
  tail -n 40 "$out/step.txt" | tee -a "$out/log.txt"
  if [ $status -eq 124 ] || [ $status -eq 137 ]; then
    echo "=== $name: ran out of time" | tee -a "$out/log.txt"
    unfinished=$((unfinished + 1))
  else
    lines=$out/${name%%.*}.jsonl
    [ $status -eq 0 ] || lines=$out/failed.jsonl
    [ -e "$out/part.jsonl" ] && cat "$out/part.jsonl" >>"$lines"
    if [ $status -eq 0 ]; then
      touch "$out/done/$name"
      passed=$((passed + 1))
    else
      echo "=== $name: FAILED ($status)" | tee -a "$out/log.txt"
      failed+=("$name")
    fi
  fi
  rm -f "$out/part.jsonl" "$out/step.txt"
}

# Ops with an implementation for the device, of this shard.
ops_to_run() {
  local all=("$@") i=0 op
  if [ ${#all[@]} -eq 0 ]; then
    mapfile -t all < <("$pestle" ops --json | python3 -c '
import json, sys
for op in json.load(sys.stdin):
    if any(i["device"] == "cuda" for i in op["implementations"]):
        print(op["name"])')
  fi
  for op in "${all[@]}"; do
    [ $((i % shards + 1)) -eq "$shard" ] && echo "$op"
    i=$((i + 1))
  done
}

sanitize() {
  local tool
  command -v compute-sanitizer >/dev/null || die "compute-sanitizer is not here"
  for tool in memcheck racecheck initcheck synccheck; do
    for op in "$@"; do
      step "$tool.$op" compute-sanitizer --tool $tool --error-exitcode 9 "$pestle" check "$op" \
        --device "$device" --repeats 1 --launch default
    done
  done
}

run() {
  local only="" tags_check=smoke,edge,bar tags_bench=bar names=() sanitizer=0 peers=()
  shard=1 shards=1 minutes=8 device=cuda done_folder=""
  while [ $# -gt 0 ]; do
    case $1 in
      --only) only=$2; shift ;;
      --shard) shard=${2%/*} shards=${2#*/}; shift ;;
      --minutes) minutes=$2; shift ;;
      --tags-check) tags_check=$2; shift ;;
      --tags-bench) tags_bench=$2; shift ;;
      --device) device=$2; shift ;;
      --done) done_folder=$2; shift ;;
      --sanitizer) sanitizer=1 ;;
      --peers) peers=(--with-peers --python "$(command -v python3)" --peers-script bench/peers/run_peers.py) ;;
      -*) die "unknown option $1" ;;
      *) names+=("$1") ;;
    esac
    shift
  done
  find_pestle
  out=build/gpu-results/$(sha256sum "$pestle" | cut -c1-12)
  mkdir -p "$out/done"
  [ -z "${OUT:-}" ] || trap 'cp -r "$out/." "$OUT/"' EXIT
  skipped=0 unfinished=0 passed=0 failed=()
  "$pestle" env | tee -a "$out/log.txt"
  local ops
  mapfile -t ops < <(ops_to_run ${names[@]+"${names[@]}"})
  [ ${#ops[@]} -gt 0 ] || die "no op has an implementation for $device in this shard"
  if [ $sanitizer = 1 ]; then
    sanitize "${ops[@]}"
  else
    for op in "${ops[@]}"; do
      case ,${only:-check}, in *,check,*)
        step "check.$op.$tags_check" "$pestle" check "$op" --device "$device" --tags "$tags_check" ;;
      esac
      case ,${only:-mutants}, in *,mutants,*)
        step "mutants.$op" "$pestle" check "$op" --device "$device" --mutants ;;
      esac
      case ,${only:-bench}, in *,bench,*)
        [ -z "$("$pestle" bench "$op" --list-cases --tags "$tags_bench" 2>/dev/null)" ] ||
          step "bench.$op.$tags_bench" "$pestle" bench "$op" --device "$device" --tags "$tags_bench" \
            ${peers[@]+"${peers[@]}"} ;;
      esac
    done
    case ,${only:-host}, in *,host,*)
      [ "$shard" -eq 1 ] && step host.all "$pestle" bench --host-cost --device "$device" ;;
    esac
  fi
  echo "=== $passed passed, ${#failed[@]} failed, $skipped done before, $unfinished still to do" |
    tee -a "$out/log.txt"
  [ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}" | tee -a "$out/log.txt"; exit 1; }
  [ $unfinished -eq 0 ] || { echo "run again to go on"; exit 75; }
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "$@" ;;
  *)
    sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
    ;;
esac
