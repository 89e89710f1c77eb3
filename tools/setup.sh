#!/usr/bin/env bash
# usage: tools/setup.sh [build|test|wheel|fuzz|cuda|torch25|docs|lab|rust|comfyui]...
# Installs what is missing and says nothing when nothing is: system packages by apt-get, Python
# packages (pinned in tools/requirements/) into .venv. Running it again costs milliseconds.
#   build  compiler, libraries, CMake, Ninja (always included)
#   test   formatters, linters and the Python oracles (PyTorch: 5 GB)
#   wheel  scikit-build-core and auditwheel
#   fuzz   clang with libFuzzer
#   docs   MkDocs
#   lab    what the workbench needs beside the package; in CI an SSH server for its tests, which
#          nobody wants started on a machine of their own, and Chromium
#   rust   makes sure of cargo, clippy and rustfmt of Rust 1.90 or later; installs none of them
#   torch25  torch 2.5 into .venv/torch25, the oldest that the pure-Python wheel takes
#   comfyui  what ComfyUI 0.33.0 imports beside torch (0.9 GB), into .venv/comfyui; in CI Chromium
#   cuda   nvcc 13.0 from PyPI, into .venv/cuda; no GPU and no driver needed
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(g++ make git ccache mold pkg-config ca-certificates python3 python3-venv
  libhwy-dev nlohmann-json3-dev libcli11-dev libasio-dev libgtest-dev)
fuzz_packages=(clang)

die() { echo "setup: $*" >&2; exit 1; }

apt_install() {
  local missing=() package
  command -v dpkg-query >/dev/null || {
    echo "setup: no dpkg here, so make sure of these Debian packages' equivalents: $*" >&2
    return
  }
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; } ||
      die "missing packages; as root run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  echo "setup: apt-get install ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get failed; run by hand: apt-get install ${missing[*]}"
}

# Rust comes from rustup, which asks where and how; Debian's is too old. The crates compile from 1.80 and
# 1.88 on (rust-version); packing one that needs another takes cargo of 1.90.
check_rust() {
  local found
  found=$(cargo --version 2>/dev/null | cut -d' ' -f2) ||
    die "no cargo in PATH: install Rust 1.90 or later with clippy and rustfmt from https://rustup.rs"
  [ "$(printf '%s\n' 1.90 "$found" | sort -V | head -n 1)" = 1.90 ] ||
    die "cargo is $found; Rust 1.90 or later is needed: rustup update stable"
  cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 ||
    die "no clippy or rustfmt beside cargo: rustup component add clippy rustfmt"
}

make_venv() {
  [ -x .venv/bin/pip ] && .venv/bin/python -c '' 2>/dev/null && return
  rm -rf .venv
  python3 -m venv .venv || die "python3 -m venv failed; install python3-venv"
}

# pip_install NAME [pip options]: skipped when NAME's requirements are those installed last time.
pip_install() {
  local name=$1 list=tools/requirements/$1.txt stamp=.venv/.$1.sha256 hash
  shift
  hash=$(cat "$list" tools/requirements/constraints.txt | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ] && return
  echo "setup: installing $list into .venv"
  .venv/bin/pip install -q --disable-pip-version-check --no-input \
    -c tools/requirements/constraints.txt -r "$list" "$@" || die "pip could not install $list"
  echo "$hash" >"$stamp"
}

# A folder of its own: ComfyUI pins another comfy-kitchen than the tests compare with.
install_comfyui() {
  local list=tools/requirements/comfyui.txt target=.venv/comfyui hash
  hash=$(sha256sum <"$list")
  [ "$(cat $target/.requirements.sha256 2>/dev/null)" = "$hash" ] && return
  echo "setup: installing $list into $target"
  rm -rf $target $target.part
  .venv/bin/pip install -q --disable-pip-version-check --no-input --no-deps --target $target.part \
    -r "$list" || die "pip could not install $list"
  echo "$hash" >$target.part/.requirements.sha256
  mv $target.part $target
}

# For tests of pages. Elsewhere than in CI the machine's own Chromium serves, or the tests are skipped.
install_browser() {
  pip_install browser
  [ -z "${CI:-}" ] || (apt_install chromium-headless-shell) ||
    echo "setup: the tests that look at pages will fail" >&2
}

apt_install "${build_packages[@]}"
make_venv
pip_install build
for part in "$@"; do
  case $part in
    build) ;;
    test) pip_install lint; pip_install test ;;
    lint) pip_install lint ;;
    wheel) pip_install wheel ;;
    fuzz) apt_install "${fuzz_packages[@]}" ;;
    cuda) pip_install cuda --target .venv/cuda --upgrade --no-deps ;;
    torch25) [ -d .venv/torch25 ] || { echo "setup: torch 2.5 into .venv/torch25"; tools/torch25.sh; } ;;
    docs) pip_install docs ;;
    comfyui) install_comfyui; install_browser ;;
    lab)
      pip_install lab
      install_browser
      [ -z "${CI:-}" ] || (apt_install openssh-client openssh-server) ||
        echo "setup: the workbench's tests over SSH will fail" >&2
      ;;
    rust) check_rust ;;
    *) die "unknown part '$part'; parts are build, lint, test, wheel, fuzz, cuda, torch25, docs, lab, rust, comfyui" ;;
  esac
done
