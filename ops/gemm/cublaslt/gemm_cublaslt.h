// GEMMs by cuBLASLt, where the process can find it at run time: the library that is loaded
// already (PyTorch's), else libcublasLt.so.13 or .12 of the loader's path. Nothing is linked.
#pragma once

#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

#define PESTLE_CUBLAS_BYTES "33554432 + 256"
inline constexpr const char* kCublasWorkspace = PESTLE_CUBLAS_BYTES;

// The same for a contract with symbols M, N and K, and copies of decode scales.
#define PESTLE_CUBLAS_SCALED_BYTES \
  "33554432 + 2048 + 4*(M + N + (M + cdiv(N,128)) * (cdiv(K,128) + 4))"
inline constexpr const char* kCublasScaledWorkspace = PESTLE_CUBLAS_SCALED_BYTES;

// What the GEMM beneath an unfused epilogue may need (no less than split-K), where there is one.
#define PESTLE_UNFUSED_GEMM_BYTES \
  "if(gated == none && !has(gate) && !has(beta), 0, " PESTLE_CUBLAS_SCALED_BYTES ")"

// Decode scales of 8-bit floats: none, one each, one a row of a and a column of b, or one for 1 x
// 128 of a and 128 x 128 of b.
enum class CublasScales : int { kNone, kTensor, kRow, kBlock };

// How many algorithms it names at most.
inline int cublas_algorithms(CublasScales scales) {
  return scales == CublasScales::kRow || scales == CublasScales::kBlock ? 1 : kCublasAlgorithms;
}

// Scales in memory; distances in elements, 0: the same for all. One of a tensor is read where it
// is, as are those of rows that lie side by side from a multiple of 16 bytes on; others are copied.
struct ScalesAt {
  const float* data = nullptr;
  int64_t row = 0, step = 0;  // from row to row, from 128 of k to the next
};

// What of the contract's epilogue cuBLASLt does in f32 before the one rounding.
struct CublasEpilogue {
  const TensorView* bias = nullptr;
  const Stack* residual = nullptr;
  CublasScales scales = CublasScales::kNone;
  ScalesAt a, b;
  bool fast = false;  // 8-bit floats: the tensor cores add all of k
};

// Its version, 130100 for 13.1; 0: not found. Looked for once a process.
int cublas_version();
// Why cuBLASLt can't take the GEMM; empty: it does.
std::string refuse_cublas(const Operands& o, const CublasEpilogue& e);
// The same of a GEMM of 8-bit floats, by the epilogue's arguments, of which alpha is the first.
std::string refuse_cublas_quantized(const Call& call, int alpha);
// Whether this version's sums of 8-bit floats that are not fast are begun anew every 128 of k or
// less: measured, since its documentation says "periodically".
bool cublas_is_accurate(int version);
// `algorithm`: which of those that cuBLASLt names for the shape, best first, below
// kCublasAlgorithms.
Status run_cublas(const Call& call, const char* name, const Operands& o, CublasEpilogue e,
                  int algorithm);

}  // namespace pestle::ops
