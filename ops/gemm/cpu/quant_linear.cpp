#include "ops/gemm/cpu/quant_linear.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "formats/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu/quant_linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/quant_decode-inl.h"
#include "backends/cpu/simd/quant_gemm-inl.h"
#include "backends/cpu/simd/quant_gemv-inl.h"

#ifndef PESTLE_OPS_COMMON_QUANT_LINEAR_SHARED_
#define PESTLE_OPS_COMMON_QUANT_LINEAR_SHARED_
namespace pestle::ops {

// x of up to kChunkRows rows, decoded, in f32: row i at x + i * stride.
inline constexpr int64_t kChunkRows = 128;
inline constexpr int64_t kPrepareColumns = 1024;  // at once; a multiple of every rotation group
inline constexpr int64_t kTileFloats = 48 * 512;  // of decoded weight a thread holds: 96 KiB
inline constexpr int64_t kMaxTileRows = 48;

struct PreparedX {
  float* data;
  int64_t stride;
  int64_t first_row;
  int64_t rows;
};

// How many weight rows and columns a tile has: few rows of x want long runs of memory.
struct Tile {
  int64_t rows;
  int64_t columns;
};
inline Tile tile_for(int64_t m) { return m < 16 ? Tile{12, 2048} : Tile{48, 512}; }

}  // namespace pestle::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::HWY_NAMESPACE {
namespace quant = cpu::HWY_NAMESPACE::quant;
using cpu::CodeKind;
using cpu::kQuantBlock;
using cpu::QuantMatrix;

// Columns [k0, k0 + columns) of one row of x as f32, in natural order.
void load_x(const QuantLinear& call, int64_t row, int64_t k0, int64_t columns, float* out) {
  const char* p = row_address(call.x, row) + k0 * dtype_bytes(call.x.dtype);
  switch (call.x.dtype) {
    case DType::kF32: std::memcpy(out, p, static_cast<size_t>(columns) * 4); break;
    case DType::kBF16:
      for (int64_t k = 0; k < columns; ++k)
        out[k] = formats::f32_from_bf16(load<uint16_t>(p + 2 * k));
      break;
    default:
      for (int64_t k = 0; k < columns; ++k)
        out[k] = formats::f32_from_f16(load<uint16_t>(p + 2 * k));
  }
  for (int64_t k = 0; call.hadamard > 0 && k < columns; k += call.hadamard) {
    formats::hadamard_rotate(out + k, call.hadamard);
  }
}

// Natural order to the order that this target decodes nibbles in.
void order_like_nibbles(const float* natural, int64_t padded, bool high_first, float* out) {
  const int64_t flip = high_first ? 1 : 0;
  for (int64_t block = 0; block < padded; block += kQuantBlock) {
    for (int64_t s = 0; s < 8; ++s) {
      for (int64_t i = 0; i < 16; ++i) {
        out[block + 16 * s + i] = natural[block + 8 * i + (s ^ flip)];
      }
    }
  }
}

// Units are kPrepareColumns columns of a row.
void prepare(const QuantLinear& call, const PreparedX& x, bool fold_columns, int64_t begin,
             int64_t end) {
  const QuantMatrix& w = call.weight;
  const int64_t units = (x.stride + kPrepareColumns - 1) / kPrepareColumns;
  const bool reorder = w.code == CodeKind::kNibble && quant::kNibblesInLanes;
  alignas(64) float natural[kPrepareColumns];
  for (int64_t u = begin; u < end; ++u) {
    const int64_t row = u / units;
    const int64_t k0 = u % units * kPrepareColumns;
    const int64_t columns = std::min(kPrepareColumns, w.columns - k0);
    const int64_t padded = std::min(kPrepareColumns, x.stride - k0);
    float* out = x.data + row * x.stride + k0;
    if (row >= x.rows) {  // rows that fill up the last kernel
      std::fill(out, out + padded, 0.0f);
      continue;
    }
    float* values = reorder ? natural : out;
    if (call.x_is_codes) {
      const bool in_order = reorder && call.x_codes.code == CodeKind::kNibble;
      if (in_order) values = out;
      quant::decode_panel(call.x_codes, x.first_row + row, k0, columns, values);
      if (reorder && !in_order) order_like_nibbles(natural, padded, w.high_first, out);
      continue;
    }
    load_x(call, x.first_row + row, k0, columns, values);
    if (fold_columns) {
      for (int64_t k = 0; k < columns; ++k) values[k] *= cpu::float_at(w.column_scale, k0 + k);
    }
    std::fill(values + columns, values + padded, 0.0f);
    if (reorder) order_like_nibbles(natural, padded, w.high_first, out);
  }
}

void store(const QuantLinear& call, int64_t row, int64_t column, float sum) {
  const float scaled = sum * call.rows.at(row) * call.columns.at(column);
  const float y = call.epilogue->apply(scaled, row, column);
  store_f32(row_address(call.out, row) + column * last_stride_bytes(call.out), call.out.dtype, y);
}

cpu::GemvX gemv_x(const QuantLinear& call, const PreparedX& x) {
  return quant::gemv_x(call.weight, x.data, x.data + x.stride);
}

void gemv(const QuantLinear& call, const PreparedX& x, const cpu::GemvX& fast, int64_t begin,
          int64_t end) {
  float sums[quant::kRows];
  for (int64_t n = begin; n < end; n += quant::kRows) {
    const int count = static_cast<int>(std::min<int64_t>(quant::kRows, end - n));
    if (fast.x) {
      quant::gemv_rows(call.weight, fast, x.data, n, count, sums);
    } else {
      for (int i = 0; i < count; ++i) sums[i] = quant::exact_row(call.weight, x.data, n + i);
    }
    for (int i = 0; i < count; ++i) store(call, x.first_row, n + i, sums[i]);
  }
}

