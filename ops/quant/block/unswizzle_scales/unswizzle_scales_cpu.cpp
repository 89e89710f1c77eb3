// unswizzle_scales on the CPU. Notes: unswizzle_scales.md
#include <algorithm>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "formats/swizzle.h"
#include "ops/quant/block/unswizzle_scales/unswizzle_scales_spec.h"

namespace pestle::ops::unswizzle_scales {
namespace {

constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int64_t kRows = formats::kSwizzleRows;
constexpr int64_t kCols = formats::kSwizzleCols;
constexpr int64_t kTileBytes = kRows * kCols;
constexpr int64_t kBatch = 16;  // tiles of a row that together take whole cache lines of it

// Columns [4 * tile, 4 * tile + columns) of the rows of one tile, each 4 bytes of the tile.
void read_tile(const uint8_t* tile, uint8_t* out, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* from = tile + formats::swizzle_offset(r, 0, kCols);
    if (columns == kCols)
      std::memcpy(out + r * stride, from, kCols);
    else
      std::memcpy(out + r * stride, from, static_cast<size_t>(columns));
  }
}

// The same for kBatch whole tiles.
void read_tiles(const uint8_t* tiles, uint8_t* out, int64_t stride) {
  for (int64_t r = 0; r < kRows; ++r) {
    const uint8_t* from = tiles + formats::swizzle_offset(r, 0, kCols);
    for (int64_t t = 0; t < kBatch; ++t) {
      std::memcpy(out + r * stride + t * kCols, from + t * kTileBytes, kCols);
    }
  }
}

Status run(const Call& call) {
  const auto* scale = call.tensor(kScale).as<uint8_t>();
  const TensorView& out = call.tensor(kOut);
  const int64_t rows = out.shape[0];
  const int64_t columns = out.shape[1];
  const int64_t tiles_per_row = (columns + kCols - 1) / kCols;
  const int64_t tile_rows = (rows + kRows - 1) / kRows;
  cpu::parallel_for(tile_rows * tiles_per_row, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles_per_row * kRows;
      const int64_t column = i % tiles_per_row * kCols;
      if (rows - row >= kRows && columns - column >= kBatch * kCols && end - i >= kBatch) {
        read_tiles(scale + i * kTileBytes, out.as<uint8_t>() + row * out.strides[0] + column,
                   out.strides[0]);
        i += kBatch - 1;
        continue;
      }
      read_tile(scale + i * kTileBytes, out.as<uint8_t>() + row * out.strides[0] + column,
                out.strides[0], std::min(kRows, rows - row), std::min(kCols, columns - column));
    }
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (!is_contiguous(call.tensor(kScale))) return "scale is not contiguous";
  const TensorView& out = call.tensor(kOut);
  if (out.shape[1] > 1 && out.strides[1] != 1) {
    return "out has gaps within its rows (last stride is not 1)";
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/unswizzle_scales_tiles", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::unswizzle_scales
