// swizzle_scales on the CPU. Notes: swizzle_scales.md
#include <algorithm>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "formats/swizzle.h"
#include "ops/quant/block/swizzle_scales/swizzle_scales_spec.h"

namespace pestle::ops::swizzle_scales {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int64_t kRows = formats::kSwizzleRows;
constexpr int64_t kCols = formats::kSwizzleCols;
constexpr int64_t kTileBytes = kRows * kCols;
constexpr int64_t kBatch = 16;  // tiles of a row that together take whole cache lines of it

// One tile from up to 128 rows of up to 4 scales; what is missing becomes 0.
void write_tile(const uint8_t* scale, int64_t stride, int64_t rows, int64_t columns,
                uint8_t* tile) {
  if (rows < kRows || columns < kCols) std::memset(tile, 0, kTileBytes);
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* to = tile + formats::swizzle_offset(r, 0, kCols);
    if (columns == kCols)
      std::memcpy(to, scale + r * stride, kCols);
    else
      std::memcpy(to, scale + r * stride, static_cast<size_t>(columns));
  }
}

// The same for kBatch whole tiles.
void write_tiles(const uint8_t* scale, int64_t stride, uint8_t* tiles) {
  for (int64_t r = 0; r < kRows; ++r) {
    uint8_t* to = tiles + formats::swizzle_offset(r, 0, kCols);
    for (int64_t t = 0; t < kBatch; ++t) {
      std::memcpy(to + t * kTileBytes, scale + r * stride + t * kCols, kCols);
    }
  }
}

Status run(const Call& call) {
  const TensorView& scale = call.tensor(kScale);
  auto* out = call.tensor(kOut).as<uint8_t>();
  const int64_t rows = scale.shape[0];
  const int64_t columns = scale.shape[1];
  const int64_t tiles_per_row = (columns + kCols - 1) / kCols;
  const int64_t tile_rows = (rows + kRows - 1) / kRows;
  cpu::parallel_for(tile_rows * tiles_per_row, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles_per_row * kRows;
      const int64_t column = i % tiles_per_row * kCols;
      if (rows - row >= kRows && columns - column >= kBatch * kCols && end - i >= kBatch) {
        write_tiles(scale.as<uint8_t>() + row * scale.strides[0] + column, scale.strides[0],
                    out + i * kTileBytes);
        i += kBatch - 1;
        continue;
      }
      write_tile(scale.as<uint8_t>() + row * scale.strides[0] + column, scale.strides[0],
                 std::min(kRows, rows - row), std::min(kCols, columns - column),
                 out + i * kTileBytes);
    }
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (!is_contiguous(call.tensor(kOut))) return "out is not contiguous";
  const TensorView& scale = call.tensor(kScale);
  if (scale.shape[1] > 1 && scale.strides[1] != 1) {
    return "scale has gaps within its rows (last stride is not 1)";
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/swizzle_scales_tiles", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::swizzle_scales
