// matmul_backward, reference: float64, one matrix of the batch after the other.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "ops/activation/activation_args.h"
#include "ops/gemm/matmul_backward/matmul_backward_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::matmul_backward {
namespace {

// rows x columns values, row-major.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c)) {}
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

char* element(const TensorView& t, int64_t batch, int64_t row, int64_t column) {
  return row_address(t, batch * t.shape[t.rank - 2] + row) + column * last_stride_bytes(t);
}

Matrix read(const TensorView& t, int64_t batch, bool transposed) {
  const int64_t rows = t.shape[t.rank - 2], columns = row_length(t);
  Matrix m(transposed ? columns : rows, transposed ? rows : columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c)
      (transposed ? m.at(c, r) : m.at(r, c)) = load_f64(element(t, batch, r, c), t.dtype);
  }
  return m;
}

// left @ right^T, both row-major along what is summed up; or the sums of the terms' magnitudes.
Matrix product(const Matrix& left, const Matrix& right, bool magnitudes) {
  Matrix out(left.rows, right.rows);
  for (int64_t i = 0; i < left.rows; ++i) {
    for (int64_t j = 0; j < right.rows; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < left.columns; ++k) {
        const double term = left.at(i, k) * right.at(j, k);
        sum += magnitudes ? std::fabs(term) : term;
      }
      out.at(i, j) = sum;
    }
  }
  return out;
}

Matrix transposed(const Matrix& m) {
  Matrix t(m.columns, m.rows);
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.columns; ++c) t.at(c, r) = m.at(r, c);
  return t;
}

void write(const Matrix& m, double factor, const TensorView& t, int64_t batch) {
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.columns; ++c)
      store_f64(element(t, batch, r, c), t.dtype, m.at(r, c) * factor);
}

// g *= activation'(a @ b * alpha + bias). Magnitudes: what the slope adds up, and the errors of the
// product made again times the largest second derivative.
void multiply_by_slopes(const Call& call, const Matrix& a, const Matrix& b_columns, double alpha,
                        Matrix& g) {
  constexpr double kSecond = 1.5;
  constexpr Activation kKinds[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};
  const Activation kind = kKinds[call.integer(kActivation) - 1];
  const Matrix sums = product(a, b_columns, false);
  const Matrix sizes = call.sum_magnitudes ? product(a, b_columns, true) : Matrix(0, 0);
  for (int64_t r = 0; r < g.rows; ++r) {
    for (int64_t c = 0; c < g.columns; ++c) {
      double bias = 0;
      if (call.has(kBias)) bias = load_f64(at(call.tensor(kBias), c), call.tensor(kBias).dtype);
      const Activated64 slope = slope64(kind, sums.at(r, c) * alpha + bias);
      double& value = g.at(r, c);
      if (call.sum_magnitudes) {
        const double size = sizes.at(r, c) * std::fabs(alpha) + std::fabs(bias);
        value = std::fabs(value) * (slope.size + kSecond * size);
      } else {
        value *= slope.value;
      }
    }
  }
}

Status run(const Call& call) {
  const TensorView& d_out = call.tensor(kDOut);
  const bool magnitudes = call.sum_magnitudes;
  const double signed_alpha = call.has(kAlpha) ? load<float>(call.tensor(kAlpha).data) : 1;
  const double alpha = magnitudes ? std::fabs(signed_alpha) : signed_alpha;
  const int64_t n = row_length(d_out);
  int64_t batches = 1;
  for (int d = 0; d < d_out.rank - 2; ++d) batches *= d_out.shape[d];
  std::vector<double> d_bias(static_cast<size_t>(n));
  for (int64_t batch = 0; batch < batches; ++batch) {
    Matrix g = read(d_out, batch, false);
    for (int64_t r = 0; call.has(kDResidual) && r < g.rows; ++r) {
      const TensorView& to = call.tensor(kDResidual);
      for (int64_t c = 0; c < n; ++c)
        store_f64(element(to, batch, r, c), to.dtype,
                  magnitudes ? std::fabs(g.at(r, c)) : g.at(r, c));
    }
    const Matrix a = read(call.tensor(kA), batch, false);
    const Matrix b_columns = read(call.tensor(kB), batch, true);  // N x K
    if (call.integer(kActivation) != 0) multiply_by_slopes(call, a, b_columns, signed_alpha, g);
    write(product(g, transposed(b_columns), magnitudes), alpha, call.tensor(kDA), batch);
    write(product(transposed(a), transposed(g), magnitudes), alpha, call.tensor(kDB), batch);
    for (int64_t r = 0; r < g.rows; ++r)
      for (int64_t c = 0; c < n; ++c)
        d_bias[static_cast<size_t>(c)] += magnitudes ? std::fabs(g.at(r, c)) : g.at(r, c);
  }
  for (int64_t c = 0; call.has(kDBias) && c < n; ++c) {
    const TensorView& to = call.tensor(kDBias);
    store_f64(at(to, c), to.dtype, d_bias[static_cast<size_t>(c)]);
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::matmul_backward
