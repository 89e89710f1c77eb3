// The GEMM of two matrices of rows, out = A @ B^T, for whatever the fast kernels of quantised
// operands refuse: any strides and byte offsets.
// Map      A thread a result, tiles of 16 x 16 through shared memory, sums along k in one order.
// Traffic  a and b once for each 16 columns or rows of out; each element is decoded as it is read.
// Numerics values as the format's dequantising op gives them in f32, f64 sums, then the epilogue in
//          f32, one rounding.
#pragma once

#include <algorithm>

#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/w4a8.h"
#include "ops/gemm/fallback/gemm_fallback.cuh"

namespace pestle::ops {

// ---- operands: value(row, k, all) in f32, where `all` is what start() gives once a thread ----

struct AnyFloatRows {
  AnyTensor t;
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const { return t.load(t.at(row, k)); }
#endif
};

// Codes with scales of blocks of neighbours, of a byte each.
struct AnyBlocks {
  AnyTensor codes, scale;
  int64_t columns = 0;  // blocks of a row
  bool swizzled = false;
#ifdef __CUDACC__
  __device__ uint8_t scale_at(int64_t row, int64_t block) const {
    const char* at = swizzled ? scale.element_at(formats::swizzle_offset(row, block, columns))
                              : scale.at(row, block);
    return static_cast<uint8_t>(*at);
  }
  __device__ uint8_t byte_at(int64_t row, int64_t column) const {
    return static_cast<uint8_t>(*codes.at(row, column));
  }
#endif
};

inline AnyBlocks any_blocks(const TensorView& codes, const TensorView& scale, int64_t columns,
                            bool swizzled) {
  return {AnyTensor(codes), AnyTensor(scale), columns, swizzled};
}

struct AnyNvfp4Rows {
  AnyBlocks blocks;
  bool high_first = false;
  const char* global_scale = nullptr;  // of any alignment
#ifdef __CUDACC__
  __device__ float start() const { return __uint_as_float(AnyTensor::bits(global_scale, 4)); }
  __device__ float value(int64_t row, int64_t k, float g) const {
    const uint8_t s = blocks.scale_at(row, k / formats::kNvfp4Block);
    const uint8_t code = formats::nibble_of(blocks.byte_at(row, k / 2), k % 2 == 1, high_first);
    return formats::nvfp4_dequantize(code, formats::nvfp4_factor(s, g));
  }
#endif
};

struct AnyMxfp8Rows {
  AnyBlocks blocks;
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const {
    const uint8_t e = blocks.scale_at(row, k / formats::kMxBlock), code = blocks.byte_at(row, k);
    return blocks.codes.dtype == DType::kE5M2 ? formats::mx_dequantize<formats::E5m2>(code, e)
                                              : formats::mx_dequantize<formats::E4m3>(code, e);
  }
#endif
};

struct AnyW4a8Rows {
  AnyBlocks blocks;
  AnyTensor channel;
  AnyTensor codebook;  // data null: `fixed`
  float fixed[formats::kW4a8Levels];
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const {
    const float rel = formats::f32_from_e4m3(blocks.scale_at(row, k / formats::kW4a8Group));
    const uint8_t index = formats::nibble_of(blocks.byte_at(row, k / 2), k % 2 == 1, false);
    const float level = codebook.data == nullptr
                            ? fixed[index]
                            : codebook.load(codebook.data + index * codebook.strides[0]);
    const auto v = static_cast<float>(formats::w4a8_decode_int8(level, rel));
    return v * channel.load(channel.data + row * channel.strides[0]);
  }
#endif
};

#ifdef __CUDACC__

// Of the job: sizes and the epilogue.
template <class A, class B>
__global__ void __launch_bounds__(kEdgeOfTile* kEdgeOfTile)
    fallback_decoded_kernel(const __grid_constant__ FallbackGemm job, const __grid_constant__ A a,
                            const __grid_constant__ B b) {
  __shared__ float left[kEdgeOfTile][kEdgeOfTile + 1];
  __shared__ float right[kEdgeOfTile][kEdgeOfTile + 1];
  const int x = threadIdx.x % kEdgeOfTile;
  const int y = threadIdx.x / kEdgeOfTile;
  const int64_t tile_m = blockIdx.x / job.n_tiles * kEdgeOfTile;
  const int64_t tile_n = blockIdx.x % job.n_tiles * kEdgeOfTile;
  const int64_t m = tile_m + y, n = tile_n + x;
  const int64_t b_row = tile_n + y;  // of the element that the thread decodes
  const float of_a = a.start(), of_b = b.start();
  double sum = 0;
  for (int64_t k0 = 0; k0 < job.k; k0 += kEdgeOfTile) {
    const int64_t k = k0 + x;
    left[y][x] = m < job.m && k < job.k ? a.value(m, k, of_a) : 0.0f;
    right[y][x] = b_row < job.n && k < job.k ? b.value(b_row, k, of_b) : 0.0f;
    __syncthreads();
    for (int i = 0; i < kEdgeOfTile; ++i) sum = fma(double{left[y][i]}, double{right[x][i]}, sum);
    __syncthreads();
  }
  if (m < job.m && n < job.n) finish_fallback(job, 0, m, n, static_cast<float>(sum));
}

// `epilogue`: where alpha stands; the call has no pairs, gate or beta.
template <class A, class B>
Status run_fallback_decoded(const Call& call, const char* name, int out, int epilogue, int64_t k,
                            const A& a, const B& b) {
  const TensorView& o = call.tensor(out);
  if (numel(o) == 0) return {};
  FallbackGemm job;
  job.n = row_length(o);
  job.m = row_count(o);
  job.k = k;
  fill_fallback_gemm(call, out, epilogue, &job);
  return cuda::launch(call, name, {job.m_tiles * job.n_tiles, kEdgeOfTile * kEdgeOfTile},
                      fallback_decoded_kernel<A, B>, job, a, b);
}

#endif  // __CUDACC__

}  // namespace pestle::ops
