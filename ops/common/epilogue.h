// What happens to an accumulator before it is stored: written once, for every op that ends so.
// The arguments are shared data (kEpilogueArgs); this is their one host implementation.
//
//   y = acc * alpha;  y += bias[column];  y = activation(y);  y += residual[row, column]; round
//   once
//
// f32 from the accumulator to the one rounding at the store; float64 in references.
#pragma once

#include <array>
#include <cmath>

#include "core/op.h"
#include "ops/common/element.h"

namespace pestle::ops {

// Every contract that ends in an epilogue appends these, in this order, after its own arguments.
inline constexpr Arg kEpilogueArgs[4] = {
    input("alpha", "f32", "1", "factor on the product; 1 when absent").optional(),
    input("bias", "f32|bf16|f16", "N", "added to every row").optional(),
    input("residual", "f32|bf16|f16", "*M, N", "added after the activation").optional(),
    choice("activation", "none|gelu|gelu_tanh|silu", "applied after the bias"),
};

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
  float alpha = 1;
  TensorView bias;      // data null: none
  TensorView residual;  // data null: none
  Activation activation = Activation::kNone;

  // `first` is the position of kEpilogueArgs in the contract.
  Epilogue(const Call& call, int first) {
    if (call.has(first)) alpha = load<float>(call.tensor(first).data);
    if (call.has(first + 1)) bias = call.tensor(first + 1);
    if (call.has(first + 2)) residual = call.tensor(first + 2);
    activation = static_cast<Activation>(call.integer(first + 3));
  }

  // acc of output (row, column) to the value to store. T: float, or double in references.
  template <class T>
  T apply(T acc, int64_t row, int64_t column) const {
    T y = acc * T(alpha);
    if (bias.data) y += T(load_f32(at(bias, column), bias.dtype));
    y = activate(activation, y);
    if (residual.data) {
      y += T(load_f32(row_address(residual, row) + column * last_stride_bytes(residual),
                      residual.dtype));
    }
    return y;
  }
  // Sum of the magnitudes of the terms, for the error bound; activations have slope <= 1.13.
  double magnitude(double acc_magnitude, int64_t row, int64_t column) const {
    double y = acc_magnitude * std::fabs(alpha);
    if (bias.data) y += std::fabs(load_f32(at(bias, column), bias.dtype));
    if (activation != Activation::kNone) y *= 1.13;
    if (residual.data) {
      y += std::fabs(load_f32(row_address(residual, row) + column * last_stride_bytes(residual),
                              residual.dtype));
    }
    return y;
  }
};

// Arguments of a contract: its own, then the epilogue's.
template <size_t N>
consteval auto with_epilogue(const Arg (&own)[N]) {
  std::array<Arg, N + 4> all{};
  for (size_t i = 0; i < N; ++i) all[i] = own[i];
  for (size_t i = 0; i < 4; ++i) all[N + i] = kEpilogueArgs[i];
  return all;
}

}  // namespace pestle::ops
