// The Hadamard rotation on CUDA with 64 neighbours a lane, 2048 a warp: formats::hadamard_rotate
// for groups up to 256, the same sums in the same order. Distances 1, 4 and 16 lie within a lane;
// one pass through the warp's shared memory gives each lane the same eighths of four neighbouring
// lanes' runs, so that distance 64 does too, and leaves runs of 8 neighbours that four lanes have
// side by side. For outputs wider than inputs: a run of 64 inputs is read by one lane.
#pragma once

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/host/device.h"
#include "backends/cuda/host/launch.h"
#include "ops/quant/hadamard/hadamard.cuh"

namespace pestle::ops {

inline constexpr int kLongestGroup = 256;  // that lanes of 64 neighbours take
inline constexpr int kLongRun = 64;
inline constexpr int kLongPiece = 32 * kLongRun;
inline constexpr int kLongQuads = kLongPiece / 8;  // float4 of a warp's shared memory: 4 KiB

inline constexpr int kLongWarps = 8;  // of a row's thread block: 16384 columns

// Kernels of 128 registers a thread: 16 warps a multiprocessor. A thread block of `warps`, or a
// warp, goes on to the next row or piece, whose copy to shared memory is under way meanwhile. So
// many rows that the first copy does not count, few enough that all end together: of two thread
// blocks on a multiprocessor one runs ahead, and with a fixed half of the rows each the other was
// left alone at the end (89 % of the warps in the mean).
inline constexpr int kResidentWarps = 16;
inline int rows_each(const Call& call, int warps, int64_t rows) {
  const int64_t at_once = static_cast<int64_t>(std::max(1, kResidentWarps / warps)) *
                          cuda::multiprocessors(cuda::device_index(call));
  return static_cast<int>(std::clamp<int64_t>(rows / at_once / 12, 1, 8));
}

#ifdef __CUDACC__

// Where unit u of a lane lies after rotate_long_runs: unit 2 * m + h begins at position 32 * h +
// 8 * (lane % 4) of member m of the lane's group of 256.
__device__ inline int long_run_offset(int lane, int u) {
  return lane / 4 * 256 + u / 2 * 64 + u % 2 * 32 + lane % 4 * 8;
}

// The same as a place of unit 0 and what each unit adds, a constant.
__device__ inline constexpr int long_run_step(int u) { return u / 2 * 64 + u % 2 * 32; }

// Eight values of a unit to memory by plain stores, which are 1 % faster than evict-first ones.
template <class Raw>
__device__ inline void put_plain(char* p, const Raw& raw) {
  const auto* words = reinterpret_cast<const uint4*>(&raw);
#pragma unroll
  for (unsigned i = 0; i < sizeof(Raw) / 16; ++i) reinterpret_cast<uint4*>(p)[i] = words[i];
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
// first half of each run, which becomes the units of even number; kGroups: to four whole groups of
// 16, one of each lane of four. Quad i of lane l's half lies at
// l * 8 + (i ^ f(l)), where f makes eight neighbouring lanes meet no bank twice, neither when each
// writes its quad i nor when two groups of four read quad 2 * j + i of one member each. `shared`
// lies at a multiple of 128 bytes.
template <bool kGroups = false>
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
      const float* from = v + (kGroups ? i / 2 * 16 + 8 * h + i % 2 * 4 : 32 * h + 4 * i);
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

// 16 bytes from global to shared memory without a register between; kOffset from both addresses.
template <int kOffset>
__device__ inline void copy16_whole(uint32_t to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;"
               :
               : "r"(to), "l"(from), "n"(kOffset)
               : "memory");
}
// Up to 16 bytes, zeros behind `bytes`.
__device__ inline void copy16_async(char* to, const char* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void copy8_async(char* to, const char* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
}
// What the warp started has arrived, in all lanes.
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
}

// Starts the copy of a piece, `left` elements of which exist, to the warp's `stage`, kLongPiece
// elements. Lanes side by side copy 16 bytes each, and chunk k of lane l's run lies at l * 8 +
// (k ^ l % 8) of a region of 4 KiB (f32: of the second one from chunk 8 on): neither way do eight
// lanes meet a bank twice.
__device__ inline void start_long_runs(const char* x, int left, int x_bytes, char* stage) {
  const int lane = threadIdx.x % 32;
  const int chunk = lane % 8, owner = lane / 8;  // and every fourth after it
  char* even = stage + (owner * 8 + (chunk ^ owner)) * 16;
  char* odd = stage + (owner * 8 + (chunk ^ owner ^ 4)) * 16;
  if (x_bytes == 2 && left >= kLongPiece) {
    const char* from = x + lane * 16;
    const auto first = static_cast<uint32_t>(__cvta_generic_to_shared(even));
    const auto second = static_cast<uint32_t>(__cvta_generic_to_shared(odd));
    copy16_whole<0>(first, from);
    copy16_whole<512>(second, from);
    copy16_whole<1024>(first, from);
    copy16_whole<1536>(second, from);
    copy16_whole<2048>(first, from);
    copy16_whole<2560>(second, from);
    copy16_whole<3072>(first, from);
    copy16_whole<3584>(second, from);
    return;
  }
  const int bytes = min(left, kLongPiece) * x_bytes;
  for (int i = 0; i < 4 * x_bytes; ++i) {
    const int round = i / 8,
              from = (owner + i % 8 * 4) * (kLongRun * x_bytes) + round * 128 + chunk * 16;
    const bool inside = from < bytes;
    copy16_async((i % 2 == 0 ? even : odd) + i * 512, inside ? x + from : x, inside ? 16 : 0);
  }
}

// This lane's run of a piece that has arrived.
template <class T>
__device__ inline void take_long_runs_of(const char* stage, float (&v)[kLongRun]) {
  const int lane = threadIdx.x % 32;
  const auto chunk = [&](int k) {
    const int place = k / 8 * 256 + lane * 8 + (k % 8 ^ lane % 8);
    return *reinterpret_cast<const uint4*>(stage + place * 16);
  };
#pragma unroll
  for (int u = 0; u < kLongRun / cuda::kUnit; ++u) {
    typename T::Raw raw;
    if constexpr (T::kBytes == 4)
      raw = {chunk(2 * u), chunk(2 * u + 1)};
    else
      raw = {chunk(u)};
    float y[cuda::kUnit];
    T::to_f32(raw, y);
#pragma unroll
    for (int i = 0; i < cuda::kUnit; ++i) v[8 * u + i] = y[i];
  }
}
__device__ inline void take_long_runs(DType dtype, const char* stage, float (&v)[kLongRun]) {
  switch (dtype) {
    case DType::kBF16: return take_long_runs_of<cuda::Bf16>(stage, v);
    case DType::kF16: return take_long_runs_of<cuda::F16>(stage, v);
    default: return take_long_runs_of<cuda::F32>(stage, v);
  }
}

// The same of codes, kChunks times 16 bytes a lane: chunk k of lane l lies at l * kChunks + (k ^
// f(l)), where f keeps eight lanes' reads apart. wide: rows of codes begin at multiples of 16
// bytes, else of 8. `left`: bytes that exist.
template <int kChunks>
__device__ inline int code_chunk(int lane, int k) {
  return lane * kChunks + (k ^ (kChunks == 4 ? lane >> 1 & 3 : lane >> 2 & 1));
}
template <int kChunks>
__device__ inline void start_codes(const char* q, int left, bool wide, uint4* stage) {
  static_assert(kChunks == 2 || kChunks == 4);
  if (wide && left >= kChunks * 512) {
    // Chunk i * 32 + lane lies i * 512 bytes behind chunk `lane`.
    const int lane = threadIdx.x % 32;
    const uint4* own = stage + code_chunk<kChunks>(lane / kChunks, lane % kChunks);
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(own));
    copy16_whole<0>(to, q + lane * 16);
    copy16_whole<512>(to, q + lane * 16);
    if constexpr (kChunks == 4) {
      copy16_whole<1024>(to, q + lane * 16);
      copy16_whole<1536>(to, q + lane * 16);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int index = i * 32 + threadIdx.x % 32;
    auto* to =
        reinterpret_cast<char*>(stage + code_chunk<kChunks>(index / kChunks, index % kChunks));
    const int bytes = max(0, min(16, left - index * 16));
    const char* from = bytes > 0 ? q + index * 16 : q;
    if (wide) {
      copy16_async(to, from, bytes);
    } else {
      copy8_async(to, from, min(8, bytes));
      copy8_async(to + 8, bytes > 8 ? from + 8 : q, max(0, bytes - 8));
    }
  }
}
template <int kChunks>
__device__ inline void take_codes(const uint4* stage, uint4 (&words)[kChunks]) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    words[k] = stage[code_chunk<kChunks>(static_cast<int>(threadIdx.x % 32), k)];
  }
}

// v / scale as both its reciprocals round it to an integer: the low bits of `below`. Where that is
// not what `above` has, the quotient as the rule rounds it may lie on either side of a tie. Three
// ulps are more than the reciprocal and the quotient are off.
struct BothSides {
  float below, above;

  __device__ static BothSides of(const cuda::Divider& by) {
    const int bits = __float_as_int(by.reciprocal);
    return {__int_as_float(bits - 3), __int_as_float(bits + 3)};
  }
  __device__ uint32_t rounded(float v, uint32_t& differs) const {
    const uint32_t low = __float_as_uint(__fmaf_rn(v, below, 0x1.8p23f));
    differs |= low ^ __float_as_uint(__fmaf_rn(v, above, 0x1.8p23f));
    return low;
  }
};

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
