// Where an element's FP8 scale lies, for every granularity.
#pragma once

#include <cstdint>

#include "formats/fp8.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// In the order of kFp8Granularities.
enum class Fp8Granularity : int64_t { kTensor, kRow, kColumn, kBlock1x128, kBlock128x128 };

// One scale covers `rows` x `columns` elements of an M x K matrix; scales form a row-major grid.
struct Fp8ScaleGrid {
  int64_t rows;
  int64_t columns;
  int64_t grid_rows;
  int64_t grid_columns;

  Fp8ScaleGrid(Fp8Granularity granularity, int64_t m, int64_t k) {
    const bool one_row =
        granularity == Fp8Granularity::kRow || granularity == Fp8Granularity::kBlock1x128;
    rows = one_row ? 1 : granularity == Fp8Granularity::kBlock128x128 ? formats::kFp8Block : m;
    columns = granularity == Fp8Granularity::kColumn ? 1
              : granularity == Fp8Granularity::kTensor || granularity == Fp8Granularity::kRow
                  ? k
                  : formats::kFp8Block;
    // A scale that covers the whole extent exists even when the extent is empty.
    const bool all_rows = !one_row && granularity != Fp8Granularity::kBlock128x128;
    const bool all_columns =
        granularity == Fp8Granularity::kTensor || granularity == Fp8Granularity::kRow;
    grid_rows = all_rows ? 1 : (m + rows - 1) / rows;
    grid_columns = all_columns ? 1 : (k + columns - 1) / columns;
  }
  int64_t count() const { return grid_rows * grid_columns; }
  // Index of the scale of element (i, j) in the grid.
  int64_t index(int64_t i, int64_t j) const {
    const int64_t r = grid_rows == 1 ? 0 : i / rows;
    const int64_t c = grid_columns == 1 ? 0 : j / columns;
    return r * grid_columns + c;
  }
};

// Scales form a grid of rows; a scale per tensor is a row of one.
inline char* fp8_scale_at(const TensorView& scale, const Fp8ScaleGrid& grid, int64_t index) {
  return row_address(scale, index / grid.grid_columns) +
         index % grid.grid_columns * last_stride_bytes(scale);
}

}  // namespace pestle::ops
