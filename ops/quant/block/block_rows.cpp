#include "ops/quant/block/block_rows.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "formats/mx.h"
#include "formats/swizzle.h"

namespace pestle::ops {
namespace {

// The widest group: 64 MX blocks of f32.
constexpr int64_t kPadBytes = kGroupBlocks * formats::kMxBlock * 4;

// Rows of scales of one tile share cache lines, so a thread gets whole tiles when there are many.
int64_t grain_rows(int64_t rows, int64_t groups_per_row) {
  if (rows >= 8 * formats::kSwizzleRows) return formats::kSwizzleRows;
  return std::clamp<int64_t>(16 / std::max<int64_t>(groups_per_row, 1), 1, rows);
}

// Four neighbouring swizzled scales of a row lie together, the next four one tile further on.
constexpr int64_t kTileBytes = formats::kSwizzleRows * formats::kSwizzleCols;

// Scales of the blocks [first, first + count) of a row. In the swizzled layout the row's last ones
// come with their padding, for which `codes` has room.
void store_scales(const BlockMatrix& m, int64_t row, int64_t first, int64_t count, uint8_t* codes) {
  if (!m.swizzled) {
    std::memcpy(m.scales + row * m.scale_row_bytes + first, codes, static_cast<size_t>(count));
    return;
  }
  for (; count % formats::kSwizzleCols != 0; ++count) codes[count] = 0;
  uint8_t* to = m.scales + formats::swizzle_offset(row, first, m.columns / m.block);
  for (int64_t i = 0; i < count; i += formats::kSwizzleCols, to += kTileBytes) {
    std::memcpy(to, codes + i, formats::kSwizzleCols);
  }
}

void load_scales(const BlockMatrix& m, int64_t row, int64_t first, int64_t count, uint8_t* codes) {
  if (!m.swizzled) {
    std::memcpy(codes, m.scales + row * m.scale_row_bytes + first, static_cast<size_t>(count));
    return;
  }
  const uint8_t* from = m.scales + formats::swizzle_offset(row, first, m.columns / m.block);
  for (int64_t i = 0; i < count; i += formats::kSwizzleCols, from += kTileBytes) {
    std::memcpy(codes + i, from, formats::kSwizzleCols);
  }
}

void quantize_group(const BlockMatrix& m, int64_t row, int64_t first, GroupBody body,
                    const BlockParams& params) {
  const int64_t blocks = std::min(kGroupBlocks, m.columns / m.block - first);
  const int64_t column = first * m.block;
  uint8_t scales[kGroupBlocks] = {};
  if (row >= m.code_rows) {  // padding of the scales' tiles
    store_scales(m, row, first, blocks, scales);
    return;
  }
  BlockGroup group{m.values + row * m.value_row_bytes + column * m.value_bytes,
                   m.codes + row * m.code_row_bytes + column * m.code_bits / 8, scales, blocks,
                   static_cast<uint64_t>(row * m.columns + column)};
  const int64_t inside =
      row < m.value_rows ? std::min(m.value_columns - column, blocks * m.block) : 0;
  alignas(64) uint8_t padded[kPadBytes];
  if (inside < blocks * m.block) {
    std::memset(padded, 0, static_cast<size_t>(blocks * m.block * m.value_bytes));
    if (inside > 0) std::memcpy(padded, group.values, static_cast<size_t>(inside * m.value_bytes));
    group.values = padded;
  }
  body(params, group);
  store_scales(m, row, first, blocks, scales);
}

}  // namespace

BlockMatrix::BlockMatrix(const TensorView& matrix, const TensorView& q, const TensorView& scale,
                         bool is_swizzled, int bits, int64_t block_size)
    : values(matrix.as<uint8_t>()),
      value_rows(matrix.shape[0]),
      value_columns(matrix.shape[1]),
      value_row_bytes(matrix.strides[0] * dtype_bytes(matrix.dtype)),
      value_bytes(dtype_bytes(matrix.dtype)),
      codes(q.as<uint8_t>()),
      code_rows(q.shape[0]),
      code_row_bytes(q.strides[0]),
      code_bits(bits),
      scales(scale.as<uint8_t>()),
      scale_rows(scale.shape[0]),
      scale_row_bytes(scale.strides[0]),
      swizzled(is_swizzled),
      columns(q.shape[1] * 8 / bits),
      block(block_size) {}

std::string refuse_block_layout(const TensorView& matrix, const char* matrix_name,
                                const TensorView& q, const TensorView& scale,
                                const char* scale_name, bool swizzled) {
  const auto gaps = [](const TensorView& t) { return t.shape[1] > 1 && t.strides[1] != 1; };
  const char* strided = gaps(matrix) ? matrix_name : gaps(q) ? "q" : nullptr;
  if (strided) return std::string(strided) + " has gaps within its rows (last stride is not 1)";
  if (swizzled ? !is_contiguous(scale) : gaps(scale)) {
    return std::string(scale_name) + " is not contiguous";
  }
  return {};
}

void quantize_groups(const BlockMatrix& m, GroupBody body, const BlockParams& params) {
  const int64_t groups = (m.columns / m.block + kGroupBlocks - 1) / kGroupBlocks;
  const int64_t rows = m.swizzled ? m.scale_rows : m.code_rows;
  if (groups == 0 || rows == 0) return;
  cpu::parallel_for(rows * groups, grain_rows(rows, groups) * groups,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        quantize_group(m, i / groups, i % groups * kGroupBlocks, body, params);
                      }
                      hwy::FlushStream();  // bodies may have written past the caches
                    });
}

void dequantize_groups(const BlockMatrix& m, GroupBody body, const BlockParams& params) {
  const int64_t groups = (m.columns / m.block + kGroupBlocks - 1) / kGroupBlocks;
  if (groups == 0 || m.code_rows == 0) return;
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / groups;
      const int64_t first = i % groups * kGroupBlocks;
      const int64_t blocks = std::min(kGroupBlocks, m.columns / m.block - first);
      const int64_t column = first * m.block;
      uint8_t scales[kGroupBlocks] = {};
      load_scales(m, row, first, blocks, scales);
      body(params, {m.values + row * m.value_row_bytes + column * m.value_bytes,
                    m.codes + row * m.code_row_bytes + column * m.code_bits / 8, scales, blocks,
                    static_cast<uint64_t>(row * m.columns + column)});
    }
    hwy::FlushStream();  // bodies may have written past the caches
  };
  cpu::parallel_for(m.code_rows * groups, grain_rows(m.code_rows, groups) * groups, range);
}

}  // namespace pestle::ops
