// The Hadamard rotation on CUDA with 64 neighbours a lane, 2048 a warp: formats::hadamard_rotate
// for groups up to 256, the same sums in the same order. Distances 1, 4 and 16 lie within a lane;
// one pass through the warp's shared memory gives each lane the same eighths of four neighbouring
// lanes' runs, so that distance 64 does too, and leaves runs of 8 neighbours that four lanes have
// side by side. For outputs wider than inputs: a run of 64 inputs is read by one lane.
#pragma once

#include "ops/common/hadamard.cuh"

namespace pestle::ops {

inline constexpr int kLongestGroup = 256;  // that lanes of 64 neighbours take
inline constexpr int kLongRun = 64;
inline constexpr int kLongPiece = 32 * kLongRun;
inline constexpr int kLongQuads = kLongPiece / 8;  // float4 of a warp's shared memory: 4 KiB

inline constexpr int kLongWarps = 8;  // of a row's thread block: 16384 columns, 32 KiB

#ifdef __CUDACC__

// Where unit u of a lane lies after rotate_long_runs: unit 2 * m + h begins at position 32 * h +
// 8 * (lane % 4) of member m of the lane's group of 256.
__device__ inline int long_run_offset(int lane, int u) {
  return lane / 4 * 256 + u / 2 * 64 + u % 2 * 32 + lane % 4 * 8;
}

// Stage of distance kStep within a run.
template <int kStep, bool kAnyZero>
__device__ inline void long_butterflies(float (&v)[kLongRun]) {
#pragma unroll
  for (int i = 0; i < kLongRun / 4; ++i) {
    const int first = i / kStep * (4 * kStep) + i % kStep;
    butterfly<kAnyZero>(v[first], v[first + kStep], v[first + 2 * kStep], v[first + 3 * kStep]);
  }
}

// From 64 neighbours a lane to eight units of 8, as long_run_offset says, in two rounds: first the
// first half of each run, which becomes the units of even number. Quad i of lane l's half lies at
// l * 8 + (i ^ f(l)), where f makes eight neighbouring lanes meet no bank twice, neither when each
// writes its quad i nor when two groups of four read quad 2 * j + i of one member each. `shared`
// lies at a multiple of 128 bytes.
__device__ inline void exchange_long_runs(float (&v)[kLongRun], float4* shared) {
  const int lane = threadIdx.x % 32;
  const int group = lane / 4, part = lane % 4;
  const int f = part << 1 | (group & 1);
  float first[kLongRun / 2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* from = v + 32 * h + 4 * i;
      shared[(lane * 8 + f) ^ i] = make_float4(from[0], from[1], from[2], from[3]);
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 quad = shared[((group * 32 + f) ^ (m << 1 | i)) + m * 8];
        // v is still needed until the second round is written.
        float* to = h == 0 ? first + 8 * m + 4 * i : v + 16 * m + 8 + 4 * i;
        to[0] = quad.x;
        to[1] = quad.y;
        to[2] = quad.z;
        to[3] = quad.w;
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[16 * m + i] = first[8 * m + i];
  }
}

// Rotates groups of kN up to 256, without the norm; kAnyZero as in hadamard.cuh.
template <int kN, bool kAnyZero>
__device__ inline void rotate_long_runs(float (&v)[kLongRun], float4* shared) {
  static_assert(kN <= 256);
  long_butterflies<1, kAnyZero>(v);
  if constexpr (kN >= 16) long_butterflies<4, kAnyZero>(v);
  if constexpr (kN >= 64) long_butterflies<16, kAnyZero>(v);
  exchange_long_runs(v, shared);
  if constexpr (kN >= 256) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      butterfly<kAnyZero>(v[i], v[16 + i], v[32 + i], v[48 + i]);
    }
  }
}

// Sixteen bytes from global to shared memory without a register between; zeros if not `inside`.
__device__ inline void copy16_async(char* to, const char* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}

// This lane's run of a piece whose first `left` elements exist. Lanes side by side load 16 bytes
// each, and chunk k of lane l's run lies at l * 8 + (k ^ l % 8): neither way do eight lanes meet a
// bank twice. kWhole: the whole piece exists.
template <class T, bool kWhole>
__device__ inline void load_long_runs_of(const char* x, int left, char* shared,
                                         float (&v)[kLongRun]) {
  constexpr int kElements = 16 / T::kBytes;  // of a chunk
  constexpr int kRounds = T::kBytes / 2;     // 4 KiB each
  const int lane = threadIdx.x % 32;
  const int chunk = lane % 8, owner = lane / 8;  // and every fourth after it
  char* even = shared + (owner * 8 + (chunk ^ owner)) * 16;
  char* odd = shared + (owner * 8 + (chunk ^ owner ^ 4)) * 16;
  const int first = owner * kLongRun + chunk * kElements;
  const char* from = x + first * T::kBytes;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int element = 4 * i * kLongRun + 8 * round * kElements;
      const bool inside = kWhole || first + element < left;
      copy16_async((i % 2 == 0 ? even : odd) + i * 512, inside ? from + element * T::kBytes : x,
                   inside);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#pragma unroll
    for (int u = 0; u < 8 * kElements / cuda::kUnit; ++u) {
      const auto quad = [&](int k) {
        return *reinterpret_cast<const uint4*>(shared + (lane * 8 + (k ^ lane % 8)) * 16);
      };
      typename T::Raw raw;
      if constexpr (T::kBytes == 4)
        raw = {quad(2 * u), quad(2 * u + 1)};
      else
        raw = {quad(u)};
      float y[cuda::kUnit];
      T::to_f32(raw, y);
#pragma unroll
      for (int i = 0; i < cuda::kUnit; ++i) v[8 * round * kElements + 8 * u + i] = y[i];
    }
  }
}
__device__ inline void load_long_runs(DType dtype, const char* x, int left, char* shared,
                                      float (&v)[kLongRun]) {
  if (dtype == DType::kBF16 && left >= kLongPiece) {
    return load_long_runs_of<cuda::Bf16, true>(x, left, shared, v);
  }
  switch (dtype) {
    case DType::kBF16: return load_long_runs_of<cuda::Bf16, false>(x, left, shared, v);
    case DType::kF16: return load_long_runs_of<cuda::F16, false>(x, left, shared, v);
    default: return load_long_runs_of<cuda::F32, false>(x, left, shared, v);
  }
}

// The larger, NaN if one is.
__device__ inline float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// What rotated groups are multiplied by.
template <int kN>
inline constexpr float kHadamardNorm =
    kN == 4 ? 0.5f : (kN == 16 ? 0.25f : (kN == 64 ? 0.125f : (kN == 256 ? 0.0625f : 0.03125f)));

#endif  // __CUDACC__

}  // namespace pestle::ops
