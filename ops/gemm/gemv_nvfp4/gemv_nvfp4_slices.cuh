// gemv_nvfp4 by byte dot products.
// Map      A CTA takes rows of a batch, four at a time; each of its warps has 1,024 columns, 32 of each
//          lane, whose part of b stays in registers while the rows pass. 4 k rows are neighbours, or,
//          where scales are swizzled, 32 apart: then one line has the scales of all four.
// Decoding Twice an E2M1 value is a whole number: PRMT looks four sizes up in a table of eight bytes,
//          with the codes as selectors. One with a sign gives 0, so that the codes give the positive
//          ones' sizes and the codes with all signs turned the negative ones'. 11 instructions for 8
//          products: two PRMT and two DP4A for four.
// Traffic  a and its scales once; b and its scales once a CTA, from the L2.
// Numerics A block's sum is whole and exact; its scales and all that follows are f32: a lane's two
//          blocks, a tree over the warp, the warps in order. Two runs give the same bits.
// Overlap  The rows' loads are under way while b is decoded, and those of the other warps, 32 a
//          multiprocessor, while one computes.
// Needs    K % 32 == 0, rows and batches of codes 16 bytes apart, scales at even addresses.
#pragma once

#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_job.cuh"

namespace pestle::ops::gemv_nvfp4 {

inline constexpr int kSliceWarps = 16;  // of a CTA, at most
inline constexpr int kQuad = 4;         // rows that a warp has at once
inline constexpr int kMostQuads = 16;   // of a CTA
inline constexpr int kLaneColumns = 32;
inline constexpr int kSlice = 32 * kLaneColumns;  // columns of a warp
inline constexpr int kResidentWarps = 32;         // of a multiprocessor

// Quads of a batch. Of swizzled scales a tile of 128 rows has 32, as long as it has rows for them.
inline int64_t quads_of(int64_t rows, bool swizzled) {
  if (!swizzled) return (rows + kQuad - 1) / kQuad;
  return rows / 128 * 32 + (rows % 128 < 32 ? rows % 128 : 32);
}

#ifdef __CUDACC__

inline constexpr uint32_t kSigns = 0x88888888u;

// Twice the sizes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of the lower four codes of a word, where they have no sign.
__device__ __forceinline__ uint32_t positive(uint32_t codes) {
  uint32_t sizes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(sizes) : "r"(0x03020100u), "r"(0x0C080604u), "r"(codes));
  return sizes;
}

// 32 codes of a row and their two scales.
struct LanePart {
  uint4 codes;
  uint16_t scales;

  __device__ __forceinline__ LanePart(const char* code, const uint8_t* scale)
      : codes(__ldcs(reinterpret_cast<const uint4*>(code))),
        scales(__ldcs(reinterpret_cast<const uint16_t*>(scale))) {}
  // Asked for here, not where it is used.
  __device__ __forceinline__ void hold() {
    asm volatile("" : "+r"(codes.x), "+r"(codes.y), "+r"(codes.z), "+r"(codes.w), "+h"(scales));
  }
  __device__ __forceinline__ uint32_t word(int i) const {
    return i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
  }
  __device__ __forceinline__ float2 factors() const {
    const uint32_t two = cuda::warp::widen_e4m3(scales).x;
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  }
};

// A lane's columns of b: twice the values, as signed bytes, and a quarter of the scales; zeros for
// columns past the end.
struct LaneVector {
  uint32_t values[8] = {};
  float2 factors = {0, 0};

  __device__ __forceinline__ void set(const LanePart& part) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t codes = part.word(i / 2) >> (i % 2 * 16);
      values[i] = __vsub4(positive(codes), positive(codes ^ kSigns));
    }
    factors = part.factors();
    factors.x *= 0.25f, factors.y *= 0.25f;
  }
  // Four times the sum of a block.
  __device__ __forceinline__ float dot(const LanePart& a, int block) const {
    int above = 0, below = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = a.word(block * 2 + i / 2), turned = codes ^ kSigns;
      const int b = static_cast<int>(values[block * 4 + i]);
      above = __dp4a(static_cast<int>(positive(codes >> (i % 2 * 16))), b, above);
      below = __dp4a(static_cast<int>(positive(turned >> (i % 2 * 16))), b, below);
    }
    return static_cast<float>(above - below);
  }
  __device__ __forceinline__ float times(const LanePart& a) const {
    const float2 own = a.factors();
    return __fmaf_rn(dot(a, 1), own.y * factors.y, dot(a, 0) * (own.x * factors.x));
  }
};

