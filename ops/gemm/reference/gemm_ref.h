// The reference of every op that is a GEMM of two matrices of rows: plain loops, float64 sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "ops/gemm/epilogue/epilogue.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// left(m, values) and right(n, values) write the K decoded values of a row. A left side may have
// slack(m, values), too: what each value may be off, counted with the terms' magnitudes. Either
// side may have factor(m) or factor(n), which multiplies the finished sum; of a right side that has
// `lost`, too, sums may be off by as much of their size.
template <class Left, class Right>
Status matmul_reference(const Call& call, const TensorView& out, int64_t k, int first_epilogue_arg,
                        const Left& left, const Right& right) {
  constexpr int64_t kRows = 64;  // rows of the left side that share a decoded row of the right
  const ReferenceEpilogue epilogue(call, first_epilogue_arg, out);
  const auto length = static_cast<size_t>(k);
  std::vector<double> a(kRows * length);
  std::vector<double> b(length);
  constexpr bool kMayBeOff = requires(double* values) { left.slack(0, values); };
  std::vector<double> off(kMayBeOff && call.sum_magnitudes ? kRows * length : 0);
  const int64_t rows = row_count(out);
  const int64_t columns = row_length(out) * (epilogue.e.gated ? 2 : 1);
  std::vector<SumOfTerms> sums(static_cast<size_t>(std::min(rows, kRows) * columns));
  for (int64_t m0 = 0; m0 < rows; m0 += kRows) {
    const int64_t m1 = std::min(rows, m0 + kRows);
    for (int64_t m = m0; m < m1; ++m) {
      left(m, a.data() + (m - m0) * k);
      if constexpr (kMayBeOff)
        if (!off.empty()) left.slack(m, off.data() + (m - m0) * k);
    }
    for (int64_t n = 0; n < columns; ++n) {
      right(n, b.data());
      for (int64_t m = m0; m < m1; ++m) {
        const double* row = a.data() + (m - m0) * k;
        SumOfTerms sum;
        for (size_t i = 0; i < length; ++i) sum.add(row[i] * b[i]);
        for (size_t i = 0; i < length && !off.empty(); ++i)
          sum.size += off[static_cast<size_t>((m - m0) * k) + i] * std::fabs(b[i]);
        double of_row = 1, of_column = 1, lost = 0;
        if constexpr (requires { left.factor(m); }) of_row = left.factor(m);
        if constexpr (requires { right.factor(n); }) of_column = right.factor(n);
        if constexpr (requires { right.lost; }) lost = right.lost;
        sum.multiply(of_row, of_column, lost);
        sums[static_cast<size_t>((m - m0) * columns + n)] = sum;
      }
    }
    for (int64_t m = m0; m < m1; ++m) {
      const SumOfTerms* row = sums.data() + (m - m0) * columns;
      epilogue.store_row(out, m, [&](int64_t n) { return row[n]; });
    }
  }
  return {};
}

// The left side of a linear: x, rotated in f32 in groups of `hadamard` columns (0: not).
struct LinearX {
  const TensorView& x;
  int64_t hadamard;

  void operator()(int64_t m, double* values) const {
    const int64_t k = row_length(x);
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      row[static_cast<size_t>(i)] = load_f32(row_address(x, m) + i * last_stride_bytes(x), x.dtype);
    }
    for (int64_t i = 0; hadamard > 0 && i < k; i += hadamard) {
      formats::hadamard_rotate(row.data() + i, hadamard);
    }
    std::copy(row.begin(), row.end(), values);
  }
};

// Element (row, column) of a tensor of bytes.
inline uint8_t byte_at(const TensorView& t, int64_t row, int64_t column) {
  return load<uint8_t>(row_address(t, row) + column * last_stride_bytes(t));
}
inline float float_at(const TensorView& t, int64_t row, int64_t column) {
  return load<float>(row_address(t, row) + column * last_stride_bytes(t));
}

}  // namespace pestle::ops
