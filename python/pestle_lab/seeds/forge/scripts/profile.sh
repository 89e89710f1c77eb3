#!/usr/bin/env bash
# usage: scripts/profile.sh ncu|nsys|sanitizer [TOOL_OPTION]... [--extract] -- COMMAND...
# Runs COMMAND under a profiler and leaves its report in profiles/. --extract prints a summary of an
# ncu report. Exit 9 where the tool is not installed, 11 if the sanitizer found anything, else what
# the tool ended with.
set -euo pipefail

say() { echo "profile: $*" >&2; }
usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
has() { # OPTION ARGUMENT...: whether one of the tool's own options sets it already
  local wanted=$1 option; shift
  for option in "$@"; do [[ $option == "$wanted" || $option == "$wanted="* ]] && return; done
  return 1
}

[ $# -gt 0 ] || usage
tool=$1; shift
case $tool in
  ncu) program=ncu ;;
  nsys) program=nsys ;;
  sanitizer) program=compute-sanitizer ;;
  *) say "no tool '$tool': ncu, nsys or sanitizer"; exit 2 ;;
esac
options=() extract=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  if [ "$1" = --extract ]; then extract=1; else options+=("$1"); fi
  shift
done
[ $# -gt 1 ] || { say "no command after --"; usage; }
shift
[ -z "$extract" ] || [ "$tool" = ncu ] || { say "--extract reads reports of ncu"; exit 2; }
command -v "$program" >/dev/null || {
  say "$program is not installed: it comes with the CUDA toolkit"; exit 9; }

mkdir -p profiles
report=profiles/${tool}_$(date -u +%Y%m%d_%H%M%S)_$$
say "report: $report"
# `uv run` starts the program that is meant.
[ "$tool" = nsys ] || has --target-processes "${options[@]}" || options+=(--target-processes all)
case $tool in
  ncu)
    has --set "${options[@]}" || options+=(--set full)
    "$program" "${options[@]}" -o "$report" "$@"
    [ -z "$extract" ] || "$(dirname "$0")/ncu_extract.py" "$report.ncu-rep"
    ;;
  nsys) "$program" profile "${options[@]}" -o "$report" "$@" ;;
  sanitizer)
    has --tool "${options[@]}" || options+=(--tool memcheck)
    has --error-exitcode "${options[@]}" || options+=(--error-exitcode 11)
    # PyTorch's cache of memory would hide what lies beyond a tensor.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$program" "${options[@]}" --log-file "$report.log" "$@" ||
      { code=$?; cat "$report.log"; exit "$code"; }
    cat "$report.log"
    ;;
esac
