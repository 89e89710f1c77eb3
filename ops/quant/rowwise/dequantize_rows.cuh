// Decoders of 8-bit codes whose scales form a grid over rows and columns, on CUDA.
// Maps     tiles   a thread decodes 8 neighbouring codes in each of kRows rows
//          any     a thread block 1024 columns of a row, in shared memory; any strides; rotates
//          back
// Traffic  q and scales once, out once.
// Measured on an H200 to bf16: 32768 x 16384 386 us, 4.17 TB/s, 99.8 % of the copy; 32760 x 5120
//          122.6 us, 99.8 %; 4608 x 3072 11.9 us, 97 %.
#pragma once

#include "backends/cuda/host/early_launch.h"
#include "ops/quant/int4/decode_unit.cuh"
#include "ops/quant/rowwise/quantize_rows.cuh"

namespace pestle::ops {

// Codes of decode_unit. kNumbers: what is not odd is a finite number.
template <class F>
struct Fp8Values {
  static constexpr int kCodeBits = 8;
  static constexpr bool kNumbers = F::kMan == 3;
  static constexpr float kUnitScale = cuda::kFp8Unit<F>;
  __device__ static bool odd(uint2 codes) { return F::kMan == 3 && cuda::has_e4m3_nan(codes); }
  __device__ static void values(uint2 codes, float (&v)[cuda::kUnit]) {
    cuda::fp8_values<F>(codes, v);
  }
  __device__ static float value(uint8_t code) { return formats::f32_from_code<F>(code); }
};

struct Int8Values {
  static constexpr int kCodeBits = 8;
  static constexpr bool kNumbers = true;
  static constexpr float kUnitScale = 1.0f;
  __device__ static bool odd(uint2) { return false; }
  // The code plus 128 as the low byte of 2^23 + itself.
  __device__ static void values(uint2 codes, float (&v)[cuda::kUnit]) {
    const uint32_t w[2] = {codes.x ^ 0x80808080u, codes.y ^ 0x80808080u};
    for (int i = 0; i < cuda::kUnit; ++i) {
      const uint32_t bits = __byte_perm(w[i / 4], 0x4B000000u, 0x7540 | (i % 4));
      v[i] = __uint_as_float(bits) - (8388608.0f + 128.0f);
    }
  }
  __device__ static float value(uint8_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
};

struct DecodeMatrix {
  const char* q;
  int64_t q_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int64_t rows;
  int units;
  cuda::FastDivisor column_blocks;
  ScaleMap map;
  const float* scale;
};

// As decode_unit, packed; without a look for NaN where the fast way gives none.
template <class T, class Codes>
__device__ inline typename T::Raw decoded_unit(uint2 codes, float factor) {
  if (is_exact_factor(factor) && !Codes::odd(codes)) {
    float v[cuda::kUnit];
    Codes::values(codes, v);
    const float by = factor * Codes::kUnitScale;
    for (int i = 0; i < cuda::kUnit; ++i) v[i] *= by;
    if constexpr (Codes::kNumbers) return T::pack_numbers(v);
    return T::pack(v);
  }
  return T::pack(slow_values<Codes>(codes, factor).v);
}

// kWhole: every unit and row of the block exists.
template <class T, class Codes, int kRows, bool kWhole>
__device__ void dequantize_row_tile(const DecodeMatrix& m, const cuda::TilePlace& place) {
  if (!kWhole && place.unit >= m.units) return;
  const int rows = kWhole ? kRows : cuda::rows_left(m.rows, place.row, kRows);
  const char* from = m.q + place.row * m.q_row_bytes + place.unit * cuda::kUnit;
  char* out = m.out + place.row * m.out_row_bytes + place.unit * (cuda::kUnit * T::kBytes);
  const float* scales = m.scale + m.map.column(place.unit * cuda::kUnit);
  uint2 codes[kRows];
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    codes[r] = __ldg(reinterpret_cast<const uint2*>(from));
    from += m.q_row_bytes;
    scale[r] = __ldg(scales + m.map.row(place.row + r));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    // Without a hint: 0.5 % faster than evict-first.
    *reinterpret_cast<typename T::Raw*>(out) = decoded_unit<T, Codes>(codes[r], scale[r]);
    out += m.out_row_bytes;
  }
}

template <class T, class Codes, int kRows>
__global__ void __launch_bounds__(384) dequantize_rows(DecodeMatrix m) {
  cuda::wait_previous_kernel();
  cuda::start_next_kernel();
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, blockIdx.x);
  if (cuda::is_whole(place, m.rows, m.units, kRows))
    dequantize_row_tile<T, Codes, kRows, true>(m, place);
  else
    dequantize_row_tile<T, Codes, kRows, false>(m, place);
}

