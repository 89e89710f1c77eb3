// What happens to an accumulator before it is stored: written once, for every op that ends so.
// The arguments are shared data (kEpilogueArgs); this is their one host implementation.
//
//   y = acc * alpha + bias[column]
//   y = activation(y)            gated: columns come in pairs, column j of the product's first half
//                                with column j of its last: activation(one) * the other
//   out = residual * beta + gate * y, rounded once
//
// f32 from the accumulator to the one rounding at the store; float64 in references.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>

#include "core/op.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// The columns of out, of a product with the symbol N.
#define PESTLE_OUT_COLUMNS "if(gated == none, N, N/2)"

// Of a workspace: the GEMM's f32 output in calls whose epilogue may be unfused.
#define PESTLE_UNFUSED_BYTES "if(gated == none && !has(gate) && !has(beta), 0, 512 + 4*M*N)"

inline constexpr Arg kEpilogueBeta =
    input("beta", "f32", "1", "factor on the residual; 1 when absent").optional();
inline constexpr Arg kEpilogueGate =
    input("gate", "f32|bf16|f16", "*G, " PESTLE_OUT_COLUMNS,
          "multiplies the product before the residual is added; neighbouring rows share a row of "
          "it, as many as there are rows of out for each of its own")
        .optional();
inline constexpr Arg kEpilogueGated =
    choice("gated", "none|act_first|act_last",
           "out has half of the product's columns: activation(one half) * the other, the half that "
           "the activation takes first (swiglu) or last (geglu)");

// Every contract that ends in an epilogue appends these, in this order, after its own arguments.
inline constexpr Arg kEpilogueArgs[7] = {
    input("alpha", "f32", "1", "factor on the product; 1 when absent").optional(),
    input("bias", "f32|bf16|f16", "N", "added to every row of the product").optional(),
    input("residual", "f32|bf16|f16", "*M, " PESTLE_OUT_COLUMNS, "added at the end").optional(),
    choice("activation", "none|gelu|gelu_tanh|silu", "applied after the bias"),
    kEpilogueBeta,
    kEpilogueGate,
    kEpilogueGated,
};
// The places of those that not every kernel knows, behind the first (alpha).
inline constexpr int kBetaPlace = 4, kGatePlace = 5, kGatedPlace = 6;

inline constexpr Constraint kEvenPairs = {"gated == none || N % 2 == 0",
                                          "gated needs an even N: columns come in pairs"};
inline constexpr const char* kGateSentence =
    "the rows of out must be a multiple of gate's rows, each of which neighbouring rows share";
inline constexpr Constraint kGateRows = {"!has(gate) || M == 0 || (G > 0 && M % max(G,1) == 0)",
                                         kGateSentence};
inline constexpr Constraint kBetaNeedsResidual = {"!has(beta) || has(residual)",
                                                  "beta is a factor on residual, which is absent"};

enum class Activation : int64_t { kNone, kGelu, kGeluTanh, kSilu };

template <class T>
inline T activate(Activation activation, T y) {
  switch (activation) {
    case Activation::kNone: return y;
    case Activation::kGelu: return T(0.5) * y * (T(1) + std::erf(y * T(0.70710678118654752440)));
    case Activation::kGeluTanh:
      return T(0.5) * y *
             (T(1) + std::tanh(T(0.79788456080286535588) * (y + T(0.044715) * y * y * y)));
    case Activation::kSilu: return y / (T(1) + std::exp(-y));
  }
  return y;
}

struct Epilogue {
  float alpha = 1, beta = 1;
  TensorView bias;      // data null: none
  TensorView residual;  // data null: none
  TensorView gate;      // data null: none
  Activation activation = Activation::kNone;
  bool gated = false;
  bool act_first = true;      // of pairs
  int64_t columns = 0;        // of out
  int64_t rows_per_gate = 1;  // rows of out that share a row of gate

  Epilogue() = default;
  // `first` is the position of kEpilogueArgs in the contract.
  Epilogue(const Call& call, int first, const TensorView& out) {
    if (call.has(first)) alpha = load<float>(call.tensor(first).data);
    if (call.has(first + 1)) bias = call.tensor(first + 1);
    if (call.has(first + 2)) residual = call.tensor(first + 2);
    activation = static_cast<Activation>(call.integer(first + 3));
    if (call.has(first + kBetaPlace)) beta = load<float>(call.tensor(first + kBetaPlace).data);
    if (call.has(first + kGatePlace)) gate = call.tensor(first + kGatePlace);
    gated = call.integer(first + kGatedPlace) != 0;
    act_first = call.integer(first + kGatedPlace) == 1;
    columns = row_length(out);
    if (gate.data && row_count(gate) > 0)
      rows_per_gate = std::max<int64_t>(1, row_count(out) / row_count(gate));
  }

  // The product's column, scaled and with its bias. T: float, or double in references.
  template <class T>
  T before(T acc, int64_t column) const {
    T y = acc * T(alpha);
    if (bias.data) y += T(load_f32(at(bias, column), bias.dtype));
    return y;
  }
  // From the activation's result on.
  template <class T>
  T after(T y, int64_t row, int64_t column) const {
    if (gate.data) y *= T(gate_at(row, column));
    if (residual.data) y += T(beta) * T(residual_at(row, column));
    return y;
  }
  // acc of output (row, column) to the value to store.
  template <class T>
  T apply(T acc, int64_t row, int64_t column) const {
    return after(activate(activation, before(acc, column)), row, column);
  }
  // The same of a pair of columns: `column` and `column + columns` of the product.
  template <class T>
  T apply_pair(T first, T last, int64_t row, int64_t column) const {
    const T one = before(first, column), two = before(last, column + columns);
    const T y = act_first ? activate(activation, one) * two : one * activate(activation, two);
    return after(y, row, column);
  }

