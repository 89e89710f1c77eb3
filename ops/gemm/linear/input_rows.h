// What linear_* does to x before its codes or its product: an activation, a gated one, or an RMS
// norm, as attribute input_act says. It is the op of that name, so its result is rounded to x's
// dtype as if it had been stored, and codes are those of that op's quantised output: a call equals
// the two ops one after the other.
#pragma once

#include <array>
#include <vector>

#include "core/op.h"

namespace pestle::ops {

// ---- for contracts: symbols are *M (rows), K (columns of the weight) ----

inline constexpr const char* kInputDtypes = "bf16|f16|f32";
inline constexpr Arg kInputX =
    input("x", kInputDtypes,
          "none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K",
          "activations; gated ones hold both factors side by side")
        .selected_by("input_act");
inline constexpr Arg kInputArgs[4] = {
    input("norm_weight", "f32|bf16|f16", "K", "multiplies the normalised row, input_act=rms_norm")
        .optional(),
    choice(
        "input_act", "none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm",
        "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; "
        "geglu: gelu) or rms_norm gives"),
    choice("input_layout", "act_first|act_last",
           "swiglu, geglu: the half of x that the activation takes; the other half multiplies it"),
    float_attr("eps", 1e-6, "added to the mean square, input_act=rms_norm"),
};
inline constexpr Constraint kInputConstraint = {"!has(norm_weight) || input_act == rms_norm",
                                                "norm_weight belongs to input_act=rms_norm"};

// ---- for implementations ----

bool has_input_act(const Call& call);

// Columns of x once input_act is done: K.
int64_t input_columns(const Call& call);

// x's leading dimensions and `columns`, without gaps, at `memory`, on x's device.
TensorView rows_like_x(const Call& call, void* memory, DType dtype, int64_t columns);

// The op that input_act names, over x.
Status run_input(const Call& call, const TensorView& out);
// The same with codes and a scale a row: `format` is fp8_row or int8_row.
Status run_input_quantized(const Call& call, std::string_view format, int64_t hadamard,
                           const TensorView& q, const TensorView& scale);

// ---- for references ----

// The left side of the product, row by row, in float64: x after input_act, rounded; rotated in f32
// in groups of `hadamard`; and, with `codes`, as its codes by rows stand for it. An implementation
// computes input_act in f32, so a value near a rounding boundary may fall to its other side: the
// sums of magnitudes carry what that may change, scaled to a bound of 4 * sqrt(k) * 2^-24.
class ReferenceInput {
 public:
  // codes: kNone, kI8, kE4M3 or kE5M2.
  ReferenceInput(const Call& call, int64_t hadamard, DType codes, double bound_k);
  void operator()(int64_t m, double* values) const;
  // What an implementation's values may be off, as the sums of magnitudes count it.
  void slack(int64_t m, double* values) const;

 private:
  struct Row;
  Row row(int64_t m) const;
  void load(int64_t m, Row* row) const;
  void activate(int64_t m, Row* row) const;
  void normalise(int64_t m, Row* row) const;
  void rotate(Row* row) const;
  void code(Row* row) const;

  const Call& call_;
  const TensorView& x_;
  int64_t columns_, hadamard_;
  DType codes_;
  double per_slack_;
};

// Arguments of a contract, joined.
template <size_t A, size_t B>
consteval auto joined(const std::array<Arg, A>& first, const Arg (&then)[B]) {
  std::array<Arg, A + B> all{};
  for (size_t i = 0; i < A; ++i) all[i] = first[i];
  for (size_t i = 0; i < B; ++i) all[A + i] = then[i];
  return all;
}

}  // namespace pestle::ops
