// Decoding a row of each quantised format to float64, for references: what the format's dequantise
// op gives in f32.
#pragma once

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/gemm/reference/gemm_ref.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"

namespace pestle::ops {

struct Fp8Rows {
  const TensorView& codes;
  const TensorView& scale;
  Fp8ScaleGrid grid;

  Fp8Rows(const TensorView& codes_, const TensorView& scale_, Fp8Granularity granularity)
      : codes(codes_), scale(scale_), grid(granularity, row_count(codes_), row_length(codes_)) {}

  void operator()(int64_t row, double* values) const {
    for (int64_t k = 0; k < row_length(codes); ++k) {
      const int64_t index = grid.index(row, k);
      const float s = float_at(scale, index / grid.grid_columns, index % grid.grid_columns);
      values[k] = with_fp8(codes.dtype, [&]<class F>(F) {
        return formats::fp8_dequantize<F>(byte_at(codes, row, k), s);
      });
    }
  }
};

// The same as codes, whose products sums are made of, and the scale of each row, or of all, that
// multiplies the finished sums. `within`: what the contract's bound says to those (k).
struct Fp8Codes {
  const TensorView& codes;
  const TensorView& scale;
  bool one_scale;
  double lost;

  Fp8Codes(const TensorView& codes_, const TensorView& scale_, bool one_scale_, double within)
      : codes(codes_),
        scale(scale_),
        one_scale(one_scale_),
        lost(4 * std::sqrt(within) * 0x1p-24) {}

  void operator()(int64_t row, double* values) const {
    const char* from = row_address(codes, row);
    const int64_t step = last_stride_bytes(codes);
    with_fp8(codes.dtype, [&]<class F>(F) {
      for (int64_t k = 0; k < row_length(codes); ++k)
        values[k] = formats::f32_from_code<F>(load<uint8_t>(from + k * step));
    });
  }
  double factor(int64_t row) const { return float_at(scale, one_scale ? 0 : row, 0); }
};

// Scales of rows of blocks: plain ones follow the codes' leading dimensions, swizzled ones are 2-D.
inline uint8_t block_scale_code(const TensorView& scale, bool swizzled, int64_t columns,
                                int64_t row, int64_t column) {
  if (!swizzled) return byte_at(scale, row, column);
  return BlockScales{scale, columns, true}.load_code(row, column);
}

struct Nvfp4Rows {
  const TensorView& codes;
  const TensorView& scale;
  float global_scale;
  bool high_first;
  bool swizzled;

  void operator()(int64_t row, double* values) const {
    constexpr int64_t kBlock = formats::kNvfp4Block;
    const int64_t columns = row_length(codes) * 2;
    for (int64_t k = 0; k < columns; ++k) {
      const uint8_t code = block_scale_code(scale, swizzled, columns / kBlock, row, k / kBlock);
      values[k] = formats::nvfp4_dequantize(
          formats::nibble_of(byte_at(codes, row, k / 2), k % 2 == 1, high_first),
          formats::nvfp4_factor(code, global_scale));
    }
  }
};

struct Mxfp8Rows {
  const TensorView& codes;
  const TensorView& scale;
  bool swizzled;

  void operator()(int64_t row, double* values) const {
    constexpr int64_t kBlock = formats::kMxBlock;
    const int64_t columns = row_length(codes);
    for (int64_t k = 0; k < columns; ++k) {
      const uint8_t e = block_scale_code(scale, swizzled, columns / kBlock, row, k / kBlock);
      values[k] = with_fp8(codes.dtype, [&]<class F>(F) {
        return formats::mx_dequantize<F>(byte_at(codes, row, k), e);
      });
    }
  }
};

struct Mxfp4Rows {
  const TensorView& codes;
  const TensorView& scale;
  bool high_first;
  bool swizzled;

  void operator()(int64_t row, double* values) const {
    constexpr int64_t kBlock = formats::kMxBlock;
    const int64_t columns = row_length(codes) * 2;
    for (int64_t k = 0; k < columns; ++k) {
      values[k] = formats::mx_dequantize<formats::E2m1>(
          formats::nibble_of(byte_at(codes, row, k / 2), k % 2 == 1, high_first),
          block_scale_code(scale, swizzled, columns / kBlock, row, k / kBlock));
    }
  }
};

struct Int8Rows {
  const TensorView& codes;
  const TensorView& scale;
  bool one_scale;  // for the whole tensor
  int64_t group;   // columns that share a scale

  void operator()(int64_t row, double* values) const {
    for (int64_t k = 0; k < row_length(codes); ++k) {
      values[k] = formats::int8_dequantize(static_cast<int8_t>(byte_at(codes, row, k)),
                                           float_at(scale, one_scale ? 0 : row, k / group));
    }
  }
};

// The same as integers, whose sums of products with scaled integers are exact in float64, so that
// a product of integers that is 0 stays so.
struct Int8Integers {
  const TensorView& codes;
  const TensorView& scale;
  bool one_scale;

  void operator()(int64_t row, double* values) const {
    for (int64_t k = 0; k < row_length(codes); ++k) {
      values[k] = static_cast<int8_t>(byte_at(codes, row, k));
    }
  }
  double factor(int64_t row) const { return float_at(scale, one_scale ? 0 : row, 0); }
};

struct Int4Rows {
  const TensorView& codes;
  const TensorView& scale;
  const TensorView* zero;  // null: symmetric
  int64_t group;

  void operator()(int64_t row, double* values) const {
    for (int64_t k = 0; k < row_length(codes) * 2; ++k) {
      const uint8_t code = formats::nibble_of(byte_at(codes, row, k / 2), k % 2 == 1, false);
      const float s = float_at(scale, row, k / group);
      values[k] = zero ? formats::int4_asym_dequantize(code, {s, byte_at(*zero, row, k / group)})
                       : formats::int4_dequantize(formats::int4_from_nibble(code), s);
    }
  }
};

}  // namespace pestle::ops
