// The job of the kernels of weight-only products, and what they do with sums that lie in shared
// memory as f32: eight neighbouring columns of a row of out at a time.
#pragma once

#include <type_traits>

#include "ops/gemm/epilogue/fused_epilogue.cuh"
#include "ops/gemm/weight_only/x_rows.cuh"

namespace pestle::cuda::many_rows {

using hopper::EpilogueArguments;
using hopper::FloatMatrix;

constexpr int kGroup = 16;  // tiles along m that sweep n together

struct Job {
  EpilogueArguments epilogue;
  const char* x = nullptr;
  const char* weight = nullptr;
  uint32_t x_row = 0, weight_row = 0;  // from one row to the next, in units of 16 bytes
  int m = 0, n = 0, k = 0;
  int m_tiles = 0, n_tiles = 0;
  bool plain = false;  // finish_plain_row() takes whole eights
};

// Is there but alpha and bias, of whole vectors as 16 bits?
inline bool is_plain(const EpilogueArguments& e) {
  const auto takes = [](const FloatMatrix& t) {
    return t.aligned && t.dtype != hopper::Float::kF32;
  };
  return !e.activation && !e.gate.data && !e.residual.data && takes(e.out) &&
         (!e.bias.data || takes(e.bias));
}

#ifdef __CUDACC__

struct Tile {
  int m, n;
};
// kTogether tiles along m sweep n.
template <int kTogether = kGroup>
__device__ inline Tile tile_of(const Job& job, int i) {
  const int width = kTogether * job.n_tiles;
  const int first = i / width * kTogether;
  const int rows = min(job.m_tiles - first, kTogether);
  const int j = i % width;
  return {first + j % rows, j / rows};
}

// An element of the product from f32 values of the weight.
template <bool kBf16, class Format, class X>
__device__ inline float slow_sum(const Job& job, const Format& format, const X& source, int64_t row,
                                 int64_t column) {
  const char* x = job.x + row * int64_t{job.x_row} * 16;
  const char* codes = job.weight + column * int64_t{job.weight_row} * 16;
  std::conditional_t<X::kDecoded, double, float> sum = 0;  // double: no partial sum overflows
  for (int k = 0; k < job.k; ++k)
    sum = fma(static_cast<decltype(sum)>(source.template value<kBf16>(x, row, k)),
              static_cast<decltype(sum)>(format.value(codes, column, k)), sum);
  return static_cast<float>(sum);
}

struct Columns {
  int first, count;
};
__device__ inline int64_t place_of(const FloatMatrix& t, int64_t row, int column) {
  return row * t.row_stride + column * t.column_stride;
}
// The usual results without a jump. A tile's epilogue runs once, and each jump past what a call does
// not have fetches instructions from the L2: a dozen took 1.5 us.
__device__ inline void finish_plain_row(const EpilogueArguments& e, int column, int64_t row,
                                        const float (&y)[8]) {
  uint4 bias = {};
  if (e.bias.data) bias = __ldg(reinterpret_cast<const uint4*>(e.bias.data + column * 2));
  const uint32_t words[4] = {bias.x, bias.y, bias.z, bias.w};
  const float alpha = e.alpha ? __ldg(e.alpha) : 1.0f;
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = hopper::pack(
        __fmaf_rn(y[2 * i], alpha, hopper::half_of(words[i] & 0xFFFF, e.bias.dtype)),
        __fmaf_rn(y[2 * i + 1], alpha, hopper::half_of(words[i] >> 16, e.bias.dtype)), e.out.dtype);
  *reinterpret_cast<uint4*>(const_cast<char*>(e.out.data) + (row * e.out.row_stride + column) * 2) =
      make_uint4(out[0], out[1], out[2], out[3]);
}
// kOfColumns: with the factors of columns.
template <bool kOfColumns>
__device__ inline void finish_row(const EpilogueArguments& e, const Columns& c, int64_t row,
                                  float factor, const float* staged) {
  const float4 low = reinterpret_cast<const float4*>(staged)[0];
  const float4 high = reinterpret_cast<const float4*>(staged)[1];
  float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if constexpr (kOfColumns) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < c.count) y[j] *= e.columns.at(c.first + j);
  }
  float bias[8] = {};
  if (e.bias.data) load_8(e.bias, c.first * e.bias.column_stride, c.count, bias);
  const float alpha = e.alpha ? __ldg(e.alpha) : 1.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = __fmaf_rn(y[j] * factor, alpha, bias[j]);
  hopper::activate_all(e.activation, y);
  if (e.gate.data) {
    float gate[8] = {};
    load_8(e.gate, place_of(e.gate, row / e.rows_per_gate, c.first), c.count, gate);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] *= gate[j];
  }
  if (e.residual.data) {
    float residual[8] = {};
    load_8(e.residual, place_of(e.residual, row, c.first), c.count, residual);
    const float beta = e.beta ? __ldg(e.beta) : 1.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = __fmaf_rn(residual[j], beta, y[j]);
  }
  store_8(e.out, place_of(e.out, row, c.first), c.count, y);
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
