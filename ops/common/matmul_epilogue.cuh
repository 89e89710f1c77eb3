// What happens to accumulators before they are stored (ops/common/epilogue.h on a GPU):
// y = activation(acc * alpha + bias) + residual, in f32, one rounding.
//
// Map      64 columns of a consumer's 64 rows at a time. With nothing but a factor and a 16-bit
// result
//          that the copy engine takes, registers go to swizzled shared memory as 16 bits and out as
//          a box. Else they go there as f32, and each thread takes 8 neighbouring columns of 4
//          rows, so that residual and result move in whole lines.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/device/hopper.cuh"
#include "ops/common/matmul_hopper.cuh"

namespace pestle::cuda::hopper {

enum class Float : int { kF32, kBf16, kF16 };

// A matrix of any of the three dtypes; strides in elements.
struct FloatMatrix {
  const char* data = nullptr;
  Float dtype = Float::kF32;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  int64_t batch_stride = 0;
  bool aligned = false;  // 8 neighbouring columns from a multiple of 8 on are one or two vectors

  __host__ __device__ int element_bytes() const { return dtype == Float::kF32 ? 4 : 2; }
};

struct EpilogueSteps {
  const float* alpha = nullptr;
  FloatMatrix bias;  // one row
  FloatMatrix residual;
  FloatMatrix out;
  int activation = 0;  // ops::Activation
  int m = 0, n = 0;
};

struct EpilogueArguments : EpilogueSteps {
  CUtensorMap out_map;    // boxes of 64 rows x 64 columns, where by_boxes
  bool by_boxes = false;  // nothing but a factor, and the copy engine takes out
};

#if PESTLE_HOPPER

__device__ inline float half_of(uint32_t bits, Float dtype) {
  return dtype == Float::kBf16 ? __uint_as_float(bits << 16)
                               : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ inline uint32_t pack(float low, float high, Float dtype) {
  if (dtype == Float::kF16) {
    const __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&h);
  }
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// 8 neighbouring columns; those from `count` on are not touched.
__device__ inline void load_8(const FloatMatrix& t, int64_t offset, int count, float (&v)[8]) {
  const char* p = t.data + offset * t.element_bytes();
  if (t.aligned && count == 8) {
    if (t.dtype == Float::kF32) {
      const float4 a = reinterpret_cast<const float4*>(p)[0];
      const float4 b = reinterpret_cast<const float4*>(p)[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z,
      v[7] = b.w;
    } else {
      const uint4 a = *reinterpret_cast<const uint4*>(p);
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = half_of(words[i] & 0xFFFF, t.dtype);
        v[2 * i + 1] = half_of(words[i] >> 16, t.dtype);
      }
    }
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (i >= count) break;
    const char* element = p + i * t.column_stride * t.element_bytes();
    v[i] = t.dtype == Float::kF32 ? *reinterpret_cast<const float*>(element)
                                  : half_of(*reinterpret_cast<const uint16_t*>(element), t.dtype);
  }
}
__device__ inline void store_8(const FloatMatrix& t, int64_t offset, int count,
                               const float (&v)[8]) {
  char* p = const_cast<char*>(t.data) + offset * t.element_bytes();
  if (t.aligned && count == 8) {
    if (t.dtype == Float::kF32) {
      reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
      *reinterpret_cast<uint4*>(p) =
          make_uint4(pack(v[0], v[1], t.dtype), pack(v[2], v[3], t.dtype),
                     pack(v[4], v[5], t.dtype), pack(v[6], v[7], t.dtype));
    }
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (i >= count) break;
    char* element = p + i * t.column_stride * t.element_bytes();
    if (t.dtype == Float::kF32)
      *reinterpret_cast<float*>(element) = v[i];
    else
      *reinterpret_cast<uint16_t*>(element) = static_cast<uint16_t>(pack(v[i], 0, t.dtype));
  }
}

__device__ inline float activate(int activation, float y) {
  if (activation == 1) return 0.5f * y * (1.0f + erff(y * 0.70710678118654752440f));
  // 0.5 y (1 + tanh(z)) = y / (1 + exp(-2 z)), and silu is the same of z = y / 2.
  if (activation == 2)
    y = y / (1.0f + __expf(-1.59576912160573071176f * fmaf(0.044715f * y * y, y, y)));
  if (activation == 3) y = y / (1.0f + __expf(-y));
  return y;
}

// Place of 4 f32 in a consumer's 64 x 64 staging: rows of 256 bytes, 16-byte pieces permuted so
// that neither the fragments' stores nor the rows' loads meet in a bank.
__device__ inline int staging_offset(int row, int piece) {
  return row * 256 + (piece ^ ((row & 7) << 1)) * 16;
}

// Rows and columns of one chunk in staging to their end in memory. Out of line: one copy of the
// code. The residuals of all rows are asked for before the first is used.
static __device__ __noinline__ void finish_chunk(const EpilogueSteps a, const char* staging,
                                                 int row0, int column0, int batch) {
  constexpr int kRows = 4;  // of a thread, 16 apart
  const int thread = threadIdx.x % 128;
  const int group = thread % 8;
  const int column = column0 + group * 8;
  const int count = min(8, a.n - column);
  const int rows = min(kRows, (a.m - row0 - thread / 8 + 15) / 16);
  if (count <= 0) return;
  const float alpha = a.alpha ? *a.alpha : 1.0f;
  float bias[8] = {};
  float residual[kRows][8] = {};
  if (a.bias.data) load_8(a.bias, column * a.bias.column_stride, count, bias);
  if (a.residual.data) {
    const FloatMatrix& t = a.residual;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = row0 + thread / 8 + 16 * i;
      if (i < rows)
        load_8(t, batch * t.batch_stride + row * t.row_stride + column * t.column_stride, count,
               residual[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) break;
    const int r = thread / 8 + 16 * i;
    const int flip = group / 4;  // half of the lanes read their second piece first: no conflict
    const float4 one =
        *reinterpret_cast<const float4*>(staging + staging_offset(r, 2 * group + flip));
    const float4 two =
        *reinterpret_cast<const float4*>(staging + staging_offset(r, 2 * group + 1 - flip));
    const float4 low = flip ? two : one;
    const float4 high = flip ? one : two;
    float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j)
      y[j] = activate(a.activation, y[j] * alpha + bias[j]) + residual[i][j];
    const FloatMatrix& t = a.out;
    store_8(t, batch * t.batch_stride + int64_t{row0 + r} * t.row_stride + column * t.column_stride,
            count, y);
  }
}

struct MatmulEpilogue {
  static constexpr int kPrefetchedRows = 4;  // a step
  const EpilogueArguments& a;

  // By the producer, while the tile's sums are made: its residual, some rows a step, into the L2.
  template <int kTileN>
  __device__ void prefetch(const Tile& tile, int step) const {
    if (!a.residual.data || !a.residual.aligned || step >= kTileM / kPrefetchedRows) return;
    const int column = tile.n * kTileN;
    const int bytes = min(kTileN, a.n - column) * a.residual.element_bytes() & ~15;
    for (int i = 0; i < kPrefetchedRows; ++i) {
      const int64_t row = tile.m * kTileM + step * kPrefetchedRows + i;
      if (row < a.m && bytes > 0)
        prefetch_bytes(a.residual.data + (tile.batch * a.residual.batch_stride +
                                          row * a.residual.row_stride + column) *
                                             a.residual.element_bytes(),
                       bytes);
    }
  }

  // Registers d[0..31], 64 columns, through shared memory as 16 bits.
  template <class T>
  __device__ void store_box_of(const T* d, float alpha, char* staging, int consumer, int row,
                               int column, int batch) const {
    const int lane = threadIdx.x % 32;
    const int matrix = lane / 8;
    const int in_row = threadIdx.x % 128 / 32 * 16 + (matrix & 1) * 8 + lane % 8;
    const uint32_t to = shared_address(staging) + in_row * kRowBytes;
    if (threadIdx.x % 128 == 0) wait_stores_read<1>();
    sync_threads(1 + consumer, 128);
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // 16 columns
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = pack(static_cast<float>(d[8 * j + 2 * i]) * alpha,
                        static_cast<float>(d[8 * j + 2 * i + 1]) * alpha, a.out.dtype);
      const int piece = (2 * j + (matrix >> 1)) ^ (lane % 8);
      store_matrices(to + piece * 16, words[0], words[1], words[2], words[3]);
    }
    fence_async_proxy();
    sync_threads(1 + consumer, 128);
    if (threadIdx.x % 128 == 0) {
      store_box(&a.out_map, staging, column, row, batch);
      commit_stores();
    }
  }

  template <class T>
  __device__ void stage(const T* d, char* staging) const {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // 8 columns
      const int piece = 2 * j + lane % 4 / 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        char* to = staging + staging_offset(row + 8 * half, piece) + lane % 2 * 8;
        *reinterpret_cast<float2*>(to) = make_float2(static_cast<float>(d[4 * j + 2 * half]),
                                                     static_cast<float>(d[4 * j + 2 * half + 1]));
      }
    }
  }

  template <class T, int kCount>
  __device__ void operator()(const Tile& tile, int consumer, T (&d)[kCount], char* staging) const {
    constexpr int kTileN = kCount * 2;
    const int row = tile.m * kTileM + consumer * 64;
    const float alpha = a.alpha ? *a.alpha : 1.0f;
#pragma unroll
    for (int c = 0; c < kTileN / 64; ++c) {
      const int column = tile.n * kTileN + c * 64;
      if (a.by_boxes) {
        store_box_of(d + c * 32, alpha, staging + c % 2 * kChunkBytes, consumer, row, column,
                     tile.batch);
      } else {
        sync_threads(1 + consumer, 128);
        stage(d + c * 32, staging);
        sync_threads(1 + consumer, 128);
        finish_chunk(a, staging, row, column, tile.batch);
      }
    }
  }
  __device__ void finish() const {
    if (threadIdx.x % 128 == 0) wait_stores_read<0>();
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::cuda::hopper
