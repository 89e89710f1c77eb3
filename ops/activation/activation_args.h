// Pieces of contracts that activations share, and their functions in float64 for the references.
#pragma once

#include <cmath>

#include "core/activation.h"
#include "core/op_spec.h"

namespace pestle::ops {

constexpr Arg activation_choice() {
  return choice("act", "silu|gelu|gelu_tanh",
                "x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation");
}

// gated_activation: where the two factors are.
constexpr Arg gated_layout() {
  return choice("layout", "pair|act_first|act_last",
                "act(x) * gate; x holds both in its last dimension, the half that act takes first "
                "(swiglu) or last (geglu)");
}
inline constexpr const char* kGatedShape = "pair: *M, K; act_first|act_last: *M, 2*K";

// The function with the sizes of what f32 adds up or rounds on the way: error = c * 2^-24 * size.
// kTiny: a result is rounded among f32's subnormals before a large gate multiplies it.
inline constexpr double kTiny = 0x1p-125;
struct Activated64 {
  double value, size;
};

inline double tanh_argument64(double x) {
  return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

// silu: an exponential's error grows with its argument, and below f32's normal range it may become
// 0 (2^-126, in units of the bound 2^-102). gelu: x / 2 + x / 2 * erf(x / sqrt 2).
inline Activated64 activate64(Activation act, double x) {
  if (act == Activation::kSilu) {
    const double y = x >= 0 ? x / (1 + std::exp(-x)) : x * (std::exp(x) / (1 + std::exp(x)));
    return {y, std::fabs(y) * (2 + std::fabs(x)) + std::fabs(x) * 0x1p-102 + kTiny};
  }
  const double phi = act == Activation::kGelu ? 0.5 * std::erfc(-x / std::sqrt(2))
                                              : 0.5 * (1 + std::tanh(0.5 * tanh_argument64(x)));
  return {x * phi, 0.5 * std::fabs(x) * (1 + std::fabs(2 * phi - 1)) + kTiny};
}

// The derivative; at infinities its limit.
inline Activated64 slope64(Activation act, double x) {
  const double near = std::isnan(x) ? x : std::fmin(std::fmax(x, -kSlopeEnd), kSlopeEnd);
  if (act == Activation::kGelu) {
    const double phi = 0.5 * std::erfc(-near / std::sqrt(2));
    const double rest = near * std::exp(-0.5 * near * near) / std::sqrt(2 * M_PI);
    return {phi + rest, phi + 0.5 + std::fabs(rest) * (2 + near * near)};
  }
  const double v = act == Activation::kSilu ? near : tanh_argument64(near);
  const double inner =
      act == Activation::kSilu ? 1 : 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * near * near);
  const double e = std::exp(-std::fabs(v));
  const double large = 1 / (1 + e);
  const double s = v >= 0 ? large : e * large;
  const double rest = near * (e * large * large) * inner;  // near * s * (1 - s) * v'
  const double own = act == Activation::kSilu ? s : 0.5 + s;
  return {s + rest, (own + std::fabs(rest)) * (2 + std::fabs(v)) + std::fabs(near) * 0x1p-102};
}

}  // namespace pestle::ops
