// The 128x4 tile order of block scales that cuBLAS reads (ComfyUI stores NVFP4 and MXFP8 so).
// docs/formats/swizzle.md
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace pestle::formats {

inline constexpr int64_t kSwizzleRows = 128;
inline constexpr int64_t kSwizzleCols = 4;

PESTLE_HD inline int64_t swizzle_padded_rows(int64_t rows) { return (rows + 127) / 128 * 128; }
PESTLE_HD inline int64_t swizzle_padded_cols(int64_t cols) { return (cols + 3) / 4 * 4; }
PESTLE_HD inline int64_t swizzle_size(int64_t rows, int64_t cols) {
  return swizzle_padded_rows(rows) * swizzle_padded_cols(cols);
}

// Where scale (row, col) of a matrix with `cols` scales a row lies; padding entries hold 0.
PESTLE_HD inline int64_t swizzle_offset(int64_t row, int64_t col, int64_t cols) {
  const int64_t tile = (row / 128) * ((cols + 3) / 4) + col / 4;
  return (tile * 32 + row % 32) * 16 + (row % 128) / 32 * 4 + col % 4;
}

struct SwizzleCoord {
  int64_t row;
  int64_t col;
};

// Inverse of swizzle_offset; may name a padding entry (row or col beyond the matrix).
PESTLE_HD inline SwizzleCoord swizzle_coord(int64_t offset, int64_t cols) {
  const int64_t tiles_per_row = (cols + 3) / 4;
  const int64_t tile = offset / 512;
  const int64_t in = offset % 512;
  return {tile / tiles_per_row * 128 + (in % 16) / 4 * 32 + in / 16,
          tile % tiles_per_row * 4 + in % 4};
}

}  // namespace pestle::formats
