#!/usr/bin/env bash
# usage: tools/rust_check_cuda.sh: type-checks pestle-candle with its feature `cuda`, where there is
# neither CUDA nor a GPU. Candle compiles kernels of its own by nvcc on the way; for types they are
# not needed, so a stand-in leaves empty files.
set -euo pipefail
cd "$(dirname "$0")/../bindings/rust"
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
mkdir -p "$room"/{bin,include,lib64}
touch "$room/include/cuda.h"
cat >"$room/bin/nvcc" <<'NVCC'
#!/usr/bin/env bash
sources=()
while [ $# -gt 0 ]; do
  case $1 in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.48"; exit ;;
    -o) : >"$2"; shift ;;
    --output-directory) folder=$2; shift ;;
    *.cu) sources+=("$1") ;;
  esac
  shift
done
[ -z "${folder:-}" ] || for source in "${sources[@]}"; do : >"$folder/$(basename "${source%.cu}").ptx"; done
NVCC
chmod +x "$room/bin/nvcc"
export PATH=$room/bin:$PATH CUDA_HOME=$room CUDA_PATH=$room CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=90
cargo clippy --locked --quiet -p pestle-candle --features cuda --all-targets -- -D warnings