template <class Codes>
__global__ void __launch_bounds__(kAnyThreads)
    dequantize_rows_any(AnyMatrix m, cuda::AnyTensor out) {
  __shared__ float v[kAnyColumns];
  const int64_t pieces = (m.columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), m.columns - first));
  const bool is_one = m.map.column(first) == m.map.column(first + count - 1);  // scale for all
  const char* q = m.q.row_at(row) + (first + threadIdx.x) * m.q.step();
  const int have = any_count(count);
  uint8_t codes[kAnyEach];
#pragma unroll
  for (int k = 0; k < kAnyEach; ++k) {
    codes[k] = k < have ? static_cast<uint8_t>(q[k * kAnyThreads * m.q.step()]) : 0;
  }
  float s = is_one ? m.given_scale(m.map.index(row, first)) : 0.0f;
#pragma unroll
  for (int k = 0; k < kAnyEach; ++k) {
    if (k >= have) continue;
    const int i = threadIdx.x + k * kAnyThreads;
    if (!is_one) s = m.given_scale(m.map.index(row, first + i));
    v[i] = Codes::value(codes[k]) * s;
  }
  if (m.hadamard > 0) rotate_shared(v, count, m.hadamard);
  store_piece(out, row, first, count, v);
}

// x of QuantizeRows is the output here; nothing is computed.
template <class Codes>
Status run_dequantize_rows(const Call& call, const char* name, const QuantizeRows& b) {
  constexpr int kRows = 2;  // four: 1.4 % slower; one: 8 %
  const int64_t units = b.columns / cuda::kUnit;
  const cuda::Tiles tiles = cuda::Tiles::over(b.rows, units);
  const DecodeMatrix m{b.q.as<char>(),
                       cuda::row_distance(b.q),
                       b.x.as<char>(),
                       cuda::row_distance(b.x),
                       b.rows,
                       static_cast<int>(units),
                       tiles.column_blocks,
                       b.map,
                       b.scale.as<float>()};
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (b.x.dtype) {
    case DType::kBF16:
      return cuda::launch_early(call, name, grid, dequantize_rows<cuda::Bf16, Codes, kRows>, m);
    case DType::kF16:
      return cuda::launch_early(call, name, grid, dequantize_rows<cuda::F16, Codes, kRows>, m);
    default:
      return cuda::launch_early(call, name, grid, dequantize_rows<cuda::F32, Codes, kRows>, m);
  }
}

template <class Codes>
Status run_dequantize_rows_any(const Call& call, const char* name, const QuantizeRows& b) {
  const AnyMatrix m{{},
                    cuda::AnyTensor(b.q),
                    cuda::AnyTensor(b.scale),
                    false,
                    nullptr,
                    b.rows,
                    b.columns,
                    b.map,
                    b.hadamard,
                    {}};
  const cuda::Grid grid{b.rows * cuda::ceil_div(b.columns, kAnyColumns), kAnyThreads};
  return cuda::launch(call, name, grid, dequantize_rows_any<Codes>, m, cuda::AnyTensor(b.x));
}

}  // namespace pestle::ops
