#!/usr/bin/env bash
# usage: tests/consumer/run.sh BUILD_DIR: installs BUILD_DIR to a scratch prefix, moves it, and builds
# and runs a consumer against it by find_package (shared and static) and by pkg-config.
set -euo pipefail
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/prefix" # nothing may remember where it was installed
prefix=$scratch/prefix
library=$(find "$prefix" -name libpestle.so)

foreign=$(nm -D --defined-only "$library" | awk '$3 !~ /^pestle_/')
[ -z "$foreign" ] || { echo "libpestle.so exports more than pestle_*:"; echo "$foreign"; exit 1; }
readelf -d "$library" | grep >/dev/null 'SONAME.*libpestle\.so\.[0-9]' || { echo "no soname"; exit 1; }

cmake -G Ninja -S "$here" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/build"
"$scratch/build/use_pestle"
"$scratch/build/use_pestle_static"

export PKG_CONFIG_PATH=$(dirname "$library")/pkgconfig
# shellcheck disable=SC2046  # the flags are words
cc -std=c11 -c "$here/walk.c" -o "$scratch/walk.o" $(pkg-config --cflags pestle)
# shellcheck disable=SC2046
c++ -std=c++20 "$here/main.cpp" "$scratch/walk.o" -o "$scratch/by_pkg_config" \
  $(pkg-config --cflags --libs pestle) -Wl,-rpath,"$(dirname "$library")"
"$scratch/by_pkg_config"

if [ -x "$build/bin/pestle" ]; then
  "$prefix/bin/pestle" --version
fi
echo "consumer: ok"
