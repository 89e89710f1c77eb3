// quantize_mxfp8 and quantize_mxfp4 on CUDA: blocks of 32 with an E8M0 scale.
// Map      _tiles: neighbouring threads share a block, four with 8 elements each (8-bit codes) or
//          two with 16 (4-bit codes), in each of kRows rows; the scales' padding is part of the
//          grid. _any: a thread a block, any strides and offsets.
// Traffic  x, q and scales once.
// Numerics docs/formats/mx.md. The scale is a power of two: one exact-or-rounded product an
//          element.
// Measured 16384 x 32768 bf16 on an H200: mxfp8 4.32 TB/s, mxfp4 4.31 TB/s: both above the copy's
//          rate.
#pragma once

#include "backends/cuda/device/numeric/e2m1.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/numeric/largest.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/block_scales.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
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
  int units;  // of 8 elements in a row of q
  cuda::FastDivisor column_blocks;
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
__device__ __noinline__ uint2 mx_slow_codes(const float (&v)[cuda::kUnit],
                                            const MxRounding& rounding, uint64_t element) {
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

// The same of a unit of x, where a fast kernel does not trust its own arithmetic.
template <class T, class F>
__device__ __noinline__ uint2 mx_slow_unit(typename T::Raw raw, uint8_t e, MxRounding rounding,
                                           uint64_t element) {
  float v[cuda::kUnit];
  T::to_f32(raw, v);
  const float inverse = formats::e8m0_inverse(e);
  for (int i = 0; i < cuda::kUnit; ++i) v[i] *= inverse;
  return mx_slow_codes<F>(v, rounding, element);
}

// formats::mx_scale without branches: adding what lacks to the next exponent rounds up.
template <class F>
__device__ inline uint8_t mx_scale_code(uint32_t amax) {
  const auto up = static_cast<int32_t>((amax + (0x007FFFFFu - F::kMaxFraction)) >> 23);
  return amax > formats::kF32Inf ? formats::kE8m0Nan
                                 : static_cast<uint8_t>(max(up - F::kMaxExponent, 0));
}

// Units of a thread in a row, and its rows.
template <class F>
inline constexpr int kMxUnits = kMxCodeBits<F> == 4 ? 2 : 1;
template <class T, class F>
inline constexpr int kMxRows = kMxUnits<F> == 2 && T::kBytes == 4 ? 2 : 4;

// Codes of a unit of a block with this scale and amax.
template <class T, class F>
__device__ inline uint2 mx_unit_codes(const typename T::Raw& raw, uint32_t amax, uint8_t e,
                                      const MxRounding& rounding, int64_t row, int units,
                                      int unit) {
  // e = 0: 2^127 twice overflows. Zeros are +0 whatever their sign was.
  if (rounding.stochastic || amax >= formats::kF32Inf || e == 0) {
    if (amax == 0) return make_uint2(0, 0);
    const auto index = static_cast<uint64_t>(row * units + unit);
    return mx_slow_unit<T, F>(raw, e, rounding, index * cuda::kUnit);
  }
  // A finite amax has e <= 253, so this is normal. Products with it are exact.
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - e) << 23);
  if constexpr (kMxCodeBits<F> == 4) {
    float x[cuda::kUnit];
    T::to_f32(raw, x);
    return make_uint2(cuda::e2m1_words(x, cuda::E2m1Factors::of(inverse), x), 0);
  } else {
    return cuda::fp8_codes_of_products<T, F, true>(raw, inverse);
  }
}

// kWhole: every unit and row of the block exists.
template <class T, class F, int kRows, bool kWhole>
__device__ void quantize_mx_tile(const MxMatrix& m, const MxRounding& rounding,
                                 const cuda::TilePlace& place) {
  constexpr int kUnits = kMxUnits<F>, kLanes = 4 / kUnits;
  constexpr int kCodeBytes = cuda::kUnit * kMxCodeBits<F> / 8;
  const int unit = place.unit * kUnits;
  const auto rows_of = [&](int64_t rows, bool in_column) {
    if constexpr (kWhole) return kRows;
    return in_column ? cuda::rows_left(rows, place.row, kRows) : 0;
  };
  const int x_rows = rows_of(m.x_rows, unit < m.units);
  const int q_rows = rows_of(m.q_rows, unit < m.units);
  const int scale_rows = rows_of(m.scales.padded_rows, unit / 4 < m.scales.padded_columns);
  const char* x = m.x + place.row * m.x_row_bytes + unit * (cuda::kUnit * T::kBytes);
  char* q = m.q + place.row * m.q_row_bytes + unit * kCodeBytes;
  uint8_t* scale = m.scales.at(place.row, unit / 4);
  typename T::Raw raw[kRows][kUnits];
#pragma unroll
  for (int r = 0; r < kRows; ++r, x += m.x_row_bytes) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      raw[r][u] = r < x_rows ? T::load(x + u * (cuda::kUnit * T::kBytes)) : T::zero();
    }
  }
  uint32_t amax[kRows];
  uint8_t e[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    amax[r] = cuda::largest_of_unit<T>(raw[r][0]);
    if constexpr (kUnits == 2) amax[r] = max(amax[r], cuda::largest_of_unit<T>(raw[r][1]));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      amax[r] = max(amax[r], __shfl_xor_sync(0xFFFFFFFFu, amax[r], step));
    }
    e[r] = r < q_rows ? mx_scale_code<F>(amax[r]) : 0;
  }
  m.scales.template store<kLanes, kRows>(scale, scale_rows, e);
