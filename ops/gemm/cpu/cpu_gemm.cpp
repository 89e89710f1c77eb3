#include "ops/gemm/cpu/cpu_gemm.h"

#include <algorithm>
#include <array>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/float_gemm.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/shared/element.h"

namespace pestle::ops {
namespace {

constexpr int64_t kRows = 128;    // of a at once
constexpr int64_t kDepth = 512;   // of k a piece of b, along k
constexpr int64_t kAlong = 48;    // of its rows
constexpr int64_t kShallow = 64;  // of k, across
constexpr int64_t kAcross = 192;  // of its columns
constexpr int64_t kPiece = 512;   // elements that are converted at once

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

bool is_fp8(DType t) { return t == DType::kE4M3 || t == DType::kE5M2; }

// The values of all codes, each made once.
template <class F>
const float* values_of() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (int i = 0; i < 256; ++i)
      t[static_cast<size_t>(i)] = formats::f32_from_code<F>(static_cast<uint8_t>(i));
    return t;
  }();
  return table.data();
}

bool along_columns(const CpuMatrix& m) { return m.column_stride == 1 || m.row_stride != 1; }

// Rows [row, row + n) of columns [column, column + count) to out[n, out_stride].
void load_block(const CpuMatrix& m, int64_t row, int64_t n, int64_t column, int64_t count,
                float* out, int64_t out_stride) {
  const int64_t bytes = dtype_bytes(m.dtype);
  const char* p = m.data + (row * m.row_stride + column * m.column_stride) * bytes;
  if (along_columns(m)) {
    for (int64_t i = 0; i < n; ++i)
      load_values(p + i * m.row_stride * bytes, m.dtype, m.column_stride, count,
                  out + i * out_stride);
    return;
  }
  float piece[kPiece];
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t first = 0; first < n; first += kPiece) {
      const int64_t some = std::min(kPiece, n - first);
      load_values(p + (first * m.row_stride + j * m.column_stride) * bytes, m.dtype, m.row_stride,
                  some, piece);
      for (int64_t i = 0; i < some; ++i) out[(first + i) * out_stride + j] = piece[i];
    }
  }
}

// A chunk of rows of one GEMM.
struct Chunk {
  const CpuMatrix& a;
  const CpuMatrix& b;
  int64_t first = 0, rows = 0;
  float* values = nullptr;  // of a: [round_up(rows, kGemmRows), depth]
  int64_t depth = 0;        // K with zeros to a multiple of 128
  float* sums = nullptr;    // [round_up(rows, kGemmRows), width]
  int64_t width = 0;        // N up to a multiple of kGemmAcross

  int64_t padded_rows() const { return round_up(rows, cpu::kGemmRows); }
};

void prepare_rows(const Chunk& c) {
  cpu::parallel_for(c.padded_rows() / cpu::kGemmRows, 1, [&](int64_t begin, int64_t end) {
    const int64_t row = begin * cpu::kGemmRows;
    const int64_t count = std::min(end * cpu::kGemmRows, c.rows) - row;
    load_block(c.a, c.first + row, count, 0, c.a.columns, c.values + row * c.depth, c.depth);
    for (int64_t i = row; i < end * cpu::kGemmRows; ++i) {
      float* p = c.values + i * c.depth;
      std::fill(p + (i < c.rows ? c.a.columns : 0), p + c.depth, 0.0f);
    }
  });
}

// b's columns lie along k: its pieces as rows, sums turned into rows of out.
void add_along(const Chunk& c, int64_t column) {
  alignas(64) float b[kAlong * kDepth];
  alignas(64) float sums[kAlong * kRows];
  const int64_t n = std::min(kAlong, c.b.columns - column);
  const int64_t padded = round_up(n, cpu::kGemmAlong);
  const CpuMatrix& m = c.b;
  std::fill(sums, sums + kAlong * kRows, 0.0f);
  std::fill(b + n * kDepth, b + padded * kDepth, 0.0f);
  for (int64_t k = 0; k < m.rows; k += kDepth) {
    const int64_t count = std::min(kDepth, m.rows - k);
    const int64_t depth = round_up(count, cpu::kGemmDepth);
    for (int64_t i = 0; i < n; ++i) {
      const char* p =
          m.data + ((column + i) * m.column_stride + k * m.row_stride) * dtype_bytes(m.dtype);
      load_values(p, m.dtype, m.row_stride, count, b + i * kDepth);
      std::fill(b + i * kDepth + count, b + i * kDepth + depth, 0.0f);
    }
    cpu::gemm_along(
        {c.values + k, c.depth, b, kDepth, sums, kRows, c.padded_rows(), padded, depth});
  }
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < n; ++j) c.sums[i * c.width + column + j] = sums[j * kRows + i];
}

