// Block formats (NVFP4, MXFP8, MXFP4): where a block's scale lies, and blocks of a padded matrix.
#pragma once

#include "core/op_spec.h"
#include "formats/swizzle.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// Pieces of the contracts of every op with block scales.
inline constexpr const char* kScaleLayouts = "swizzled|plain";
inline constexpr const char* kScaleLayoutDoc =
    "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
inline constexpr const char* kNibblesDoc = "which nibble of a byte holds the even element";
inline constexpr const char* kRoundingDoc =
    "nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q";

// Scales of a matrix with `columns` of them a row, in a tensor of any strides. The swizzled tensor
// is [round_up(rows,128), round_up(columns,4)]; only its row-major order of bytes has a meaning.
struct BlockScales {
  TensorView tensor;
  int64_t columns;
  bool swizzled;

  char* address(int64_t row, int64_t column) const {
    if (!swizzled) return at(tensor, row, column);
    const int64_t offset = formats::swizzle_offset(row, column, columns);
    return at(tensor, offset / tensor.shape[1], offset % tensor.shape[1]);
  }
  uint8_t load_code(int64_t row, int64_t column) const {
    return load<uint8_t>(address(row, column));
  }
  void store_code(int64_t row, int64_t column, uint8_t code) const {
    store(address(row, column), code);
  }
  // Every entry, so that padding is written too.
  void clear() const {
    for (int64_t i = 0; i < tensor.shape[0]; ++i) {
      for (int64_t j = 0; j < tensor.shape[1]; ++j) store(at(tensor, i, j), uint8_t{0});
    }
  }
};

// Elements [column, column + count) of a row of `x`; 0 outside the matrix.
inline void gather_padded(const TensorView& x, int64_t row, int64_t column, int64_t count,
                          float* values) {
  for (int64_t j = 0; j < count; ++j) {
    const bool inside = row < x.shape[0] && column + j < x.shape[1];
    values[j] = inside ? load_f32(at(x, row, column + j), x.dtype) : 0.0f;
  }
}

}  // namespace pestle::ops
