// The Hadamard rotation on CUDA: formats::hadamard_rotate, the same sums in the same order.
// A warp rotates a piece of 512 elements (1024 for groups of 1024), 16 neighbours a lane in each
// chunk of 512. Distances 1 and 4 lie within a lane; one exchange through the warp's own shared
// memory turns to a layout in which those of 16 and 64 do (and of 4 neighbours for groups of 64);
// distance 256 is between two lanes. A group never leaves its warp, so __syncwarp is enough.
#pragma once

#include <type_traits>

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "core/dtype.h"
#include "formats/hadamard.h"

namespace pestle::ops {

inline constexpr int kLaneRun = 16;  // neighbours of a lane
inline constexpr int kChunk = 32 * kLaneRun;

template <int kN>
inline constexpr int kRotateChunks = kN == 1024 ? 2 : 1;
// Floats of shared memory of a warp: a chunk, and a gap after each 256 against bank conflicts.
inline constexpr int kRotateFloats = kChunk + 32;

inline constexpr int kAnyColumns = 1024;
inline constexpr int kAnyThreads =
    256;  // of kernels that take any strides, 1024 columns a thread block
inline constexpr int kAnyEach = kAnyColumns / kAnyThreads;  // of a thread: every 256th from its own

#ifdef __CUDACC__

// How many of a thread's kAnyEach elements of a piece there are, of `count` that the block has.
__device__ inline int any_count(int64_t count) {
  const int64_t left = count - static_cast<int>(threadIdx.x);
  return left <= 0                          ? 0
         : left > kAnyColumns - kAnyThreads ? kAnyEach
                                            : static_cast<int>(left - 1) / kAnyThreads + 1;
}
// Elements [first, first + count) of a row to v.
__device__ inline void load_piece(const cuda::AnyTensor& t, int64_t row, int64_t first, int count,
                                  float* v) {
  float own[kAnyEach];
  const int have = any_count(count);
  cuda::AnyRow(t, row).load_each(first + threadIdx.x, kAnyThreads, have, own);
#pragma unroll
  for (int k = 0; k < kAnyEach; ++k) {
    if (k < have) v[threadIdx.x + k * kAnyThreads] = own[k];
  }
}
// And back.
__device__ inline void store_piece(const cuda::AnyTensor& t, int64_t row, int64_t first, int count,
                                   const float* v) {
  const cuda::AnyRow to(t, row);
  for (int i = threadIdx.x; i < count; i += kAnyThreads) to.store(first + i, v[i]);
}

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

// kAnyZero: signs of zeros may differ from the rule's, which saves one addition of 11: b - a is
// taken as -(a - b). They do so only where an operand is -0.
template <bool kAnyZero = false>
__device__ inline void butterfly(float& a, float& b, float& c, float& d) {
  const float sum = a + b;
  const float difference = a - b;
  const float v0 = (sum + c) - d;
  const float v1 = (sum - c) + d;
  const float v2 = (difference + c) + d;
  const float v3 = (kAnyZero ? c - difference : (b - a) + c) + d;
  a = v0;
  b = v1;
  c = v2;
  d = v3;
}

// Stages of distance kStep and 4 * kStep among 16 values, the second if kBoth.
template <bool kBoth, bool kAnyZero = false>
__device__ inline void butterflies(float (&v)[kLaneRun]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    butterfly<kAnyZero>(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  }
  if constexpr (kBoth) {
#pragma unroll
    for (int i = 0; i < 4; ++i) butterfly<kAnyZero>(v[i], v[i + 4], v[i + 8], v[i + 12]);
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

// The strided layout of a chunk, from the memory that put_run has filled, and back.
template <int kN>
__device__ inline void get_strided(float* shared, int lane, float (&v)[kLaneRun]) {
#pragma unroll
  for (int k = 0; k < (kN == 64 ? 4 : kLaneRun); ++k) {
    if constexpr (kN == 64) {
      const float4 four = *reinterpret_cast<const float4*>(strided_quad(shared, lane, k));
      v[4 * k] = four.x;
      v[4 * k + 1] = four.y;
      v[4 * k + 2] = four.z;
      v[4 * k + 3] = four.w;
    } else {
      v[k] = *strided(shared, lane, k);
    }
  }
}
template <int kN>
__device__ inline void put_strided(float* shared, int lane, const float (&v)[kLaneRun]) {
#pragma unroll
  for (int k = 0; k < (kN == 64 ? 4 : kLaneRun); ++k) {
    if constexpr (kN == 64) {
      *reinterpret_cast<float4*>(strided_quad(shared, lane, k)) =
          make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
    } else {
      *strided(shared, lane, k) = v[k];
    }
  }
}

// The stage of distance 256 over two chunks: lanes below 16 have a (first chunk) and c (second),
// the others b and d.
__device__ inline void butterfly_lanes(float& first, float& second) {
  const bool upper = threadIdx.x % 32 >= 16;
  const float other_first = __shfl_xor_sync(0xFFFFFFFFu, first, 16);
  const float other_second = __shfl_xor_sync(0xFFFFFFFFu, second, 16);
  const float a = upper ? other_first : first, b = upper ? first : other_first;
  const float c = upper ? other_second : second, d = upper ? second : other_second;
  const float sum = a + b;
  first = upper ? (sum - c) + d : (sum + c) - d;
  second = upper ? ((b - a) + c) + d : ((a - b) + c) + d;
}

// Rotates chunks of neighbours in place. The result is strided (see above) for kN >= 64 and not
// yet multiplied by the norm.
template <int kN, bool kAnyZero = false>
__device__ inline void warp_rotate(float (&v)[kRotateChunks<kN>][kLaneRun], float* shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < kRotateChunks<kN>; ++c) {
    butterflies<(kN >= 16), kAnyZero>(v[c]);
    if constexpr (kN >= 64) {
      __syncwarp();
      put_run(shared, lane, v[c]);
      __syncwarp();
      get_strided<kN>(shared, lane, v[c]);
      if constexpr (kN == 64) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          butterfly<kAnyZero>(v[c][i], v[c][i + 4], v[c][i + 8], v[c][i + 12]);
        }
      } else {
        butterflies<true, kAnyZero>(v[c]);
      }
    }
  }
  if constexpr (kN == 1024) {
#pragma unroll
    for (int k = 0; k < kLaneRun; ++k) butterfly_lanes(v[0][k], v[1][k]);
  }
}

