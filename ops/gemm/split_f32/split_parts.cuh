// f32 matrices as sums of narrow parts, for GEMMs on tensor cores
// (ops/gemm/split_f32/gemm_split_f32.cuh).
//
//   f16   x * 2^s = hi + lo * 2^-11, both rounded to nearest; 2^s brings the largest value of a row
//         of a, or of a column of b, to [2^14, 2^15).
//   bf16  x = high + middle + low, exactly.
//
// Map      Where neighbours belong to one scale (kRows): a CTA a row, which it reads twice, the
//          second time from the caches. Else (columns): 128 columns of a run of rows a CTA, first
//          largest values, then parts; integer atomics only, so that nothing depends on order.
// Traffic  x once (columns: twice), 2 bytes a part written.
// Range    Of elements at least 2^-28 of their row's largest, hi and lo keep 22 bits; of smaller
//          ones an error of 2^-51 of the largest remains. The f16 parts serve where no element is
//          that small, or where so many of both operands are at least 2^-12 of their largest that
//          an eighth of all products has two such factors: either keeps the error of each sum below
//          2^-22 of the sum of its terms' magnitudes. Else the bf16 parts serve, whose six products
//          are as near to exact; they want elements of 2^-100 to 2^120. What is left (NaN,
//          infinities, the ends of f32's range) is multiplied in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/host/launch.h"

