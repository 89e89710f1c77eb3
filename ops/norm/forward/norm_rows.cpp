#include "ops/norm/forward/norm_rows.h"

#include <cfloat>
#include <cmath>
#include <vector>

#include "backends/cpu/simd/row_math.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops {
namespace {

float rounded_to(DType dtype, float v) {
  char bytes[8];
  store_f32(bytes, dtype, v);
  return load_f32(bytes, dtype);
}

// ---- reference ----

double value_at(const TensorView& t, int64_t row, int64_t j) {
  return load_f64(row_address(t, row) + j * last_stride_bytes(t), t.dtype);
}

// A number and what its error is measured against.
struct Term {
  double v = 0;
  double magnitude = 0;
};

struct ReferenceRow {
  const NormRows& n;
  std::vector<Term> s;
  std::vector<double> centred;  // magnitude of s - mean
  double mean = 0;
  double rstd = 0;
  double condition = 0;  // of rstd: how much errors of s weigh in it

  explicit ReferenceRow(const NormRows& norm)
      : n(norm), s(static_cast<size_t>(norm.columns())), centred(s.size()) {}

  void load(int64_t row) {
    double sum = 0, sum_magnitude = 0;
    for (size_t i = 0; i < s.size(); ++i) {
      const auto j = static_cast<int64_t>(i);
      double v = value_at(n.x, row, j);
      if (n.gate.data) v *= value_at(n.gate, n.group_of(n.gate, row), j);
      const double r = n.residual.data ? value_at(n.residual, row, j) : 0;
      s[i] = {v + r, std::fabs(v) + std::fabs(r)};
      sum += s[i].v;
      sum_magnitude += s[i].magnitude;
    }
    const double count = static_cast<double>(s.size());
    mean = n.subtract_mean ? sum / count : 0;
    double squares = 0, square_magnitudes = 0;
    for (size_t i = 0; i < s.size(); ++i) {
      centred[i] = s[i].magnitude + (n.subtract_mean ? sum_magnitude / count : 0);
      squares += (s[i].v - mean) * (s[i].v - mean);
      square_magnitudes += centred[i] * centred[i];
    }
    rstd = 1 / std::sqrt(squares / count + double{n.eps});
    condition = std::sqrt(square_magnitudes / count) * rstd;
    // Squares that f32 can't hold leave nothing to compare with.
    if (!(square_magnitudes <= FLT_MAX / 2)) condition = INFINITY;
  }

  Term output(int64_t row, int64_t j) const {
    const auto i = static_cast<size_t>(j);
    Term y{(s[i].v - mean) * rstd, 0};
    y.magnitude = centred[i] * rstd;
    if (y.v != 0 || std::isinf(condition)) y.magnitude += std::fabs(y.v) * condition;
    if (std::isinf(condition)) y.magnitude = INFINITY;
    const auto times = [&](double f, double magnitude) {
      y.v *= f;
      y.magnitude *= magnitude;
    };
    const auto plus = [&](double v) {
      y.v += v;
      y.magnitude += std::fabs(v);
    };
    if (n.weight.data) {
      const double w = value_at(n.weight, 0, j);
      times(w, std::fabs(w));
    }
    if (n.bias.data) plus(value_at(n.bias, 0, j));
    if (n.scale.data) {
      const double f = value_at(n.scale, n.group_of(n.scale, row), j);
      times(1 + f, 1 + std::fabs(f));
    }
    if (n.shift.data) plus(value_at(n.shift, n.group_of(n.shift, row), j));
    return y;
  }
};

// Codes of a row by the scalar rules.
void reference_codes(const NormRows& n, int64_t row, std::vector<float>& values) {
  for (float& v : values) v = rounded_to(n.x.dtype, v);
  const auto count = static_cast<int64_t>(values.size());
  const bool computes = n.quant.computes_row_scale();
  const uint32_t amax = computes ? quantized_amax(n.quant, values.data(), count) : 0;
  quantize_piece(n.quant, row, 0, values.data(), count, quantized_row_scale(n.quant, row, amax),
                 computes);
}

}  // namespace

Status norm_rows_reference(const Call& call, const NormRows& n) {
  clear_scale_padding(n.quant);
  ReferenceRow reference(n);
  std::vector<float> values(static_cast<size_t>(n.columns()));
  const auto put = [&](const TensorView& t, int64_t row, int64_t j, const Term& term) {
    store_f64(row_address(t, row) + j * last_stride_bytes(t), t.dtype,
              call.sum_magnitudes ? term.magnitude : term.v);
  };
  for (int64_t row = 0; row < n.rows(); ++row) {
    reference.load(row);
    for (int64_t j = 0; j < n.columns(); ++j) {
      const auto i = static_cast<size_t>(j);
      const Term y = reference.output(row, j);
      values[i] = static_cast<float>(y.v);
      if (n.residual_out.data) put(n.residual_out, row, j, reference.s[i]);
      if (n.out.data) put(n.out, row, j, y);
    }
    if (n.quant.format != OutFormat::kNone) reference_codes(n, row, values);
  }
  return {};
}

// ---- the CPU's fast path ----

