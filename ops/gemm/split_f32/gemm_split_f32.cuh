// GEMMs of f32 matrices on sm_90's tensor cores, of narrow parts of both operands
// (ops/gemm/split_f32/split_parts.cuh): their mainloop, and what ops call.
//
//   Route::kF16, two parts   hi*hi + (hi*lo + lo*hi) * 2^-11            as exact as f32
//   Route::kF16, one part    hi*hi                                      as exact as TF32
//   Route::kBf16             six products of three parts                as exact as f32
//   Route::kBf16, for TF32   three products of two parts                more exact than TF32
//
// Map      As ops/gemm/sm90/gemm_warp_specialized.cuh: a persistent grid, a producer, two consumers
//          of 64 rows, two copy warps. A stage holds 64 of k of all parts, so that each part is
//          read once for all of its products. Tiles of 128 x 128; of one part 128 x 256.
// Numerics Tensor cores truncate what falls below the last bit of a running sum, which over long k
//          would cost more than f32 does. So the product of the first parts is begun anew each
//          stage (64 of k, four additions) and added in f32 registers, while the tensor cores
//          work on the other products; those are 2^-8 or 2^-11 of it and stay in one sum.
// Which    All routes are started; on the device each looks at what the splitting found and leaves
//          at once if it is not its turn, so that the host waits for nothing.
#pragma once

#include "ops/gemm/fallback/gemm_fallback.cuh"
#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// Bytes for contracts with symbols M, N, K of one matrix each: parts, factors, maxima, counts.
inline constexpr const char* kSplitF32Workspace =
    "4096 + 6*(M*K + K*N + 8*(M + N + 2*K)) + 12*(M+N)";

// One matrix of a stack.
inline Stack matrix_of(Stack s, int64_t index) {
  if (s.data)
    s.data = static_cast<const char*>(s.data) + index * s.batch_stride * dtype_bytes(s.dtype);
  s.batches = 1;
  return s;
}

// What serves: the two f16 parts, the first of them alone, or the bf16 parts whatever the range.
enum class SplitF32Parts { kExact, kOnePart, kBf16 };

// Why two f32 matrices are not split; empty: they are.
std::string refuse_split_f32(const Operands& o);

// One matrix of a batch: o and the epilogue are its own. `plain` is the whole call, for values that
// no parts represent; `batch` its matrix there.
Status start_split_f32_gemm(const Call& call, const char* name, const Operands& o,
                            const hopper::EpilogueArguments& epilogue, SplitF32Parts how,
                            const FallbackGemm& plain, int64_t batch);

}  // namespace pestle::ops
