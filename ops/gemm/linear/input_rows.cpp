#include "ops/gemm/linear/input_rows.h"

#include <algorithm>
#include <cmath>

#include "core/expr.h"
#include "formats/fp8.h"
#include "formats/hadamard.h"
#include "formats/int8.h"
#include "ops/activation/activation_args.h"
#include "ops/norm/forward/norm_rows.h"
#include "ops/shared/element.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops {
namespace {

// Which op input_act names, and its activation.
struct InputOp {
  std::string_view name;  // of the label
  const char* op;
  const char* act;
  pestle::Activation function;
};
constexpr InputOp kInputOps[] = {
    {"silu", "activation", "silu", pestle::Activation::kSilu},
    {"gelu", "activation", "gelu", pestle::Activation::kGelu},
    {"gelu_tanh", "activation", "gelu_tanh", pestle::Activation::kGeluTanh},
    {"swiglu", "gated_activation", "silu", pestle::Activation::kSilu},
    {"geglu", "gated_activation", "gelu", pestle::Activation::kGelu},
    {"geglu_tanh", "gated_activation", "gelu_tanh", pestle::Activation::kGeluTanh},
    {"rms_norm", "rms_norm", nullptr, pestle::Activation::kSilu},
};

const TensorView& x_of(const Call& call) { return call.tensor(find_arg(*call.spec, "x")); }

const InputOp& input_op(const Call& call) {
  const std::string_view label = label_of(call, "input_act");
  for (const InputOp& op : kInputOps)
    if (op.name == label) return op;
  return kInputOps[0];
}

bool is_gated(const InputOp& op) { return std::string_view(op.op) == "gated_activation"; }

void name_input(const Call& call, InnerCall* inner) {
  const InputOp& op = input_op(call);
  inner->pass("x");
  if (op.act != nullptr) {
    inner->set("act", std::string_view(op.act));
    if (is_gated(op)) inner->pass("input_layout", "layout");
    return;
  }
  inner->pass("norm_weight", "weight");
  inner->pass("eps");
}

}  // namespace

bool has_input_act(const Call& call) {
  return call.integer(find_arg(*call.spec, "input_act")) != 0;
}

int64_t input_columns(const Call& call) {
  const int64_t columns = row_length(x_of(call));
  return has_input_act(call) && is_gated(input_op(call)) ? columns / 2 : columns;
}

TensorView rows_like_x(const Call& call, void* memory, DType dtype, int64_t columns) {
  const TensorView& x = x_of(call);
  int64_t dims[kMaxRank];
  for (int d = 0; d < x.rank; ++d) dims[d] = x.shape[d];
  dims[x.rank - 1] = columns;
  TensorView t = make_view(memory, dtype, x.rank, dims);
  t.device = x.device;
  return t;
}

Status run_input(const Call& call, const TensorView& out) {
  InnerCall inner(call, input_op(call).op);
  name_input(call, &inner);
  inner.set("out", out);
  return inner.run(nullptr, 0);
}

Status run_input_quantized(const Call& call, std::string_view format, int64_t hadamard,
                           const TensorView& q, const TensorView& scale) {
  InnerCall inner(call, input_op(call).op);
  name_input(call, &inner);
  inner.set("out_format", format);
  inner.set("hadamard", hadamard);
  inner.set("q", q);
  inner.set("scale_out", scale);
  return inner.run(nullptr, 0);
}

// ---- references ----

// What a value is, and between which values an implementation's may lie.
struct ReferenceInput::Row {
  std::vector<float> mid, low, high;
  std::vector<double> values, slack;

  explicit Row(int64_t columns)
      : mid(static_cast<size_t>(columns)),
        low(mid.size()),
        high(mid.size()),
        values(mid.size()),
        slack(mid.size()) {}
};

namespace {

float rounded_to(DType dtype, double v) {
  char bytes[8];
  store_f32(bytes, dtype, static_cast<float>(v));
  return load_f32(bytes, dtype);
}

double distance(double a, double b) { return a == b ? 0 : std::fabs(a - b); }

// f32's bound: 4 * sqrt(k) * 2^-24 of `size`.
double error_of(double size, int64_t k) {
  return 4 * std::sqrt(static_cast<double>(k)) * 0x1p-24 * size;
}

}  // namespace

ReferenceInput::ReferenceInput(const Call& call, int64_t hadamard, DType codes, double bound_k)
    : call_(call),
      x_(x_of(call)),
      columns_(input_columns(call)),
      hadamard_(hadamard),
      codes_(codes),
      per_slack_(0x1p24 / (4 * std::sqrt(std::max(bound_k, 1.0)))) {}

void ReferenceInput::activate(int64_t m, Row* row) const {
  const InputOp& op = input_op(call_);
  const bool last = label_of(call_, "input_layout") == "act_last";
  const auto at = [&](int64_t k) {
    return load_f64(row_address(x_, m) + k * last_stride_bytes(x_), x_.dtype);
  };
  for (int64_t k = 0; k < columns_; ++k) {
    const bool gated = is_gated(op);
    Activated64 y = activate64(op.function, at(gated && last ? columns_ + k : k));
    if (gated) {
      const double gate = at(last ? k : columns_ + k);
      y = {y.value * gate, y.size * std::fabs(gate)};
    }
    row->values[static_cast<size_t>(k)] = y.value;
    row->slack[static_cast<size_t>(k)] = error_of(y.size, 1);
  }
}

