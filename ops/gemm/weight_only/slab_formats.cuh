// Formats of formats.cuh decoded to a matrix of bf16 or f16. Decoder<kBf16, Format> is made for a row
// of the weight, with
//   kFactors  sums are multiplied by a factor of their column, the row's
//   kOdd      rows may be odd: matrix times factor is not the format's number for each of its codes
//   odd()     is the row, whatever its codes?
//   factor()  of its sums, in f32
//   Scale, fetch   of 8 columns from a multiple of 8 on
//   decode    8 codes to 4 pairs of neighbours; true: odd
//   large     where both operands are decoded: may a code with that scale be 2^48 or more, though not
//             infinite? Sums of smaller ones don't overflow
// What is f32 in the format's rule goes, for bf16, as a power of two into the matrix, so that sums
// overflow where those of the decoded weight do, and the rest of it, 1 to 2, is the factor. Codes and
// scales that are infinite or NaN are such in the matrix.
#pragma once

#include "ops/gemm/weight_only/byte_formats.cuh"
#include "ops/gemm/weight_only/formats.cuh"

namespace pestle::cuda::many_rows {

template <bool kBf16, class Format>
struct Decoder;

#ifdef __CUDACC__

// The upper 16 bits, twice: a number that bf16 holds.
__device__ inline uint32_t bf16_twice(float v) {
  return __byte_perm(__float_as_uint(v), 0, 0x3232);
}

template <bool kBf16>
struct Decoder<kBf16, Nvfp4> {
  static constexpr bool kFactors = true, kOdd = true;
  using Scale = uint8_t;
  Nvfp4 format;
  Nvfp4::Row row;
  bool all_odd;

  __device__ Decoder(const Nvfp4& of, int64_t at)
      : format(of), row(of.row_at(at)), all_odd(format.start()) {}
  __device__ bool odd() const { return all_odd; }
  __device__ float factor() const { return format.factor(); }
  __device__ Scale fetch(int column) const {
    return format.scale.at(row, column / formats::kNvfp4Block);
  }
  __device__ bool decode(const uint32_t (&words)[1], Scale scale, uint32_t (&b)[4]) const {
    const float v = e4m3_value(scale) * format.of_scales;
    const uint32_t half = __half_as_ushort(__float2half_rn(v));
    scale_e2m1<kBf16>(words[0], kBf16 ? bf16_twice(v) : half | half << 16, format.high_first, b);
    return false;
  }
  __device__ bool large(Scale) const { return format.of_scales >= 0x1p36f; }
};

// Bf16 holds all but the smallest products of 8-bit codes.
template <int kBits>
struct Decoder<true, Mx<kBits, false>> {
  static constexpr bool kFactors = false, kOdd = kBits == 8;
  using Scale = uint8_t;
  const Mx<kBits, false>& format;
  ScaleBytes::Row row;

  __device__ Decoder(const Mx<kBits, false>& of, int64_t at) : format(of), row(of.row_at(at)) {}
  __device__ bool odd() const { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ Scale fetch(int column) const {
    return format.scale.at(row, column / formats::kMxBlock);
  }
  __device__ bool decode(const uint32_t (&words)[kBits / 4], Scale e, uint32_t (&b)[4]) const {
    const uint32_t by = bf16_twice(formats::f32_from_e8m0(e));
    if constexpr (kBits == 4) {
      scale_e2m1<true>(words[0], by, format.high_first, b);
      return false;
    } else {
      fp8_neighbours<true>(words, format.e5m2, b);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = multiply_bf16(b[i], by);
      return e < format.first_exact() && ((words[0] | words[1]) & 0x7F7F7F7Fu) != 0;
    }
  }
  __device__ bool large(Scale e) const {
    const int power = kBits == 4 ? 3 : format.e5m2 ? 16 : 9;  // above any code
    return e != 255 && e > 127 + 48 - power;
  }
};

template <bool kBf16, ByteCode kCode>
struct Decoder<kBf16, RowBytes<kCode>> {
  static constexpr bool kFactors = true, kOdd = true;
  struct Scale {};
  float scale;

  __device__ Decoder(const RowBytes<kCode>& of, int64_t at) : scale(of.scale.at(at, 0)) {}
  __device__ bool odd() const { return ScaleGrid::is_odd(scale); }
  __device__ float factor() const {
    return kBf16 ? __uint_as_float((__float_as_uint(scale) & 0x807FFFFFu) | 0x3F800000u) : scale;
  }
  __device__ Scale fetch(int) const { return {}; }
  __device__ bool decode(const uint32_t (&words)[2], Scale, uint32_t (&b)[4]) const {
    if constexpr (kCode != ByteCode::kInt8) {
      fp8_neighbours<kBf16>(words, kCode == ByteCode::kE5m2, b);
    } else {
      [[maybe_unused]] bool none = false;
      widen_codes<kCode, kBf16>(words, none, b);
    }
    if constexpr (kBf16) {
      const uint32_t by = bf16_twice(__uint_as_float(__float_as_uint(scale) & 0x7F800000u));
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = multiply_bf16(b[i], by);
    }
    return false;
  }
};

// Rounded to bf16, as dequantize_int4 rounds; odd where that is more than 2^-8 of a weight.
template <>
struct Decoder<true, Int4AsX> {
  static constexpr bool kFactors = false, kOdd = true;
  struct Scale {
    float by;
    uint32_t zero;
  };
  const Int4AsX& format;
  Int4::Row row;

  __device__ Decoder(const Int4AsX& of, int64_t at) : format(of), row(of.row_at(at)) {}
  __device__ bool odd() const { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ Scale fetch(int column) const {
    const auto g = static_cast<int64_t>(format.groups.divide(column));
    Scale s{__ldg(reinterpret_cast<const float*>(row.scale + g * format.scale_column)), 8};
    if (format.zero != nullptr) s.zero = __ldg(row.zero + g * format.zero_column);
    return s;
  }
  __device__ bool decode(const uint32_t (&words)[1], Scale s, uint32_t (&b)[4]) const {
    // Two's complement with its sign bit turned is 0 to 15. Integers from 2^23 on are an f32's bits.
    const uint32_t word = format.zero == nullptr ? words[0] ^ 0x88888888u : words[0];
    const float less = -__uint_as_float(0x4B000000u | s.zero);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = word >> (8 * i) & 0xF, high = word >> (8 * i + 4) & 0xF;
      const __nv_bfloat162 both =
          __floats2bfloat162_rn((__uint_as_float(0x4B000000u | low) + less) * s.by,
                                (__uint_as_float(0x4B000000u | high) + less) * s.by);
      b[i] = reinterpret_cast<const uint32_t&>(both);
    }
    return ScaleGrid::is_odd(s.by);
  }
};

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
