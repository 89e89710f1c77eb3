// Where an element's INT8 scale lies, for every granularity.
#pragma once

#include <cstdint>

#include "ops/shared/element.h"

namespace pestle::ops {

// In the order of kInt8Granularities.
enum class Int8Granularity : int64_t { kTensor, kRow, kGroup };

// M x K elements; each row has `columns` scales of `width` elements. A scale per tensor is a grid
// of one, which all rows share.
struct Int8ScaleGrid {
  int64_t width;
  int64_t columns;
  int64_t rows;

  Int8ScaleGrid(Int8Granularity granularity, int64_t m, int64_t k, int64_t group_size)
      : width(granularity == Int8Granularity::kGroup ? group_size : k),
        columns(granularity == Int8Granularity::kGroup ? (k + group_size - 1) / group_size : 1),
        rows(granularity == Int8Granularity::kTensor ? 1 : m) {}

  int64_t count() const { return rows * columns; }
  // Index of the scale of element (i, j).
  int64_t index(int64_t i, int64_t j) const {
    return (rows == 1 ? 0 : i * columns) + (columns == 1 ? 0 : j / width);
  }
};

inline char* int8_scale_at(const TensorView& scale, const Int8ScaleGrid& grid, int64_t index) {
  return row_address(scale, index / grid.columns) + index % grid.columns * last_stride_bytes(scale);
}

}  // namespace pestle::ops
