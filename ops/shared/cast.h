// The rule by which an element of one dtype becomes one of another (ops/copy/copy/copy.md).
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/float_bits.h"

namespace pestle::ops {

// What an element is worth: a whole number or an f32.
struct CastValue {
  bool is_whole;
  int64_t whole;
  float real;
};

PESTLE_HD inline CastValue whole_value(int64_t v) { return {true, v, 0}; }
PESTLE_HD inline CastValue real_value(float v) { return {false, 0, v}; }

// `bits`: the element's, in the low end.
PESTLE_HD inline CastValue cast_value(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kF32: return real_value(formats::f32_from_bits(static_cast<uint32_t>(bits)));
    case DType::kBF16: return real_value(formats::f32_from_bf16(static_cast<uint16_t>(bits)));
    case DType::kF16: return real_value(formats::f32_from_f16(static_cast<uint16_t>(bits)));
    case DType::kE4M3:
      return real_value(formats::f32_from_code<formats::E4m3>(static_cast<uint8_t>(bits)));
    case DType::kE5M2:
      return real_value(formats::f32_from_code<formats::E5m2>(static_cast<uint8_t>(bits)));
    case DType::kU8: return whole_value(static_cast<uint8_t>(bits));
    case DType::kI8: return whole_value(static_cast<int8_t>(bits));
    case DType::kI16: return whole_value(static_cast<int16_t>(bits));
    case DType::kI32: return whole_value(static_cast<int32_t>(bits));
    case DType::kBool: return whole_value((bits & 0xFF) != 0 ? 1 : 0);
    default: return whole_value(static_cast<int64_t>(bits));
  }
}

// A whole number as an f32 whose last bit says that something was cut off (rounding to odd): to
// round that to fewer bits gives what one rounding of the number gives.
PESTLE_HD inline float odd_f32(int64_t v) {
  const uint64_t m = v < 0 ? uint64_t{0} - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  uint32_t shift = 0;
  while (m >> shift >= uint64_t{1} << 24) ++shift;
  const bool cut = (m & ((uint64_t{1} << shift) - 1)) != 0;
  const float scaled = static_cast<float>(static_cast<uint32_t>(m >> shift) | (cut ? 1u : 0u)) *
                       formats::f32_from_bits((127 + shift) << 23);
  return v < 0 ? -scaled : scaled;
}

// Towards zero, to the nearest that fits; NaN gives 0.
PESTLE_HD inline int64_t whole_of(float v, int64_t lowest, int64_t highest) {
  if (v != v) return 0;
  if (v >= 9223372036854775808.0f) return highest;
  if (v <= -9223372036854775808.0f) return lowest;
  const auto whole = static_cast<int64_t>(v);
  return whole < lowest ? lowest : whole > highest ? highest : whole;
}

PESTLE_HD inline uint64_t real_bits(DType dtype, float v) {
  switch (dtype) {
    case DType::kBF16: return formats::bf16_from_f32(v);
    case DType::kF16: return formats::f16_from_f32(v);
    case DType::kE4M3: return formats::code_from_f32<formats::E4m3>(v);
    case DType::kE5M2: return formats::code_from_f32<formats::E5m2>(v);
    default: return v != v ? formats::kF32Nan : formats::bits_from_f32(v);
  }
}

// The element of `dtype`; whole numbers keep their low bits, so the caller stores as many bytes.
PESTLE_HD inline uint64_t cast_bits(DType dtype, const CastValue& value) {
  switch (dtype) {
    case DType::kF32:
      return real_bits(dtype, value.is_whole ? static_cast<float>(value.whole) : value.real);
    case DType::kBF16:
    case DType::kF16:
    case DType::kE4M3:
    case DType::kE5M2: return real_bits(dtype, value.is_whole ? odd_f32(value.whole) : value.real);
    case DType::kBool: return (value.is_whole ? value.whole != 0 : value.real != 0) ? 1 : 0;
    default: break;
  }
  if (value.is_whole) return static_cast<uint64_t>(value.whole);
  switch (dtype) {
    case DType::kU8: return static_cast<uint64_t>(whole_of(value.real, 0, 255));
    case DType::kI8: return static_cast<uint64_t>(whole_of(value.real, -128, 127));
    case DType::kI16: return static_cast<uint64_t>(whole_of(value.real, -32768, 32767));
    case DType::kI32: return static_cast<uint64_t>(whole_of(value.real, INT32_MIN, INT32_MAX));
    default: return static_cast<uint64_t>(whole_of(value.real, INT64_MIN, INT64_MAX));
  }
}

}  // namespace pestle::ops