#pragma unroll
  for (int r = 0; r < kRows; ++r, q += m.q_row_bytes) {
    if (r >= q_rows) continue;
    uint2 codes =
        mx_unit_codes<T, F>(raw[r][0], amax[r], e[r], rounding, place.row + r, m.units, unit);
    if constexpr (kUnits == 2) {
      codes.y =
          mx_unit_codes<T, F>(raw[r][1], amax[r], e[r], rounding, place.row + r, m.units, unit + 1)
              .x;
      if (rounding.high_first) {
        codes = make_uint2(cuda::swap_all_nibbles(codes.x), cuda::swap_all_nibbles(codes.y));
      }
    }
    cuda::store8(q, codes);
  }
}

template <class T, class F, int kRows>
__global__ void __launch_bounds__(384, 2) quantize_mx_tiles(MxMatrix m, MxRounding rounding) {
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, blockIdx.x);
  if (cuda::is_whole(place, m.x_rows, m.units / kMxUnits<F>, kRows))
    quantize_mx_tile<T, F, kRows, true>(m, rounding, place);
  else
    quantize_mx_tile<T, F, kRows, false>(m, rounding, place);
}

// A thread a block of the padded matrix, padding of the scales included.
template <class F>
__global__ void __launch_bounds__(128)
    quantize_mx_any(cuda::AnyTensor x, cuda::AnyTensor q, cuda::AnyScales scales,
                    MxRounding rounding, int64_t grid_columns) {
  constexpr int kBlock = formats::kMxBlock;
  constexpr int kPerByte = 8 / kMxCodeBits<F>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = cuda::AnyTensor::quotient(index, grid_columns);
  const int64_t column = index - row * grid_columns;
  const int64_t blocks = q.shape[1] * kPerByte / kBlock;
  if (row < q.shape[0] && column < blocks) {
    float values[kBlock];
    cuda::AnyRow(x, row).load_padded(row, column * kBlock, values);
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

template <class T, class F>
Status start_quantize_mx_tiles(const Call& call, const char* name, const QuantizeMx& b) {
  constexpr int kRows = kMxRows<T, F>;
  const int64_t units = b.q.shape[1] * (8 / kMxCodeBits<F>) / cuda::kUnit;
  const int64_t covered = std::max(units, b.scale.shape[1] * 4);
  const cuda::Tiles tiles = cuda::Tiles::over(b.scale.shape[0], covered / kMxUnits<F>);
  const MxMatrix matrix{b.x.as<char>(),
                        cuda::row_distance(b.x),
                        b.x.shape[0],
                        b.q.as<char>(),
                        cuda::row_distance(b.q),
                        b.q.shape[0],
                        static_cast<int>(units),
                        tiles.column_blocks,
                        cuda::ScaleBytes(b.scale, units / 4, b.swizzled)};
  return cuda::launch(call, name, {tiles.blocks(kRows), tiles.threads},
                      quantize_mx_tiles<T, F, kRows>, matrix, b.rounding);
}

template <class F>
Status run_quantize_mx_tiles(const Call& call, const char* name, const QuantizeMx& b) {
  switch (b.x.dtype) {
    case DType::kBF16: return start_quantize_mx_tiles<cuda::Bf16, F>(call, name, b);
    case DType::kF16: return start_quantize_mx_tiles<cuda::F16, F>(call, name, b);
    default: return start_quantize_mx_tiles<cuda::F32, F>(call, name, b);
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

inline std::string refuse_quantize_mx_tiles(const QuantizeMx& b) {
  if (b.x.shape[1] % formats::kMxBlock != 0) return "K is no multiple of 32: padding in a block";
  if (std::string why = cuda::refuse_unaligned("x", b.x); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("q", b.q, 8); !why.empty()) return why;
  return cuda::refuse_scale_strides("scale_out", b.scale, b.swizzled);
}

}  // namespace pestle::ops