// One tile of weight rows from `first` times all rows of x.
void gemm_rows(const QuantLinear& call, const PreparedX& x, const Tile& tile, int64_t first) {
  alignas(64) float weight[kTileFloats];
  alignas(64) float sums[kMaxTileRows * kChunkRows];
  const QuantMatrix& w = call.weight;
  const int64_t rows = std::min(tile.rows, w.rows - first);
  const int64_t padded_rows = (rows + quant::kTileW - 1) / quant::kTileW * quant::kTileW;
  const int64_t m_padded = (x.rows + quant::kTileX - 1) / quant::kTileX * quant::kTileX;
  std::fill(sums, sums + padded_rows * m_padded, 0.0f);
  std::fill(weight + rows * tile.columns, weight + padded_rows * tile.columns, 0.0f);
  for (int64_t k0 = 0; k0 < w.columns; k0 += tile.columns) {
    const int64_t columns = std::min(tile.columns, w.columns - k0);
    const int64_t padded = (columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
    for (int64_t n = 0; n < rows; ++n) {
      quant::decode_panel(w, first + n, k0, columns, weight + n * tile.columns);
    }
    for (int64_t n = 0; n < padded_rows; n += quant::kTileW) {
      for (int64_t m = 0; m < m_padded; m += quant::kTileX) {
        quant::gemm_tile(x.data + m * x.stride + k0, x.stride, weight + n * tile.columns,
                         tile.columns, padded, sums + n * m_padded + m, m_padded);
      }
    }
  }
  for (int64_t m = 0; m < x.rows; ++m) {
    for (int64_t n = 0; n < rows; ++n) {
      store(call, x.first_row + m, first + n, sums[n * m_padded + m]);
    }
  }
}

void gemm(const QuantLinear& call, const PreparedX& x, int64_t begin, int64_t end) {
  const Tile tile = tile_for(x.rows);
  for (int64_t t = begin; t < end; ++t) gemm_rows(call, x, tile, t * tile.rows);
}

}  // namespace pestle::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops {
namespace {

HWY_EXPORT(prepare);
HWY_EXPORT(gemv_x);
HWY_EXPORT(gemv);
HWY_EXPORT(gemm);

void prepare_all(const QuantLinear& call, const PreparedX& x, int64_t padded_rows, bool fold) {
  const int64_t units = padded_rows * ((x.stride + kPrepareColumns - 1) / kPrepareColumns);
  cpu::parallel_for(units, 16, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(prepare)(call, x, fold, begin, end);
  });
}

void one_row(const QuantLinear& call, const PreparedX& x) {
  prepare_all(call, x, 1, false);
  cpu::GemvX fast = HWY_DYNAMIC_DISPATCH(gemv_x)(call, x);
  QuantLinear folded = call;
  if (fast.x && call.weight.column_scale) {
    // Scales of columns go into x, once, unless that leaves the range the kernels are for. Rows
    // that turn out to need exact decoding then use the product, too.
    prepare_all(call, x, 1, true);
    fast = HWY_DYNAMIC_DISPATCH(gemv_x)(call, x);
    if (fast.x)
      folded.weight.column_scale = nullptr;
    else
      prepare_all(call, x, 1, false);
  }
  cpu::parallel_for(call.weight.rows, 32, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gemv)(folded, x, fast, begin, end);
  });
}

}  // namespace

Status run_quant_linear(const QuantLinear& call) {
  const int64_t n = call.weight.rows;
  if (call.m == 0 || n == 0) return {};
  const int64_t stride =
      (call.weight.columns + cpu::kQuantBlock - 1) / cpu::kQuantBlock * cpu::kQuantBlock;
  const auto address = (reinterpret_cast<uintptr_t>(call.workspace) + 63) & ~uintptr_t{63};
  auto* data = reinterpret_cast<float*>(address);
  for (int64_t row = 0; row < call.m; row += kChunkRows) {
    const PreparedX x{data, stride, row, std::min(kChunkRows, call.m - row)};
    if (x.rows == 1) {
      one_row(call, x);
      continue;
    }
    prepare_all(call, x, (x.rows + 3) / 4 * 4, false);
    const int64_t tile_rows = tile_for(x.rows).rows;
    cpu::parallel_for((n + tile_rows - 1) / tile_rows, 1, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(gemm)(call, x, begin, end);
    });
  }
  return {};
}

bool even_rows(const TensorView& t, int64_t& stride) {
  if (t.rank == 0) return false;
  if (t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != 1) return false;
  stride = 0;
  int64_t expected = 0;
  for (int d = t.rank - 2; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (expected == 0)
      stride = t.strides[d];
    else if (t.strides[d] != expected)
      return false;
    expected = t.strides[d] * t.shape[d];
  }
  return true;
}

std::string refuse_uneven_rows(const Call& call, std::initializer_list<int> tensors) {
  for (const int index : tensors) {
    int64_t stride = 0;
    if (!call.has(index) || even_rows(call.tensor(index), stride)) continue;
    return std::string(call.spec->args[static_cast<size_t>(index)].name) +
           " must have a dense last dimension and evenly spaced rows; copy it first";
  }
  return "";
}

}  // namespace pestle::ops
#endif  // HWY_ONCE
