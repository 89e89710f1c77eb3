// The reference and the CPU's path of activations with plain or quantised output.
#include "ops/activation/activation_rows.h"

#include <vector>

#include "backends/cpu/simd/row_math.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops {
namespace {

double value_at(const TensorView& t, int64_t row, int64_t i) {
  return load_f64(row_address(t, row) + i * last_stride_bytes(t), t.dtype);
}

Activated64 output_at(const ActivationRows& a, int64_t row, int64_t i) {
  Activated64 y = activate64(a.act, value_at(a.x, row, i));
  if (a.gate.data == nullptr) return y;
  const double g = value_at(a.gate, row, i);
  return {y.value * g, y.size * std::fabs(g)};
}

float rounded(DType dtype, double value) {
  char bytes[8];
  store_f32(bytes, dtype, static_cast<float>(value));
  return load_f32(bytes, dtype);
}

// Codes of a row by the scalar rules.
void reference_codes(const QuantizedOutput& o, int64_t row, std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const bool computes = o.computes_row_scale();
  const uint32_t amax = computes ? quantized_amax(o, values.data(), count) : 0;
  quantize_piece(o, row, 0, values.data(), count, quantized_row_scale(o, row, amax), computes);
}

}  // namespace

Status activation_reference(const Call& call, const ActivationRows& a) {
  clear_scale_padding(a.quant);
  std::vector<float> values(static_cast<size_t>(a.columns()));
  for (int64_t row = 0; row < a.rows(); ++row) {
    for (int64_t i = 0; i < a.columns(); ++i) {
      const Activated64 y = output_at(a, row, i);
      values[static_cast<size_t>(i)] = rounded(a.x.dtype, y.value);
      if (a.out.data == nullptr) continue;
      store_f64(row_address(a.out, row) + i * last_stride_bytes(a.out), a.out.dtype,
                call.sum_magnitudes ? y.size : y.value);
    }
    if (a.quant.format != OutFormat::kNone) reference_codes(a.quant, row, values);
  }
  return {};
}

// ---- the CPU's fast path ----

namespace {

// Floats at a time: a multiple of 1024, so that pieces hold whole blocks and rotations.
constexpr int64_t kPiece = 4096;

struct Worker {
  const ActivationRows& a;
  const int64_t k = a.columns();
  const bool stream = k * a.rows() * dtype_bytes(a.x.dtype) >= (int64_t{8} << 20);
  alignas(64) float v[kPiece];
  alignas(64) float gate[kPiece];

  explicit Worker(const ActivationRows& rows) : a(rows) {}

  static char* element(const TensorView& t, int64_t row, int64_t j) {
    return row_address(t, row) + j * dtype_bytes(t.dtype);
  }
  void compute(int64_t row, int64_t j, int64_t count) {
    cpu::row_load(element(a.x, row, j), a.x.dtype, v, count);
    cpu::row_activation(a.act, v, v, count);
    if (a.gate.data == nullptr) return;
    cpu::row_load(element(a.gate, row, j), a.gate.dtype, gate, count);
    cpu::row_multiply(v, gate, v, count);
  }
  void store(int64_t row, int64_t j, int64_t count) {
    if (a.out.data != nullptr)
      cpu::row_store(v, element(a.out, row, j), a.out.dtype, count, stream);
  }
  template <class Body>
  void for_pieces(int64_t begin, int64_t end, Body&& body) {
    for (int64_t j = begin; j < end; j += kPiece) body(j, std::min(kPiece, end - j));
  }
  void plain(int64_t row, int64_t begin, int64_t count) {
    for_pieces(begin, begin + count, [&](int64_t j, int64_t c) {
      compute(row, j, c);
      store(row, j, c);
    });
  }
  // A computed scale of a row that does not fit costs a second computation.
  void codes(int64_t row) {
    const QuantizedOutput& o = a.quant;
    const bool computes = o.computes_row_scale();
    const bool kept = k <= kPiece;
    uint32_t amax = 0;
    if (computes && !kept) {
      for_pieces(0, k, [&](int64_t j, int64_t c) {
        compute(row, j, c);
        cpu::row_round(v, a.x.dtype, c);
        amax = std::max(amax, quantized_amax(o, v, c));
      });
    }
    float scale = 0;
    if (k == 0 && o.row_scale()) (void)quantized_row_scale(o, row, 0);
    for_pieces(0, k, [&](int64_t j, int64_t c) {
      compute(row, j, c);
      store(row, j, c);
      cpu::row_round(v, a.x.dtype, c);
      if (computes && kept) amax = quantized_amax(o, v, c);
      if (j == 0) scale = quantized_row_scale(o, row, amax);
      quantize_piece(o, row, j, v, c, scale, computes && kept);
    });
  }
};

// Without codes and without gaps nothing depends on where rows begin.
FlatRows flat_rows(const ActivationRows& a) {
  const bool dense = a.gate.data == nullptr || (is_contiguous(a.gate) && a.gate.rank == a.x.rank);
  return dense ? FlatRows(a.x, a.out) : FlatRows(a.rows(), a.columns());
}

}  // namespace

Status activation_cpu(const ActivationRows& a) {
  clear_scale_padding(a.quant);
  if (a.quant.format == OutFormat::kNone) {
    parallel_pieces(flat_rows(a), [&](int64_t row, int64_t begin, int64_t count) {
      Worker(a).plain(row, begin, count);
      cpu::row_flush();
    });
    return {};
  }
  parallel_rows(a.rows(), a.columns(), [&](int64_t begin, int64_t end) {
    Worker worker(a);
    for (int64_t row = begin; row < end; ++row) worker.codes(row);
    cpu::row_flush();
  });
  return {};
}

std::string refuse_activation_cpu(const ActivationRows& a) {
  std::string why = refuse_strided_row("x", a.x);
  if (why.empty() && a.gate.data != nullptr) why = refuse_strided_row("gate", a.gate);
  if (why.empty() && a.out.data != nullptr) why = refuse_strided_row("out", a.out);
  return why;
}

}  // namespace pestle::ops