namespace pestle::ops {

enum class Route : int { kF16, kBf16, kPlain };

// In the caller's memory, zeroed before each product.
struct SplitF32State {
  unsigned flags;
  int not_large[2];  // of a and b: the most elements of a row that are not large
  // The same of a sample: where it says that f16 parts won't do, they are not made.
  unsigned guessed_tiny;
  int guessed_not_large[2];
};
constexpr unsigned kNotF16 = 1;     // a largest value outside 2^-60 to 2^60
constexpr unsigned kNotBf16 = 2;    // bf16 parts are wanted, an element is outside 2^-100 to 2^120
constexpr unsigned kTinyParts = 4;  // an element below 2^-28 of its row's largest

// A matrix as `outer` lines of `inner` neighbours.
struct SplitF32Source {
  const float* data = nullptr;
  int64_t outer = 0, inner = 0, stride = 0;
  bool vectors = false;  // lines begin at multiples of 16 bytes
  int64_t k = 0;         // elements that share a scale
  bool rows = true;      // those of a line do; else those of a column
  char* parts = nullptr;
  int64_t line = 0;  // elements from a part's line to the next, a multiple of 8
  int64_t part = 0;  // elements from a part to the next
  int count = 2;     // of f16 parts; of bf16 ones one more
  float* factor = nullptr;
  uint32_t* largest = nullptr;  // columns: of each, zeroed before
  int* large = nullptr;         // columns: how many, zeroed before
  SplitF32State* state = nullptr;
  int which = 0;  // 0: a, 1: b
};

#ifdef __CUDACC__

__device__ inline bool gives_up_f16(const SplitF32State& s, int64_t k) {
  return s.guessed_tiny && int64_t{s.guessed_not_large[0]} + s.guessed_not_large[1] > k;
}
__device__ inline Route route_of(const SplitF32State& s, int64_t k) {
  if (s.flags & kNotBf16) return Route::kPlain;
  if ((s.flags & kNotF16) || gives_up_f16(s, k)) return Route::kBf16;
  const bool many = int64_t{s.not_large[0]} + s.not_large[1] <= k - k / 8 - 1;
  return (s.flags & kTinyParts) && !many ? Route::kBf16 : Route::kF16;
}

// 8 neighbours; those from `count` on are 0.
__device__ inline void load_eight(const float* p, bool vectors, int64_t count, float (&v)[8]) {
  if (vectors && count >= 8) {
    const float4 a = reinterpret_cast<const float4*>(p)[0];
    const float4 b = reinterpret_cast<const float4*>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < count ? p[i] : 0.0f;
}
__device__ inline uint32_t size_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }
__device__ inline uint32_t bits_of_power(int exponent) {
  return static_cast<uint32_t>(exponent + 127) << 23;
}

// The power of two of a row, and what its largest value says about the range.
struct SplitF32Scale {
  float up = 1, down = 1;
  uint32_t large_from = 0, tiny_below = 0;
  unsigned flags = 0;
};
__device__ inline SplitF32Scale scale_of(uint32_t largest) {
  SplitF32Scale s;
  if (largest == 0) return s;
  if (largest < bits_of_power(-60) || largest >= bits_of_power(61)) {
    s.flags |= kNotF16;
    return s;
  }
  const int exponent = static_cast<int>(largest >> 23) - 127;
  s.up = __uint_as_float(bits_of_power(14 - exponent));
  s.down = __uint_as_float(bits_of_power(exponent - 14));
  s.large_from = largest - (12u << 23);
  s.tiny_below = largest - (28u << 23);
  return s;
}

__device__ inline uint32_t pair_of(__half a, __half b) {
  return static_cast<uint32_t>(__half_as_ushort(a)) | static_cast<uint32_t>(__half_as_ushort(b))
                                                          << 16;
}

// One value's parts and marks.
__device__ inline void split_one(float x, float up, __half* hi, __half* lo) {
  const float scaled = x * up;
  *hi = __float2half_rn(scaled);
  *lo = __float2half_rn((scaled - __half2float(*hi)) * 2048.0f);
}
__device__ inline unsigned marks_of(float x, uint32_t tiny_below) {
  const uint32_t size = size_bits(x);
  return size != 0 && size < tiny_below ? kTinyParts : 0;
}
__device__ inline bool fits_bf16(float x) {
  const uint32_t size = size_bits(x);
  return size == 0 || (size >= bits_of_power(-100) && size < bits_of_power(120));
}
__device__ inline void store_parts(const SplitF32Source& s, int64_t offset, const __half (&hi)[8],
                                   const __half (&lo)[8]) {
  auto* to = reinterpret_cast<__half*>(s.parts) + offset;
  *reinterpret_cast<uint4*>(to) = make_uint4(pair_of(hi[0], hi[1]), pair_of(hi[2], hi[3]),
                                             pair_of(hi[4], hi[5]), pair_of(hi[6], hi[7]));
  if (s.count == 1) return;
  *reinterpret_cast<uint4*>(to + s.part) = make_uint4(pair_of(lo[0], lo[1]), pair_of(lo[2], lo[3]),
                                                      pair_of(lo[4], lo[5]), pair_of(lo[6], lo[7]));
}

constexpr int kSamples = 16;  // of each operand; and values a thread

// Samples: up to 4,096 values of a row, or 128 of each of 32 columns, a CTA.
__global__ void __launch_bounds__(256)
    guess_range_kernel(const __grid_constant__ SplitF32Source a,
                       const __grid_constant__ SplitF32Source b) {
  __shared__ uint32_t largest[32];
  __shared__ int large[32];
  const SplitF32Source& s = blockIdx.x < kSamples ? a : b;
  const bool rows = s.rows;
  const int64_t place = 2 * (blockIdx.x % kSamples) + 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int slot = rows ? 0 : lane;
  if (threadIdx.x < 32) largest[lane] = 0, large[lane] = 0;
  __syncthreads();
  const int count = rows ? static_cast<int>(min(s.inner, int64_t{4096})) : 128;
  const int64_t line = s.outer * place / (2 * kSamples);
  const int64_t column = s.inner * place / (2 * kSamples) + lane;
  float v[kSamples];
#pragma unroll
  for (int i = 0; i < kSamples; ++i) {
    const int of_row = i * 256 + threadIdx.x;
    const int64_t row = rows ? line : s.outer * (warp * kSamples + i) / 128;
    const bool exists = rows ? of_row < count : column < s.inner;
    v[i] = exists ? s.data[row * s.stride + (rows ? of_row : column)] : 0.0f;
  }
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kSamples; ++i) mine = max(mine, size_bits(v[i]));
  atomicMax(&largest[slot], mine);
  __syncthreads();
  const SplitF32Scale scale = scale_of(largest[slot]);
  int mine_large = 0;
  bool tiny = false;
#pragma unroll
  for (int i = 0; i < kSamples; ++i) {
    mine_large += size_bits(v[i]) >= scale.large_from && (!rows || i * 256 + threadIdx.x < count);
    tiny |= marks_of(v[i], scale.tiny_below) != 0;
  }
  atomicAdd(&large[slot], mine_large);
  if (__syncthreads_or(tiny) && threadIdx.x == 0) atomicOr(&a.state->guessed_tiny, 1u);
  if (threadIdx.x > (rows ? 0 : 31)) return;
  const int64_t few = int64_t{max(0, count - large[slot])} * s.k / count;
  atomicMax(&a.state->guessed_not_large[s.which], static_cast<int>(few));
}