void ReferenceInput::normalise(int64_t m, Row* row) const {
  const int weight = find_arg(*call_.spec, "norm_weight");
  const int64_t one[2] = {1, columns_};
  NormRows n;
  n.x = make_view(row_address(x_, m), x_.dtype, 2, one);
  n.x.strides[1] = x_.strides[x_.rank - 1];
  if (call_.has(weight)) n.weight = call_.tensor(weight);
  n.eps = call_.number(find_arg(*call_.spec, "eps"));
  Call inner = call_;
  for (const bool magnitudes : {false, true}) {
    n.out = make_view(magnitudes ? row->slack.data() : row->values.data(), DType::kF64, 2, one);
    inner.sum_magnitudes = magnitudes;
    (void)norm_rows_reference(inner, n);  // nothing in it fails
  }
  for (double& size : row->slack) size = error_of(size, columns_);
}

void ReferenceInput::load(int64_t m, Row* row) const {
  if (!has_input_act(call_)) {
    for (int64_t k = 0; k < columns_; ++k) {
      const auto i = static_cast<size_t>(k);
      row->mid[i] = load_f32(row_address(x_, m) + k * last_stride_bytes(x_), x_.dtype);
    }
    row->low = row->high = row->mid;
    return;
  }
  input_op(call_).act != nullptr ? activate(m, row) : normalise(m, row);
  for (size_t i = 0; i < row->mid.size(); ++i) {
    const double v = row->values[i], e = std::isfinite(v) ? row->slack[i] : 0;
    row->mid[i] = rounded_to(x_.dtype, v);
    row->low[i] = rounded_to(x_.dtype, v - e);
    row->high[i] = rounded_to(x_.dtype, v + e);
  }
}

// What one value may be off, all of its group may be.
void ReferenceInput::rotate(Row* row) const {
  const double share = 1 / std::sqrt(static_cast<double>(hadamard_));
  for (int64_t k = 0; k < columns_; k += hadamard_) {
    double off = 0, size = 0;
    for (int64_t i = k; i < k + hadamard_; ++i) {
      const auto at = static_cast<size_t>(i);
      off += std::max(distance(row->low[at], row->mid[at]), distance(row->high[at], row->mid[at]));
      size += std::fabs(row->mid[at]);
    }
    formats::hadamard_rotate(row->mid.data() + k, hadamard_);
    if (off > 0) off = off * share + size * share * 0x1p-20;
    for (int64_t i = k; i < k + hadamard_; ++i) {
      const auto at = static_cast<size_t>(i);
      row->low[at] = static_cast<float>(double{row->mid[at]} - off);
      row->high[at] = static_cast<float>(double{row->mid[at]} + off);
    }
  }
}

namespace {

// The value that a code of v stands for, under the scale of `amax`.
struct Coder {
  DType dtype;

  float scale(uint32_t amax) const {
    if (dtype == DType::kI8) return formats::int8_scale(amax);
    return with_fp8(dtype, [&]<class F>(F) { return formats::fp8_scale<F>(amax); });
  }
  double decoded(float v, float scale) const {
    if (dtype == DType::kI8) return double{scale} * formats::int8_quantize(v, scale);
    return with_fp8(dtype, [&]<class F>(F) {
      return double{formats::f32_from_code<F>(formats::fp8_quantize<F>(v, scale))} * scale;
    });
  }
};

}  // namespace

void ReferenceInput::code(Row* row) const {
  const Coder coder{codes_};
  uint32_t amax = 0, least = 0, most = 0;
  for (size_t i = 0; i < row->mid.size(); ++i) {
    const uint32_t low = formats::abs_bits(row->low[i]), high = formats::abs_bits(row->high[i]);
    const bool crosses = row->low[i] < 0 && row->high[i] > 0;
    amax = std::max(amax, formats::abs_bits(row->mid[i]));
    least = std::max(least, crosses ? 0 : std::min(low, high));
    most = std::max({most, low, high});
  }
  const float scale = coder.scale(amax);
  const bool exact = least == most && row->low == row->high;
  for (size_t i = 0; i < row->mid.size(); ++i) {
    row->values[i] = coder.decoded(row->mid[i], scale);
    row->slack[i] = 0;
    if (exact || std::isnan(row->mid[i])) continue;
    for (const float v : {row->low[i], row->high[i]})
      for (const uint32_t bits : {least, most})
        row->slack[i] =
            std::max(row->slack[i], distance(coder.decoded(v, coder.scale(bits)), row->values[i]));
  }
}

ReferenceInput::Row ReferenceInput::row(int64_t m) const {
  Row row(columns_);
  load(m, &row);
  if (hadamard_ > 0) rotate(&row);
  if (codes_ != DType::kNone) {
    code(&row);
    return row;
  }
  for (size_t i = 0; i < row.mid.size(); ++i) {
    row.values[i] = row.mid[i];
    row.slack[i] = std::max(distance(row.low[i], row.mid[i]), distance(row.high[i], row.mid[i]));
  }
  return row;
}

void ReferenceInput::operator()(int64_t m, double* values) const {
  const Row made = row(m);
  std::copy(made.values.begin(), made.values.end(), values);
}

void ReferenceInput::slack(int64_t m, double* values) const {
  std::fill(values, values + columns_, 0.0);
  if (!has_input_act(call_)) return;
  const Row made = row(m);
  for (size_t i = 0; i < made.slack.size(); ++i)
    if (made.slack[i] > 0) values[i] = made.slack[i] * per_slack_;
}

}  // namespace pestle::ops