void add_across(const Chunk& c, int64_t column) {
  alignas(64) float b[kShallow * kAcross];
  const int64_t n = std::min(kAcross, c.b.columns - column);
  const int64_t padded = round_up(n, cpu::kGemmAcross);
  for (int64_t i = 0; i < c.padded_rows(); ++i) {
    float* p = c.sums + i * c.width + column;
    std::fill(p, p + padded, 0.0f);
  }
  if (n < padded)
    for (int64_t k = 0; k < kShallow; ++k)
      std::fill(b + k * kAcross + n, b + k * kAcross + padded, 0.0f);
  for (int64_t k = 0; k < c.b.rows; k += kShallow) {
    const int64_t count = std::min(kShallow, c.b.rows - k);
    load_block(c.b, k, count, column, n, b, kAcross);
    cpu::gemm_across({c.values + k, c.depth, b, kAcross, c.sums + column, c.width, c.padded_rows(),
                      padded, count});
  }
}

void multiply(const Chunk& c) {
  // A piece of b is kept as it lies: no transposing.
  const bool across = c.b.column_stride == 1 && c.b.row_stride != 1;
  const int64_t step = across ? kAcross : kAlong;
  cpu::parallel_for((c.b.columns + step - 1) / step, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) across ? add_across(c, i * step) : add_along(c, i * step);
  });
}

}  // namespace

CpuMatrix::CpuMatrix(const TensorView& t, int64_t batch)
    : data(t.shape[t.rank - 2] == 0 ? t.as<char>() : row_address(t, batch * t.shape[t.rank - 2])),
      dtype(t.dtype),
      rows(t.shape[t.rank - 2]),
      columns(t.shape[t.rank - 1]),
      row_stride(t.strides[t.rank - 2]),
      column_stride(t.strides[t.rank - 1]) {}

CpuMatrix CpuMatrix::transposed() const {
  CpuMatrix m = *this;
  std::swap(m.rows, m.columns);
  std::swap(m.row_stride, m.column_stride);
  return m;
}

void load_values(const char* p, DType dtype, int64_t stride, int64_t count, float* out) {
  if (is_fp8(dtype)) {
    const float* table =
        dtype == DType::kE4M3 ? values_of<formats::E4m3>() : values_of<formats::E5m2>();
    for (int64_t i = 0; i < count; ++i) out[i] = table[load<uint8_t>(p + i * stride)];
    return;
  }
  if (stride == 1) return cpu::row_load(p, dtype, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = load_f32(p + i * stride * dtype_bytes(dtype), dtype);
}

void load_values(const TensorView& t, int64_t row, int64_t column, int64_t count, float* out) {
  load_values(row_address(t, row) + column * last_stride_bytes(t), t.dtype, t.strides[t.rank - 1],
              count, out);
}

void store_values(const TensorView& t, int64_t row, int64_t column, int64_t count,
                  const float* from) {
  const int64_t step = last_stride_bytes(t);
  char* p = row_address(t, row) + column * step;
  if (step == dtype_bytes(t.dtype)) return cpu::row_store(from, p, t.dtype, count);
  for (int64_t i = 0; i < count; ++i) store_f32(p + i * step, t.dtype, from[i]);
}

void multiply_matrices(const CpuMatrix& a, const CpuMatrix& b, void* memory,
                       const std::function<void(const GemmRows&)>& take) {
  auto* floats =
      reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t{63});
  Chunk c{a, b};
  c.depth = round_up(a.columns, 128);
  c.width = round_up(b.columns, cpu::kGemmAcross);
  for (c.first = 0; c.first < a.rows; c.first += kRows) {
    c.rows = std::min(kRows, a.rows - c.first);
    c.values = floats;
    c.sums = floats + c.padded_rows() * c.depth;
    prepare_rows(c);
    multiply(c);
    take({c.first, c.rows, c.sums, c.width});
  }
}

}  // namespace pestle::ops