__global__ void __launch_bounds__(256)
    split_f32_rows_kernel(const __grid_constant__ SplitF32Source s) {
  if (gives_up_f16(*s.state, s.k)) return;
  __shared__ uint32_t shared_largest;
  __shared__ int shared_large;
  const float* row = s.data + blockIdx.x * s.stride;
  if (threadIdx.x == 0) shared_largest = 0, shared_large = 0;
  __syncthreads();
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x * 8; i < s.inner; i += 2048) {
    float v[8];
    load_eight(row + i, s.vectors, s.inner - i, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, size_bits(v[j]));
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (threadIdx.x % 32 == 0) atomicMax(&shared_largest, largest);
  __syncthreads();
  const SplitF32Scale scale = scale_of(shared_largest);
  unsigned flags = scale.flags;
  int large = 0;
  for (int64_t i = threadIdx.x * 8; i < s.inner; i += 2048) {
    float v[8];
    load_eight(row + i, s.vectors, s.inner - i, v);
    __half hi[8], lo[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      split_one(v[j], scale.up, &hi[j], &lo[j]);
      flags |= marks_of(v[j], scale.tiny_below);
      large += i + j < s.inner && size_bits(v[j]) >= scale.large_from;
    }
    store_parts(s, blockIdx.x * s.line + i, hi, lo);
  }
  large = __reduce_add_sync(0xFFFFFFFFu, large);
  flags = __reduce_or_sync(0xFFFFFFFFu, flags);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared_large, large);
    if (flags) atomicOr(&s.state->flags, flags);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  s.factor[blockIdx.x] = scale.down;
  const int few = static_cast<int>(s.inner) - shared_large;
  if (few > 0) atomicMax(&s.state->not_large[s.which], few);
}

constexpr int kSplitF32Columns = 128;
constexpr int kSplitF32Run = 256;  // lines a CTA

__global__ void __launch_bounds__(256)
    largest_of_columns_kernel(const __grid_constant__ SplitF32Source s, int64_t column_blocks) {
  if (gives_up_f16(*s.state, s.k)) return;
  __shared__ uint32_t joined[kSplitF32Columns];
  const int64_t run = blockIdx.x / column_blocks;
  const int64_t column =
      (blockIdx.x - run * column_blocks) * kSplitF32Columns + threadIdx.x % 16 * 8;
  if (threadIdx.x < kSplitF32Columns) joined[threadIdx.x] = 0;
  __syncthreads();
  uint32_t largest[8] = {};
  const int64_t end = min(s.outer, (run + 1) * kSplitF32Run);
#pragma unroll 4
  for (int64_t row = run * kSplitF32Run + threadIdx.x / 16; row < end; row += 16) {
    float v[8];
    load_eight(s.data + row * s.stride + column, s.vectors, s.inner - column, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) largest[j] = max(largest[j], size_bits(v[j]));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) atomicMax(&joined[threadIdx.x % 16 * 8 + j], largest[j]);
  __syncthreads();
  const int64_t mine = (blockIdx.x - run * column_blocks) * kSplitF32Columns + threadIdx.x;
  if (threadIdx.x < kSplitF32Columns && mine < s.inner)
    atomicMax(&s.largest[mine], joined[threadIdx.x]);
}

