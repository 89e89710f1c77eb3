// The Hadamard rotation on CUDA: formats::hadamard_rotate, the same sums in the same order.
// A warp rotates a piece of 512 elements (1024 for groups of 1024), 16 neighbours a lane in each
// chunk of 512. Distances 1 and 4 lie within a lane; one exchange through the warp's own shared
// memory turns to a layout in which those of 16 and 64 do (and of 4 neighbours for groups of 64);
// distance 256 is between two lanes. A group never leaves its warp, so __syncwarp is enough.
#pragma once

#include "backends/cuda/device/elements.cuh"
#include "formats/hadamard.h"

namespace pestle::ops {

inline constexpr int kLaneRun = 16;  // neighbours of a lane
inline constexpr int kChunk = 32 * kLaneRun;

template <int kN>
inline constexpr int kRotateChunks = kN == 1024 ? 2 : 1;
// Floats of shared memory of a warp: a chunk, and a gap after each 256 against bank conflicts.
template <int kN>
inline constexpr int kRotateFloats = kN <= 16 ? 0 : kRotateChunks<kN> * (kChunk + 32);

inline constexpr int kAnyColumns = 1024;
inline constexpr int kAnyThreads = 256;  // of kernels that take any strides, 1024 columns a thread block

#ifdef __CUDACC__

// formats::hadamard_rotate on each group of n of `count` values in shared memory.
__device__ inline void rotate_shared(float* v, int count, int n) {
  for (int t = 1; t < n; t *= 4) {
    __syncthreads();
    for (int i = threadIdx.x; i < count / 4; i += kAnyThreads) {
      float* p = v + i / t * (4 * t) + i % t;
      const float a = p[0], b = p[t], c = p[2 * t], d = p[3 * t];
      p[0] = ((a + b) + c) - d;
      p[t] = ((a + b) - c) + d;
      p[2 * t] = ((a - b) + c) + d;
      p[3 * t] = ((b - a) + c) + d;
    }
  }
  __syncthreads();
  const float norm = formats::hadamard_norm(n);
  for (int i = threadIdx.x; i < count; i += kAnyThreads) v[i] *= norm;
  __syncthreads();
}

__device__ inline void butterfly(float& a, float& b, float& c, float& d) {
  const float sum = a + b;
  const float v0 = (sum + c) - d;
  const float v1 = (sum - c) + d;
  const float v2 = ((a - b) + c) + d;
  const float v3 = ((b - a) + c) + d;
  a = v0;
  b = v1;
  c = v2;
  d = v3;
}

// Stages of distance kStep and 4 * kStep among 16 values, the second if kBoth.
template <bool kBoth>
__device__ inline void butterflies(float (&v)[kLaneRun]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) butterfly(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  if constexpr (kBoth) {
#pragma unroll
    for (int i = 0; i < 4; ++i) butterfly(v[i], v[i + 4], v[i + 8], v[i + 12]);
  }
}

// Shared memory of a chunk: lane l's float4 number i lies at a place that keeps both its writes
// (16 neighbours) and reads (one of every lane) free of bank conflicts.
__device__ inline int lane_quad(int lane, int i) {
  return lane / 16 * 272 + (lane % 16 * 4 + (i ^ (lane >> 1 & 3))) * 4;
}
__device__ inline void put_run(float* shared, int lane, const float (&v)[kLaneRun]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float4*>(shared + lane_quad(lane, i)) =
        make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  }
}
__device__ inline void get_run(const float* shared, int lane, float (&v)[kLaneRun]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(shared + lane_quad(lane, i));
    v[4 * i] = four.x;
    v[4 * i + 1] = four.y;
    v[4 * i + 2] = four.z;
    v[4 * i + 3] = four.w;
  }
}

// Strided layout, groups of 256 and more: value k of lane l is element k * 16 + l % 16 of the
// 256 that begin at l / 16 * 256.
__device__ inline float* strided(float* shared, int lane, int k) {
  return shared + lane / 16 * 272 + (k * 4 + ((lane % 16 >> 2) ^ (k >> 1 & 3))) * 4 + lane % 4;
}
// Groups of 64: value 4 * k + i of lane l is element k * 16 + l % 4 * 4 + i of the 64 that begin at
// l / 4 * 64.
__device__ inline float* strided_quad(float* shared, int lane, int k) {
  return shared + lane_quad(lane / 4 * 4 + k, lane % 4);
}