namespace {

// Floats of a row that are kept; longer rows are read again for each pass. A multiple of 1024, so
// that pieces hold whole blocks and rotations.
constexpr int64_t kPiece = 8192;

struct RowWorker {
  const NormRows& n;
  const int64_t k = n.columns();
  const bool stream = k * n.rows() * dtype_bytes(n.x.dtype) >= (int64_t{8} << 20);
  int64_t row = 0;
  float mean = 0;
  float rstd = 0;
  alignas(64) float v[kPiece];
  alignas(64) float other[kPiece];

  explicit RowWorker(const NormRows& norm) : n(norm) {}

  static char* element(const TensorView& t, int64_t r, int64_t j) {
    return row_address(t, r) + j * dtype_bytes(t.dtype);
  }
  const float* load_other(const TensorView& t, int64_t r, int64_t j, int64_t count) {
    cpu::row_load(element(t, r, j), t.dtype, other, count);
    return other;
  }
  void load_sum(int64_t j, int64_t count) {
    cpu::row_load(element(n.x, row, j), n.x.dtype, v, count);
    if (n.gate.data) {
      cpu::row_multiply(v, load_other(n.gate, n.group_of(n.gate, row), j, count), v, count);
    }
    if (n.residual.data) cpu::row_add(v, load_other(n.residual, row, j, count), v, count);
  }
  template <class Body>
  void for_pieces(Body&& body) {
    for (int64_t j = 0; j < k; j += kPiece) body(j, std::min(kPiece, k - j));
  }
  bool kept() const { return k <= kPiece; }

  void find_statistics() {
    const double count = static_cast<double>(k);
    if (kept()) load_sum(0, k);
    mean = 0;
    if (n.subtract_mean) {
      double sum = 0;
      for_pieces([&](int64_t j, int64_t c) {
        if (!kept()) load_sum(j, c);
        sum += cpu::row_sum(v, c);
      });
      mean = static_cast<float>(sum / count);
    }
    double squares = 0;
    for_pieces([&](int64_t j, int64_t c) {
      if (!kept()) load_sum(j, c);
      squares += cpu::row_sum_squared_differences(v, mean, c);
    });
    rstd = 1.0f / std::sqrt(static_cast<float>(squares / count) + n.eps);
  }
  // v: sums to outputs.
  void finish(int64_t j, int64_t count) {
    cpu::row_normalize(v, mean, rstd, v, count);
    if (n.weight.data) cpu::row_multiply(v, load_other(n.weight, 0, j, count), v, count);
    if (n.bias.data) cpu::row_add(v, load_other(n.bias, 0, j, count), v, count);
    if (n.scale.data) {
      load_other(n.scale, n.group_of(n.scale, row), j, count);
      cpu::row_add_constant(other, 1.0f, other, count);
      cpu::row_multiply(v, other, v, count);
    }
    if (n.shift.data) {
      cpu::row_add(v, load_other(n.shift, n.group_of(n.shift, row), j, count), v, count);
    }
  }
  uint32_t amax_of_long_row() {
    uint32_t amax = 0;
    for_pieces([&](int64_t j, int64_t c) {
      load_sum(j, c);
      finish(j, c);
      cpu::row_round(v, n.x.dtype, c);
      amax = std::max(amax, quantized_amax(n.quant, v, c));
    });
    return amax;
  }
  void run(int64_t r) {
    row = r;
    find_statistics();
    const bool computes = n.quant.computes_row_scale();
    uint32_t amax = computes && !kept() ? amax_of_long_row() : 0;
    for_pieces([&](int64_t j, int64_t c) {
      if (!kept()) load_sum(j, c);
      if (n.residual_out.data) {
        cpu::row_store(v, element(n.residual_out, row, j), n.x.dtype, c, stream);
      }
      finish(j, c);
      if (n.out.data) cpu::row_store(v, element(n.out, row, j), n.out.dtype, c, stream);
      if (n.quant.format == OutFormat::kNone) return;
      cpu::row_round(v, n.x.dtype, c);
      if (computes && kept()) amax = quantized_amax(n.quant, v, c);
      if (j == 0) quantized_scale = quantized_row_scale(n.quant, row, amax);
      quantize_piece(n.quant, row, j, v, c, quantized_scale, computes && kept());
    });
    if (k == 0 && n.quant.row_scale()) (void)quantized_row_scale(n.quant, row, 0);
  }
  float quantized_scale = 0;
};

}  // namespace

Status norm_rows_cpu(const NormRows& n) {
  clear_scale_padding(n.quant);
  parallel_rows(n.rows(), n.columns(), [&](int64_t begin, int64_t end) {
    RowWorker worker(n);
    for (int64_t row = begin; row < end; ++row) worker.run(row);
    cpu::row_flush();
  });
  return {};
}

std::string refuse_norm_rows_cpu(const NormRows& n) {
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", n.x},           {"residual", n.residual}, {"gate", n.gate},
             {"weight", n.weight}, {"bias", n.bias},         {"scale", n.scale},
             {"shift", n.shift},   {"out", n.out},           {"residual_out", n.residual_out}};
  for (const auto& [name, tensor] : all) {
    if (std::string why = refuse_strided_row(name, tensor); !why.empty()) return why;
  }
  return {};
}

}  // namespace pestle::ops