// Stores want 16 bytes of neighbouring lanes side by side: after restore_runs half h of a chunk's
// run is 8 neighbours, from half_offset on.
__device__ inline int half_offset(int lane, int half) {
  return half * (kChunk / 2) + lane * cuda::kUnit;
}
template <int kN>
__device__ inline void restore_runs(float (&v)[2][kLaneRun], float* shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    __syncwarp();
    if constexpr (kN >= 64)
      put_strided<kN>(shared, lane, v[c]);
    else
      put_run(shared, lane, v[c]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int owner = i / 2 * 16 + lane / 2;
      const float4 four =
          *reinterpret_cast<const float4*>(shared + lane_quad(owner, lane % 2 * 2 + i % 2));
      v[c][4 * i] = four.x;
      v[c][4 * i + 1] = four.y;
      v[c][4 * i + 2] = four.z;
      v[c][4 * i + 3] = four.w;
    }
  }
}

// This lane's runs of two chunks, both loaded before either is used; zeros where there is none.
// The dtype is the same for all threads.
template <class T>
__device__ inline void load_runs_of(const char* x, const bool (&inside)[2],
                                    float (&v)[2][kLaneRun]) {
  typename T::Raw raw[2][2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      raw[c][half] =
          inside[c] ? T::load(x + (c * kChunk + half * cuda::kUnit) * T::kBytes) : T::zero();
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float y[cuda::kUnit];
      T::to_f32(raw[c][half], y);
      for (int i = 0; i < cuda::kUnit; ++i) v[c][8 * half + i] = y[i];
    }
  }
}
__device__ inline void load_runs(DType dtype, const char* x, const bool (&inside)[2],
                                 float (&v)[2][kLaneRun]) {
  switch (dtype) {
    case DType::kBF16: return load_runs_of<cuda::Bf16>(x, inside, v);
    case DType::kF16: return load_runs_of<cuda::F16>(x, inside, v);
    default: return load_runs_of<cuda::F32>(x, inside, v);
  }
}

// Rotates two chunks of neighbours; strided as above, without the norm.
template <int kN, bool kAnyZero = false>
__device__ inline void rotate_runs(float (&v)[2][kLaneRun], float* shared) {
  if constexpr (kRotateChunks<kN> == 2) {
    warp_rotate<kN, kAnyZero>(v, shared);
  } else {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float one[1][kLaneRun];
      for (int i = 0; i < kLaneRun; ++i) one[0][i] = v[c][i];
      warp_rotate<kN, kAnyZero>(one, shared);
      for (int i = 0; i < kLaneRun; ++i) v[c][i] = one[0][i];
    }
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