__global__ void __launch_bounds__(256)
    split_f32_columns_kernel(const __grid_constant__ SplitF32Source s, int64_t column_blocks) {
  if (gives_up_f16(*s.state, s.k)) return;
  __shared__ int joined[kSplitF32Columns];
  const int64_t run = blockIdx.x / column_blocks;
  const int64_t first = (blockIdx.x - run * column_blocks) * kSplitF32Columns;
  const int64_t column = first + threadIdx.x % 16 * 8;
  if (threadIdx.x < kSplitF32Columns) joined[threadIdx.x] = 0;
  __syncthreads();
  SplitF32Scale scale[8];
  unsigned flags = 0;
  int large[8] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    scale[j] = scale_of(column + j < s.inner ? s.largest[column + j] : 0);
    flags |= scale[j].flags;
  }
  const int64_t end = min(s.outer, (run + 1) * kSplitF32Run);
#pragma unroll 2
  for (int64_t row = run * kSplitF32Run + threadIdx.x / 16; column < s.inner && row < end;
       row += 16) {
    float v[8];
    load_eight(s.data + row * s.stride + column, s.vectors, s.inner - column, v);
    __half hi[8], lo[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      split_one(v[j], scale[j].up, &hi[j], &lo[j]);
      flags |= marks_of(v[j], scale[j].tiny_below);
      large[j] += size_bits(v[j]) >= scale[j].large_from;
    }
    store_parts(s, row * s.line + column, hi, lo);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) atomicAdd(&joined[threadIdx.x % 16 * 8 + j], large[j]);
  flags = __reduce_or_sync(0xFFFFFFFFu, flags);
  if (threadIdx.x % 32 == 0 && flags) atomicOr(&s.state->flags, flags);
  __syncthreads();
  if (threadIdx.x < kSplitF32Columns && first + threadIdx.x < s.inner)
    atomicAdd(&s.large[first + threadIdx.x], joined[threadIdx.x]);
}

__global__ void __launch_bounds__(256)
    finish_columns_kernel(const __grid_constant__ SplitF32Source s) {
  const int64_t column = int64_t{blockIdx.x} * 256 + threadIdx.x;
  int few = 0;
  if (column < s.inner) {
    s.factor[column] = scale_of(s.largest[column]).down;
    few = static_cast<int>(s.outer) - s.large[column];
  }
  few = __reduce_max_sync(0xFFFFFFFFu, few);
  if (threadIdx.x % 32 == 0 && few > 0) atomicMax(&s.state->not_large[s.which], few);
}

// bf16 parts of both operands, where they are wanted, and whether they can be had.
__global__ void __launch_bounds__(256)
    split_f32_bf16_kernel(const __grid_constant__ SplitF32Source a,
                          const __grid_constant__ SplitF32Source b) {
  if (route_of(*a.state, a.k) != Route::kBf16) return;
  const int64_t units_a = (a.inner + 7) / 8 * a.outer;
  const int64_t units = units_a + (b.inner + 7) / 8 * b.outer;
  bool fits = true;
  for (int64_t unit = int64_t{blockIdx.x} * 256 + threadIdx.x; unit < units;
       unit += int64_t{gridDim.x} * 256) {
    const bool of_a = unit < units_a;
    const SplitF32Source& s = of_a ? a : b;
    const int64_t index = of_a ? unit : unit - units_a;
    const int64_t per_line = (s.inner + 7) / 8;
    const int64_t row = index / per_line;
    const int64_t column = (index - row * per_line) * 8;
    float v[8];
    load_eight(s.data + row * s.stride + column, s.vectors, s.inner - column, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) fits &= fits_bf16(v[j]);
    auto* to = reinterpret_cast<__nv_bfloat16*>(s.parts) + row * s.line + column;
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      if (p > s.count) break;
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
        words[j] = *reinterpret_cast<const uint32_t*>(&pair);
        v[2 * j] -= __uint_as_float(words[j] << 16);
        v[2 * j + 1] -= __uint_as_float(words[j] & 0xFFFF0000u);
      }
      *reinterpret_cast<uint4*>(to + p * s.part) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  if (!fits) atomicOr(&a.state->flags, kNotBf16);
}

#endif  // __CUDACC__

}  // namespace pestle::ops