// Rotates chunks of neighbours in place. The result is strided (see above) for kN >= 64 and not
// yet multiplied by the norm.
template <int kN>
__device__ inline void warp_rotate(float (&v)[kRotateChunks<kN>][kLaneRun], float* shared) {
  const int lane = threadIdx.x % 32;
  constexpr int kStep = kChunk + 32;
#pragma unroll
  for (int c = 0; c < kRotateChunks<kN>; ++c) butterflies<kN >= 16>(v[c]);
  if constexpr (kN >= 64) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kRotateChunks<kN>; ++c) put_run(shared + c * kStep, lane, v[c]);
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kRotateChunks<kN>; ++c) {
      if constexpr (kN == 64) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float4 four =
              *reinterpret_cast<const float4*>(strided_quad(shared + c * kStep, lane, k));
          v[c][4 * k] = four.x;
          v[c][4 * k + 1] = four.y;
          v[c][4 * k + 2] = four.z;
          v[c][4 * k + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) butterfly(v[c][i], v[c][i + 4], v[c][i + 8], v[c][i + 12]);
      } else {
#pragma unroll
        for (int k = 0; k < kLaneRun; ++k) v[c][k] = *strided(shared + c * kStep, lane, k);
        butterflies<true>(v[c]);
      }
    }
  }
  if constexpr (kN == 1024) {
    // Elements 256 apart: lanes below 16 have a (chunk 0) and c (chunk 1), the others b and d.
    const bool upper = lane >= 16;
#pragma unroll
    for (int k = 0; k < kLaneRun; ++k) {
      const float first = __shfl_xor_sync(0xFFFFFFFFu, v[0][k], 16);
      const float second = __shfl_xor_sync(0xFFFFFFFFu, v[1][k], 16);
      const float a = upper ? first : v[0][k], b = upper ? v[0][k] : first;
      const float c = upper ? second : v[1][k], d = upper ? v[1][k] : second;
      const float sum = a + b;
      v[0][k] = upper ? (sum - c) + d : (sum + c) - d;
      v[1][k] = upper ? ((b - a) + c) + d : ((a - b) + c) + d;
    }
  }
}

// From the strided layout back to neighbours.
template <int kN>
__device__ inline void warp_restore(float (&v)[kRotateChunks<kN>][kLaneRun], float* shared) {
  if constexpr (kN >= 64) {
    const int lane = threadIdx.x % 32;
    constexpr int kStep = kChunk + 32;
#pragma unroll
    for (int c = 0; c < kRotateChunks<kN>; ++c) {
      if constexpr (kN == 64) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          *reinterpret_cast<float4*>(strided_quad(shared + c * kStep, lane, k)) =
              make_float4(v[c][4 * k], v[c][4 * k + 1], v[c][4 * k + 2], v[c][4 * k + 3]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < kLaneRun; ++k) *strided(shared + c * kStep, lane, k) = v[c][k];
      }
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kRotateChunks<kN>; ++c) get_run(shared + c * kStep, lane, v[c]);
  }
}

template <class T>
__device__ inline void run_to_f32(const typename T::Raw (&raw)[2], float (&v)[kLaneRun]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[cuda::kUnit];
    T::to_f32(raw[half], x);
    for (int i = 0; i < cuda::kUnit; ++i) v[8 * half + i] = x[i];
  }
}

#endif  // __CUDACC__

// Calls body with an integral constant for the group size.
template <class Body>
inline auto with_hadamard(int n, Body&& body) {
  switch (n) {
    case 4: return body(std::integral_constant<int, 4>());
    case 16: return body(std::integral_constant<int, 16>());
    case 64: return body(std::integral_constant<int, 64>());
    case 256: return body(std::integral_constant<int, 256>());
    default: return body(std::integral_constant<int, 1024>());
  }
}

}  // namespace pestle::ops