// The lanes' sums of four values: value i in lanes 8 i to 8 i + 7.
__device__ __forceinline__ float sum_quad(const float (&v)[kQuad]) {
  const auto exchange = [](bool upper, float low, float high, int step) {
    return (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, step);
  };
  const bool upper = threadIdx.x & 16;
  const float even = exchange(upper, v[0], v[2], 16), odd = exchange(upper, v[1], v[3], 16);
  float sum = exchange(threadIdx.x & 8, even, odd, 8);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

template <bool kSwizzled>
__device__ __forceinline__ int64_t row_of(int64_t quad, int i) {
  return kSwizzled ? quad / 32 * 128 + quad % 32 + 32 * i : quad * kQuad + i;
}

// base + n * by, in one instruction, where the compiler would take 64-bit factors.
template <class T>
__device__ __forceinline__ const T* at(const T* base, uint32_t n, uint32_t by) {
  const T* to;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(to) : "r"(n), "r"(by), "l"(base));
  return to;
}

// Where a lane's columns lie. Rows past the end read the last one again; swizzled scales have such rows.
template <bool kSwizzled>
struct LaneColumns {
  const char* codes;      // of row 0
  const uint8_t* scales;  // of row 0
  uint32_t code_row,
      scale_row;  // bytes from a row to the next; of swizzled scales from a tile of 128
  int last;

  __device__ LaneColumns(const Job& job, int64_t batch, int64_t column)
      : codes(job.a + batch * job.a_batch + column / 2),
        scales(job.scale_a.at(batch, 0, column / kBlock)),
        code_row(static_cast<uint32_t>(job.a_row)),
        scale_row(static_cast<uint32_t>(kSwizzled ? (job.scale_a.columns + 3) / 4 * 512
                                                  : job.scale_a.row_bytes)),
        last(static_cast<int>(job.rows - 1)) {}
  __device__ __forceinline__ LanePart part(int quad, int i) const {
    const auto row = static_cast<uint32_t>(min(static_cast<int>(row_of<kSwizzled>(quad, i)), last));
    const uint8_t* scale = kSwizzled ? at(scales, quad / 32, scale_row) + quad % 32 * 16 + i * 4
                                     : at(scales, row, scale_row);
    return LanePart(at(codes, row, code_row), scale);
  }
};

// A warp's sums of quads [first, first + count) over its columns, into `sums` of its own.
template <bool kSwizzled>
__device__ void sum_slices(const Job& job, int64_t batch, int first, int count, int warp, int warps,
                           float (*sums)[kSliceWarps]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t slice = warp; slice * kSlice < job.k; slice += warps) {
    const int64_t own = slice * kSlice + lane * kLaneColumns, column = own < job.k ? own : 0;
    const LaneColumns<kSwizzled> columns(job, batch, column);
    LanePart b(job.b + batch * job.b_batch + column / 2, job.scale_b.at(batch, 0, column / kBlock));
    b.hold();
    LaneVector vector;
#pragma unroll 1
    for (int quad = 0; quad < count; ++quad) {
      const LanePart parts[kQuad] = {columns.part(first + quad, 0), columns.part(first + quad, 1),
                                     columns.part(first + quad, 2), columns.part(first + quad, 3)};
      if (quad == 0 && own < job.k) vector.set(b);
      float dots[kQuad];
#pragma unroll
      for (int i = 0; i < kQuad; ++i) dots[i] = vector.times(parts[i]);
      const float sum = sum_quad(dots);
      if (lane % 8 == 0) {
        float& to = sums[quad * kQuad + lane / 8][warp];
        to = slice < warps ? sum : to + sum;
      }
    }
  }
}

// `job.row_groups`: CTAs of a batch; `job.quads`: of one.
template <bool kSwizzled>
__global__ void __launch_bounds__(32 * kSliceWarps, kResidentWarps / kSliceWarps)
    gemv_slices(const __grid_constant__ Job job, int64_t quads) {
  __shared__ float sums[kMostQuads * kQuad][kSliceWarps];
  const int warps = static_cast<int>(blockDim.x / 32);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int64_t batch = blockIdx.x / job.row_groups;
  const int first = static_cast<int>(blockIdx.x % job.row_groups * job.quads);
  const int count = static_cast<int>(min(job.quads, quads - first));
  sum_slices<kSwizzled>(job, batch, first, count, warp, warps, sums);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * kQuad;
       i += static_cast<int>(blockDim.x)) {
    const int64_t row = row_of<kSwizzled>(first + i / kQuad, i % kQuad);
    if (row >= job.rows) continue;
    float sum = 0;
    for (int w = 0; w < warps && job.k > 0; ++w) sum += sums[i][w];
    store_result(job.out, job.alpha, batch, row, sum);
  }
}

#endif  // __CUDACC__

}  // namespace pestle::ops::gemv_nvfp4
