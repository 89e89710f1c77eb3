// quantize_mxfp8 and quantize_mxfp4 on CUDA: blocks of 32 with an E8M0 scale.
// Map      _tiles: four neighbouring threads share a block, 8 elements each, in each of kRows rows;
//          the scales' padding is part of the grid. _any: a thread a block, any strides and
//          offsets.
// Traffic  x, q and scales once.
// Numerics docs/formats/mx.md. The scale is a power of two: one exact-or-rounded product an
// element.
#pragma once

#include "backends/cuda/device/block_scales.cuh"
#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/fp8.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "formats/mx.h"
#include "formats/philox.h"
#include "formats/stochastic.h"

namespace pestle::ops {

struct MxMatrix {
  const char* x;
  int64_t x_row_bytes;
  int64_t x_rows;
  char* q;
  int64_t q_row_bytes;
  int64_t q_rows;
  int64_t units;  // of 8 elements in a row of q
  int64_t column_blocks;
  cuda::ScaleBytes scales;
};

struct MxRounding {
  bool high_first;  // E2M1
  bool stochastic;
  uint64_t seed;
};

template <class F>
inline constexpr int kMxCodeBits = F::kSignShift == 3 ? 4 : 8;

// Codes of a unit by the scalar rule; 4-bit ones in x, the even element in the low nibble.
template <class F>
__device__ inline uint2 mx_slow_codes(const float (&v)[cuda::kUnit], const MxRounding& rounding,
                                      uint64_t element) {
  const formats::PhiloxWords random = formats::philox_block(rounding.seed, element / cuda::kUnit);
  constexpr int kBits = kMxCodeBits<F>;
  uint64_t codes = 0;
  for (int i = 0; i < cuda::kUnit; ++i) {
    const uint8_t code = rounding.stochastic
                             ? formats::code_stochastic<F>(v[i], formats::philox_lane(random, i))
                             : formats::code_from_f32<F>(v[i]);
    codes |= static_cast<uint64_t>(code) << (kBits * i);
  }
  return make_uint2(static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32));
}

template <class T, class F, int kRows>
__global__ void __launch_bounds__(384) quantize_mx_tiles(MxMatrix m, MxRounding rounding) {
  constexpr int kCodeBytes = cuda::kUnit * kMxCodeBits<F> / 8;
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, blockIdx.x);
  typename T::Raw raw[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool inside = place.row + r < m.x_rows && place.unit < m.units;
    const char* p = m.x + (place.row + r) * m.x_row_bytes + place.unit * (cuda::kUnit * T::kBytes);
    raw[r] = inside ? T::load(p) : T::zero();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = place.row + r;
    uint32_t amax = T::amax(raw[r]);
    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
    const bool inside = row < m.q_rows && place.unit < m.units;
    const uint8_t e = formats::mx_scale<F>(amax);
    m.scales.store_quads(row, place.unit / 4, inside ? e : 0);
    if (!inside) continue;
    uint2 codes = make_uint2(0, 0);
    if (amax != 0) {
      float x[cuda::kUnit];
      float v[cuda::kUnit];
      T::to_f32(raw[r], x);
      const float inverse = formats::e8m0_inverse(e);
      for (int i = 0; i < cuda::kUnit; ++i) v[i] = x[i] * inverse;
      const auto element = static_cast<uint64_t>((row * m.units + place.unit) * cuda::kUnit);
      if (rounding.stochastic || amax >= formats::kF32Inf)
        codes = mx_slow_codes<F>(v, rounding, element);
      else if constexpr (kMxCodeBits<F> == 4)
        codes.x = cuda::e2m1_codes(v, x);
      else
        codes = cuda::fp8_codes<F>(v);
      if (kMxCodeBits<F> == 4 && rounding.high_first) codes.x = cuda::swap_all_nibbles(codes.x);
    }
    char* to = m.q + row * m.q_row_bytes + place.unit * kCodeBytes;
    if constexpr (kCodeBytes == 4)
      cuda::store4(to, codes.x);
    else
      cuda::store8(to, codes);
  }
}

