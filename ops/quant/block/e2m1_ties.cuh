// E2m1Moves on a device: made once a warp, of the global scale that all its blocks share.
#pragma once

#include "backends/cuda/device/tensor/elements.cuh"
#include "ops/quant/block/e2m1_ties.h"

namespace pestle::ops {

#ifdef __CUDACC__

inline constexpr uint32_t kPromotion = 0x00010001u;  // of a pair of f16

// By whole warps: one tie of one significand is a lane's. f32 x are never decided by products.
template <class T>
__device__ inline E2m1Moves e2m1_moves(float g) {
  if constexpr (T::kBytes == 4) {
    return {E2m1Moves::kFirst * E2m1Moves::kUndecided, 0};
  } else {
    constexpr int kLost = std::is_same_v<T, cuda::Bf16> ? 16 : 13;
    const unsigned lane = threadIdx.x % 32;
    const E2m1Tie tie =
        e2m1_tie<kLost>(static_cast<float>(8 + lane / 4) * g, static_cast<int>(2 * (lane % 4) + 1));
    return E2m1Moves::of(__ballot_sync(~0u, tie.near), __ballot_sync(~0u, tie.up),
                         __ballot_sync(~0u, tie.promotes), true);
  }
}

#endif

}  // namespace pestle::ops
