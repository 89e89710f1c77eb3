// dequantize_* of block formats on CUDA. An op gives its Format; map, traffic and refusals are
// here.
// Map      _tiles: a thread decodes 8 neighbouring codes in each of kRows rows, reading 4 or 8
//          bytes and writing 16 or 32; the 2 or 4 threads of a block read the same scale byte.
//          _any: a thread four elements, a block's threads apart; any strides and offsets.
// Traffic  codes and scales once, out once.
// Measured 16384 x 32768 to bf16 on an H200: nvfp4 4.05, mxfp8 4.09, mxfp4 4.07 TB/s; 99-100 % of
//          the copy.
#pragma once

#include "backends/cuda/device/numeric/e2m1.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/block_scales.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/quant/int4/decode_unit.cuh"

namespace pestle::ops {

// What a Format has, beside what decode_unit asks for:
//   static constexpr int kBlock: elements that share a scale
//   void start(): once a thread, before the others (members may hold more scales)
//   float factor(scale code): what decoded values are multiplied by

struct CodeMatrix {
  const char* codes;
  int64_t code_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int64_t rows;
  int units;  // of 8 elements in a row
  cuda::FastDivisor column_blocks;
  bool high_first;
  cuda::ScaleBytes scales;
};

// A unit's codes: 4-bit in x, 8-bit in both.
template <int kBits>
__device__ inline uint2 load_codes(const char* p) {
  if constexpr (kBits == 4) return make_uint2(__ldg(reinterpret_cast<const uint32_t*>(p)), 0);
  return __ldg(reinterpret_cast<const uint2*>(p));
}

// kWhole: every unit and row of the block exists.
template <class T, class Format, int kRows, bool kWhole>
__device__ void dequantize_tile(const CodeMatrix& m, const Format& format,
                                const cuda::TilePlace& place) {
  constexpr int kUnitBytes = cuda::kUnit * Format::kCodeBits / 8;
  constexpr int kUnitsPerBlock = Format::kBlock / cuda::kUnit;
  if (!kWhole && place.unit >= m.units) return;
  const int rows = kWhole ? kRows : cuda::rows_left(m.rows, place.row, kRows);
  const char* from = m.codes + place.row * m.code_row_bytes + place.unit * kUnitBytes;
  char* out = m.out + place.row * m.out_row_bytes + place.unit * (cuda::kUnit * T::kBytes);
  const uint8_t* scales = m.scales.at(place.row, place.unit / kUnitsPerBlock);
  uint2 codes[kRows];
  uint8_t scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    codes[r] = load_codes<Format::kCodeBits>(from);
    scale[r] = __ldg(scales);
    from += m.code_row_bytes;
    scales += m.scales.row_step();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    if (Format::kCodeBits == 4 && m.high_first) codes[r].x = cuda::swap_all_nibbles(codes[r].x);
    const float factor = format.factor(scale[r]);
    float v[cuda::kUnit];
    decode_unit<Format>(codes[r], factor, v);
    T::store(out, v);
    out += m.out_row_bytes;
  }
}

template <class T, class Format, int kRows>
__global__ void __launch_bounds__(384) dequantize_tiles(CodeMatrix m, Format format) {
  cuda::wait_previous_kernel();
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, blockIdx.x);
  format.start();
  if (cuda::is_whole(place, m.rows, m.units, kRows))
    dequantize_tile<T, Format, kRows, true>(m, format, place);
  else
    dequantize_tile<T, Format, kRows, false>(m, format, place);
}

inline constexpr int kAnyDecoders = 256;
inline constexpr int kAnyDecoded = 1024;  // elements of a block of them

template <class Format>
__global__ void __launch_bounds__(kAnyDecoders)
    dequantize_any(cuda::AnyTensor q, cuda::AnyTensor out, cuda::AnyScales scales, bool high_first,
                   Format format) {
  constexpr int kEach = kAnyDecoded / kAnyDecoders, kPerByte = 8 / Format::kCodeBits;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAnyDecoded + threadIdx.x;
  const int64_t count = out.shape[0] * out.shape[1];
  format.start();
  uint8_t codes[kEach], scale[kEach];
  char* to[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t index = min(first + i * kAnyDecoders, count - 1);
    const int64_t row = cuda::AnyTensor::quotient(index, out.shape[1]);
    const int64_t column = index - row * out.shape[1];
    const auto byte = static_cast<uint8_t>(*q.at(row, column / kPerByte));
    const bool is_low = (column % 2 == 1) == high_first;
    codes[i] = kPerByte == 1 ? byte : is_low ? byte & 0xFu : byte >> 4;
    scale[i] = static_cast<uint8_t>(*scales.at(row, column / Format::kBlock));
    to[i] = out.at(row, column);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i * kAnyDecoders >= count) continue;
    out.store(to[i], Format::value(codes[i]) * format.factor(scale[i]));
  }
}

struct DequantizeBlocks {
  const TensorView& q;
  const TensorView& scale;
  const TensorView& out;
  bool swizzled;
  bool high_first;
};

template <class Format>
Status run_dequantize_tiles(const Call& call, const char* name, const DequantizeBlocks& b,
                            const Format& format) {
  constexpr int kRows = 4;
  const int64_t units = b.out.shape[1] / cuda::kUnit;
  const cuda::Tiles tiles = cuda::Tiles::over(b.out.shape[0], units);
  const CodeMatrix matrix{b.q.as<char>(),
                          cuda::row_distance(b.q),
                          b.out.as<char>(),
                          cuda::row_distance(b.out),
                          b.out.shape[0],
                          static_cast<int>(units),
                          tiles.column_blocks,
                          b.high_first,
                          cuda::ScaleBytes(b.scale, b.out.shape[1] / Format::kBlock, b.swizzled)};
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (b.out.dtype) {
    case DType::kBF16:
      return cuda::launch_early(call, name, grid, dequantize_tiles<cuda::Bf16, Format, kRows>,
                                matrix, format);
    case DType::kF16:
      return cuda::launch_early(call, name, grid, dequantize_tiles<cuda::F16, Format, kRows>,
                                matrix, format);
    default:
      return cuda::launch_early(call, name, grid, dequantize_tiles<cuda::F32, Format, kRows>,
                                matrix, format);
  }
}

template <class Format>
Status run_dequantize_any(const Call& call, const char* name, const DequantizeBlocks& b,
                          const Format& format) {
  const cuda::Grid grid{cuda::ceil_div(numel(b.out), kAnyDecoded), kAnyDecoders};
  const int64_t columns = b.out.shape[1] / Format::kBlock;
  return cuda::launch(
      call, name, grid, dequantize_any<Format>, cuda::AnyTensor(b.q), cuda::AnyTensor(b.out),
      cuda::AnyScales{cuda::AnyTensor(b.scale), columns, b.swizzled}, b.high_first, format);
}

template <int kCodeBits>
std::string refuse_dequantize_tiles(const DequantizeBlocks& b) {
  const int64_t unit_bytes = cuda::kUnit * kCodeBits / 8;
  if (std::string why = cuda::refuse_unaligned("q", b.q, unit_bytes); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("out", b.out); !why.empty()) return why;
  return cuda::refuse_scale_strides("scale", b.scale, b.swizzled);
}

}  // namespace pestle::ops