  float gate_at(int64_t row, int64_t column) const {
    return load_f32(row_address(gate, row / rows_per_gate) + column * last_stride_bytes(gate),
                    gate.dtype);
  }
  float residual_at(int64_t row, int64_t column) const {
    return load_f32(row_address(residual, row) + column * last_stride_bytes(residual),
                    residual.dtype);
  }
};

// A sum along k in float64, and the sum of its terms' magnitudes.
struct SumOfTerms {
  double value = 0, size = 0;
  void add(double term) {
    value += term;
    size += std::fabs(term);
  }
  // By factors of the finished sum. `lost`: of its size, what implementations' sums may be off by;
  // 0: sums are exact. An infinite factor gives an infinity of the sum's sign; where that sign may
  // be lost, nothing is asked: 0 with an infinite bound. Nor is anything where a product on the way may
  // leave f32's range, for the factors are multiplied in any order; below its normal numbers such a
  // product may be off by as much as the least of these.
  void multiply(double a, double b, double lost) {
    const double factor = a * b, before = size, exact = value;
    const bool sign_is_open =
        std::isinf(factor) && size > 0 && std::isfinite(size) && std::fabs(value) <= lost * size;
    value = sign_is_open && lost > 0 ? 0 : value * factor;
    size *= std::fabs(factor);
    if (lost == 0) return;
    for (const double step : {before, before * std::fabs(a), before * std::fabs(b), factor})
      if (std::fabs(step) > FLT_MAX / 2) size = std::numeric_limits<double>::infinity();
    const auto may_lose = [&](double step, double rest) {
      if (step != 0 && std::fabs(step) < FLT_MIN) size += FLT_MIN * std::fabs(rest) / lost;
    };
    may_lose(exact * a, b), may_lose(exact * b, a), may_lose(factor, exact);
  }
};

// The reference's epilogue: values, or what bounds their errors: sums of magnitudes; activations
// have slope <= 1.13. A pair's error is each half's times the other's value, and the product of
// both errors, which counts where sums lose much (8-bit floats, accumulation=fast).
struct ReferenceEpilogue {
  Epilogue e;
  bool magnitudes;

  ReferenceEpilogue(const Call& call, int first, const TensorView& out)
      : e(call, first, out), magnitudes(call.sum_magnitudes) {}

  double size_before(const SumOfTerms& sum, int64_t column) const {
    double y = sum.size * std::fabs(e.alpha);
    if (e.bias.data) y += std::fabs(load_f32(at(e.bias, column), e.bias.dtype));
    return y;
  }
  double size_after(double y, int64_t row, int64_t column) const {
    if (e.gate.data) y *= std::fabs(e.gate_at(row, column));
    if (e.residual.data) y += std::fabs(e.beta) * std::fabs(e.residual_at(row, column));
    return y;
  }
  double one(const SumOfTerms& sum, int64_t row, int64_t column) const {
    if (!magnitudes) return e.apply(sum.value, row, column);
    const double slope = e.activation == Activation::kNone ? 1 : 1.13;
    return size_after(slope * size_before(sum, column), row, column);
  }
  double pair(const SumOfTerms& first, const SumOfTerms& last, int64_t row, int64_t column) const {
    if (!magnitudes) return e.apply_pair(first.value, last.value, row, column);
    const SumOfTerms& act = e.act_first ? first : last;
    const SumOfTerms& other = e.act_first ? last : first;
    const int64_t act_column = e.act_first ? column : column + e.columns;
    const int64_t other_column = e.act_first ? column + e.columns : column;
    const double act_size = size_before(act, act_column);
    const double other_size = size_before(other, other_column);
    const double value = std::fabs(activate(e.activation, e.before(act.value, act_column)));
    const double y = 1.13 * act_size * std::fabs(e.before(other.value, other_column)) +
                     value * other_size + 0x1p-5 * act_size * other_size;
    return size_after(y, row, column);
  }

  // A row of out; sum_of(n): the SumOfTerms of column n of the product.
  template <class SumOf>
  void store_row(const TensorView& out, int64_t row, const SumOf& sum_of) const {
    for (int64_t n = 0; n < e.columns; ++n) {
      const double y =
          e.gated ? pair(sum_of(n), sum_of(n + e.columns), row, n) : one(sum_of(n), row, n);
      store_f64(row_address(out, row) + n * last_stride_bytes(out), out.dtype, y);
    }
  }
};

// Arguments of a contract: its own, then the epilogue's.
template <size_t N>
consteval auto with_epilogue(const Arg (&own)[N]) {
  std::array<Arg, N + 7> all{};
  for (size_t i = 0; i < N; ++i) all[i] = own[i];
  for (size_t i = 0; i < 7; ++i) all[N + i] = kEpilogueArgs[i];
  return all;
}

}  // namespace pestle::ops
