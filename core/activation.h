// Activation functions: what the CPU's and the GPU's code share.
#pragma once

namespace pestle {

// In the order of the contracts' choice `act`.
enum class Activation : int { kSilu, kGelu, kGeluTanh };

// log2 of the normal distribution's tail Phi(-x), x >= 0, as a polynomial without its constant term
// -1, from x^1 on: within 8e-8 of Phi in f32, 5e-6 of its value up to x = 3; falls towards
// -infinity beyond 6, so that every f32 is safe. gelu(x) = x * Phi(x), with Phi(x) = 1 - Phi(-x).
inline constexpr float kTail1 = -0x1.26aeecp+0f;
inline constexpr float kTail2 = -0x1.d6369cp-2f;
inline constexpr float kTail3 = -0x1.ae847ap-5f;
inline constexpr float kTail4 = 0x1.d52ed6p-8f;
inline constexpr float kTail5 = -0x1.cb7ae6p-13f;
inline constexpr float kTail6 = -0x1.3849d6p-13f;
inline constexpr float kTail7 = 0x1.0371e8p-15f;
inline constexpr float kTail8 = -0x1.17d7a6p-19f;

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kHalfLog2E = 0.7213475204444817f;
inline constexpr float kNormalDensity = 0.3989422804014327f;  // 1 / sqrt(2 pi)
// gelu_tanh(x) = x * sigmoid(2u), 2u = x * (kTanhLinear + kTanhCubic * x^2)
inline constexpr float kTanhLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline constexpr float kTanhCubic = 0.07135481282705498f;  // that times 0.044715
// Beyond it slopes are those of +-infinity: nothing of the tails is left in f32.
inline constexpr float kSlopeEnd = 128.0f;

}  // namespace pestle