// A thread a block of the padded matrix, padding of the scales included.
template <class F>
__global__ void __launch_bounds__(128)
    quantize_mx_any(cuda::AnyTensor x, cuda::AnyTensor q, cuda::AnyScales scales,
                    MxRounding rounding, int64_t grid_columns) {
  constexpr int kBlock = formats::kMxBlock;
  constexpr int kPerByte = 8 / kMxCodeBits<F>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = index / grid_columns;
  const int64_t column = index % grid_columns;
  const int64_t blocks = q.shape[1] * kPerByte / kBlock;
  if (row < q.shape[0] && column < blocks) {
    float values[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const int64_t j = column * kBlock + i;
      values[i] = row < x.shape[0] && j < x.shape[1] ? x.load(x.at(row, j)) : 0.0f;
    }
    const uint32_t amax = formats::amax_bits(values, kBlock);
    const uint8_t e = formats::mx_scale<F>(amax);
    const float inverse = formats::e8m0_inverse(e);
    *scales.at(row, column) = static_cast<char>(e);
    for (int i = 0; i < kBlock; i += cuda::kUnit) {
      float v[cuda::kUnit];
      for (int j = 0; j < cuda::kUnit; ++j) v[j] = values[i + j] * inverse;
      const auto element = static_cast<uint64_t>((row * blocks + column) * kBlock + i);
      uint2 codes = amax == 0 ? make_uint2(0, 0) : mx_slow_codes<F>(v, rounding, element);
      if (kPerByte == 2 && rounding.high_first) codes.x = cuda::swap_all_nibbles(codes.x);
      for (int j = 0; j < cuda::kUnit / kPerByte; ++j) {
        const uint32_t word = j < 4 ? codes.x : codes.y;
        *q.at(row, (column * kBlock + i) / kPerByte + j) = static_cast<char>(word >> (8 * (j % 4)));
      }
    }
  } else if (scales.swizzled && row < scales.tensor.shape[0] && column < scales.tensor.shape[1]) {
    *scales.at(row, column) = 0;
  }
}

struct QuantizeMx {
  const TensorView& x;
  const TensorView& q;
  const TensorView& scale;
  bool swizzled;
  MxRounding rounding;
};

template <class F>
Status run_quantize_mx_tiles(const Call& call, const char* name, const QuantizeMx& b) {
  constexpr int kRows = 4;
  const int64_t units = b.q.shape[1] * (8 / kMxCodeBits<F>) / cuda::kUnit;
  const int64_t covered = std::max(units, b.scale.shape[1] * 4);
  const cuda::Tiles tiles = cuda::Tiles::over(b.scale.shape[0], covered);
  const MxMatrix matrix{
      b.x.as<char>(), cuda::row_distance(b.x), b.x.shape[0],
      b.q.as<char>(), cuda::row_distance(b.q), b.q.shape[0],
      units,          tiles.column_blocks,     cuda::ScaleBytes(b.scale, units / 4, b.swizzled)};
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (b.x.dtype) {
    case DType::kBF16:
      return cuda::launch(call, name, grid, quantize_mx_tiles<cuda::Bf16, F, kRows>, matrix,
                          b.rounding);
    case DType::kF16:
      return cuda::launch(call, name, grid, quantize_mx_tiles<cuda::F16, F, kRows>, matrix,
                          b.rounding);
    default:
      return cuda::launch(call, name, grid, quantize_mx_tiles<cuda::F32, F, kRows>, matrix,
                          b.rounding);
  }
}

template <class F>
Status run_quantize_mx_any(const Call& call, const char* name, const QuantizeMx& b) {
  const int64_t blocks = b.q.shape[1] * (8 / kMxCodeBits<F>) / formats::kMxBlock;
  const int64_t rows = b.swizzled ? b.scale.shape[0] : b.q.shape[0];
  const int64_t columns = b.swizzled ? b.scale.shape[1] : blocks;
  return cuda::launch(call, name, {cuda::ceil_div(rows * columns, 128), 128}, quantize_mx_any<F>,
                      cuda::AnyTensor(b.x), cuda::AnyTensor(b.q),
                      cuda::AnyScales{cuda::AnyTensor(b.scale), blocks, b.swizzled}, b.rounding,
                      columns);
}

inline std::string refuse_quantize_mx_tiles(const QuantizeMx& b, int code_bits) {
  if (b.x.shape[1] % formats::kMxBlock != 0) return "K is no multiple of 32: padding in a block";
  if (std::string why = cuda::refuse_unaligned("x", b.x); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("q", b.q, code_bits); !why.empty()) return why;
  return cuda::refuse_scale_strides("scale_out", b.scale, b.swizzled);
}

}  // namespace pestle::ops
