// Products by cuBLASLt, where the process can find it at run time: the library that is loaded
// already (PyTorch's), else libcublasLt.so.13 or .12 of the loader's path. Nothing is linked.
#pragma once

#include "ops/common/matmul_launch.cuh"

namespace pestle::ops {

inline constexpr const char* kCublasWorkspace = "33554432 + 256";

inline constexpr int kCublasAlgorithms = 8;  // that it is asked for

// What of the contract's epilogue cuBLASLt does in f32 before the one rounding.
struct CublasEpilogue {
  const TensorView* bias = nullptr;
  const Stack* residual = nullptr;
  // Decode scales of 8-bit floats: one each, or one a row of a and a column of b.
  const float *scale_a = nullptr, *scale_b = nullptr;
  bool scale_rows = false;
};

// Its version, 130100 for 13.1; 0: not found. Looked for once a process.
int cublas_version();
// Why cuBLASLt can't take the product; empty: it does.
std::string refuse_cublas(const Operands& o, const CublasEpilogue& e);
// `algorithm`: which of those that cuBLASLt names for the shape, best first, below
// kCublasAlgorithms.
Status run_cublas(const Call& call, const char* name, const Operands& o, const CublasEpilogue& e,
                  int algorithm);

}  // namespace pestle::ops
