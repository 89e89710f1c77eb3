// Slow independent answers for the format tests: values by ldexp in double, rounding by comparing
// distances, random numbers of their own. Nothing here calls the code under test but bit casts.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace pestle::oracle {

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float from_bits(uint32_t b) { return std::bit_cast<float>(b); }

// A small float with `exponent_bits`, `man` mantissa bits and bias 2^(exponent_bits-1) - 1.
struct SmallFloat {
  int exponent_bits;
  int man;
  uint32_t max_code;  // largest finite magnitude
  bool has_inf;       // max_code + 1 is Inf

  double value(uint32_t magnitude) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int field = static_cast<int>(magnitude >> man);
    const double fraction = static_cast<double>(magnitude & ((1u << man) - 1));
    if (field == 0) return std::ldexp(fraction, 1 - bias - man);
    return std::ldexp(fraction + (1 << man), field - bias - man);
  }

  // Magnitude code nearest to x >= 0 among all finite ones, ties to the even code.
  uint32_t nearest(double x) const {
    uint32_t lo = 0;
    uint32_t hi = max_code;
    if (x >= value(hi)) return hi;
    while (hi - lo > 1) {
      const uint32_t mid = (lo + hi) / 2;
      (value(mid) <= x ? lo : hi) = mid;
    }
    const double down = x - value(lo);
    const double up = value(hi) - x;
    if (down != up) return down < up ? lo : hi;
    return (lo & 1) == 0 ? lo : hi;
  }
};

inline constexpr SmallFloat kE4m3{4, 3, 0x7E, false};
inline constexpr SmallFloat kE5m2{5, 2, 0x7B, true};
inline constexpr SmallFloat kE2m1{2, 1, 0x7, false};
inline constexpr SmallFloat kF16{5, 10, 0x7BFF, true};

// sat_rne with one NaN code.
inline uint8_t code(const SmallFloat& f, int sign_shift, uint8_t nan_code, float x) {
  if (std::isnan(x)) return nan_code;
  const uint32_t magnitude = f.nearest(std::fabs(static_cast<double>(x)));
  return static_cast<uint8_t>(magnitude | (std::signbit(x) ? 1u << sign_shift : 0u));
}

inline float bf16_value(uint16_t b) { return from_bits(static_cast<uint32_t>(b) << 16); }

inline float f16_value(uint16_t b) {
  const uint32_t magnitude = b & 0x7FFFu;
  double v = 0;
  if (magnitude > 0x7C00u) {
    v = std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude == 0x7C00u) {
    v = std::numeric_limits<double>::infinity();
  } else {
    v = kF16.value(magnitude);
  }
  return static_cast<float>((b & 0x8000u) != 0 ? -v : v);
}

// f32 operations by way of double: with 53 >= 2 * 24 + 2 bits the second rounding is harmless for
// normal results, and division and product of two f32 stay right for subnormal ones, because a
// double that is no f32 tie stays none.
inline float f32_div(float a, float b) {
  return static_cast<float>(static_cast<double>(a) / static_cast<double>(b));
}
inline float f32_mul(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

// Every bf16, every f16, and every f32 at a tie between two neighbouring codes of `f` with the
// neighbours of the tie and of the codes, times `factor` (a power of two).
inline std::vector<float> hard_inputs(const SmallFloat& f, float factor = 1.0f) {
  std::vector<float> xs;
  for (uint32_t b = 0; b < 65536; ++b) {
    xs.push_back(bf16_value(static_cast<uint16_t>(b)));
    xs.push_back(f16_value(static_cast<uint16_t>(b)));
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (uint32_t c = 0; c <= f.max_code; ++c) {
    const double here = f.value(c);
    const double next = c < f.max_code ? f.value(c + 1) : 2 * here - f.value(c - 1);
    for (const double point : {here, (here + next) / 2}) {
      const float p = static_cast<float>(point) * factor;
      for (const float x : {p, std::nextafterf(p, inf), std::nextafterf(p, -inf)}) {
        xs.push_back(x);
        xs.push_back(-x);
      }
    }
  }
  return xs;
}

// xorshift64*; the tests are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 88172645463325252u) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 2685821657736338717u;
  }
  uint32_t u32() { return static_cast<uint32_t>(next() >> 32); }
  uint16_t u16() { return static_cast<uint16_t>(next() >> 48); }
  uint8_t u8() { return static_cast<uint8_t>(next() >> 56); }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // [0, 1)
  // Near enough to a normal: twelve uniforms.
  float normal() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

}  // namespace pestle::oracle
