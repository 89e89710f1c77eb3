// FP8 and INT8 weights with f32 scales as formats of many_rows.cuh. x of bf16 and f16 holds every code
// exactly, so codes are multiplied as they are: scales of all or of rows are the epilogue's factors of
// columns, scales of groups along k multiply sums over 32 of k.
#pragma once

#include "formats/fp8.h"
#include "ops/gemm/weight_only/formats.cuh"

namespace pestle::cuda::many_rows {

enum class ByteCode { kE4m3, kE5m2, kInt8 };

// F32 scales of a grid over the weight: of so many rows and of so many columns; 0: of all.
struct ScaleGrid {
  const char* data = nullptr;
  int64_t row_bytes = 0, column_bytes = 0;  // from one scale to the next
  int rows = 0, columns = 0;

#ifdef __CUDACC__
  __device__ const float* place(int64_t row, int k) const {
    const int64_t r = rows == 0 ? 0 : row / rows, c = columns == 0 ? 0 : k / columns;
    return reinterpret_cast<const float*>(data + r * row_bytes + c * column_bytes);
  }
  __device__ float at(int64_t row, int k) const { return __ldg(place(row, k)); }
  // May sums be scaled as a whole? Not where decoded weights are subnormal or infinite.
  __device__ static bool is_odd(float scale) {
    const float size = fabsf(scale);
    return size != 0 && !(size > 0x1p-100f && size < 0x1p100f);
  }
#endif
};

#ifdef __CUDACC__

// Bytes of two's complement, 2i and 2i + 1 of a word, as pairs of bf16 and of f16.
template <int kPair>
__device__ inline uint32_t widen_int8_bf16(uint32_t word) {
  const uint32_t turned = __byte_perm(word ^ 0x80808080u, 0, kPair == 0 ? 0x4140 : 0x4342);
  // 128 plus the lower 7 bits, less 128 or 256.
  return add_bf16((turned & 0x007F007Fu) | 0x43004300u, (turned & 0x00800080u) ^ 0xC380C380u);
}
template <int kPair>
__device__ inline uint32_t widen_int8_f16(uint32_t word) {
  const uint32_t turned = __byte_perm(word ^ 0x80808080u, 0, kPair == 0 ? 0x4140 : 0x4342);
  return add_f16(turned | 0x64006400u, 0xE480E480u);  // 1024 plus the byte, less 1152
}

// 8 codes to pairs of neighbours along k.
template <ByteCode kCode, bool kBf16>
__device__ inline void widen_codes(const uint32_t (&words)[2], bool& odd, uint32_t (&b)[4]) {
  constexpr bool kE5m2 = kCode == ByteCode::kE5m2;
  if constexpr (kCode == ByteCode::kInt8) {
    b[0] = kBf16 ? widen_int8_bf16<0>(words[0]) : widen_int8_f16<0>(words[0]);
    b[1] = kBf16 ? widen_int8_bf16<1>(words[0]) : widen_int8_f16<1>(words[0]);
    b[2] = kBf16 ? widen_int8_bf16<0>(words[1]) : widen_int8_f16<0>(words[1]);
    b[3] = kBf16 ? widen_int8_bf16<1>(words[1]) : widen_int8_f16<1>(words[1]);
  } else if constexpr (kBf16) {
    odd |= has_no_number(words, kE5m2);
    b[0] = widen_fp8_bf16<0>(words[0], kE5m2), b[1] = widen_fp8_bf16<1>(words[0], kE5m2);
    b[2] = widen_fp8_bf16<0>(words[1], kE5m2), b[3] = widen_fp8_bf16<1>(words[1], kE5m2);
  } else {
    const uint2 low = warp::widen(words[0], kE5m2), high = warp::widen(words[1], kE5m2);
    b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
  }
}

// Bytes of two's complement as bf16 neighbours: 128 and the lower 7 bits, less 128 or 256.
struct Int8Bytes {
  uint32_t more, less;
  template <class Format>
  __device__ explicit Int8Bytes(const Format&) : more(keep(0x43434343u)), less(keep(0xC3C3C3C3u)) {}
  __device__ void neighbours(const uint32_t (&words)[2], uint32_t (&b)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t by = i % 2 == 0 ? 0x4140u : 0x4342u;
      b[i] = add_bf16(pick_bytes(words[i / 2] & 0x7F7F7F7Fu, more, by),
                      pick_bytes(words[i / 2] & 0x80808080u, less, by));
    }
  }
};
template <ByteCode kCode>
using KeptBytes = std::conditional_t<kCode == ByteCode::kInt8, Int8Bytes, FormatDefaults::Kept>;
// 8 codes to pairs of neighbours along k, for wgmma.
template <ByteCode kCode, bool kBf16>
__device__ inline void fragments_of(const KeptBytes<kCode>& kept, const uint32_t (&words)[2],
                                    uint32_t (&b)[4]) {
  if constexpr (kCode != ByteCode::kInt8) {
    fp8_neighbours<kBf16>(words, kCode == ByteCode::kE5m2, b);
  } else if constexpr (kBf16) {
    kept.neighbours(words, b);
  } else {
    b[0] = widen_int8_f16<0>(words[0]), b[1] = widen_int8_f16<1>(words[0]);
    b[2] = widen_int8_f16<0>(words[1]), b[3] = widen_int8_f16<1>(words[1]);
  }
}

template <ByteCode kCode>
__device__ inline float byte_value(char byte, float scale) {
  const auto code = static_cast<uint8_t>(byte);
  if constexpr (kCode == ByteCode::kInt8) return static_cast<float>(byte) * scale;
  if constexpr (kCode == ByteCode::kE5m2)
    return formats::f32_from_code<formats::E5m2>(code) * scale;
  return formats::f32_from_code<formats::E4m3>(code) * scale;
}

#endif  // __CUDACC__

// Codes that become operands as they are; their scales multiply sums.
template <ByteCode kCode>
struct PlainBytes : FormatDefaults {
  static constexpr int kBits = 8;
  static constexpr bool kNans = kCode != ByteCode::kInt8;

#ifdef __CUDACC__
  using Kept = KeptBytes<kCode>;
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  template <bool kBf16, int kTileN>
  __device__ void decode(const uint32_t (&words)[2], const char*, int, int, int, bool& odd,
                         uint32_t (&b)[4]) const {
    widen_codes<kCode, kBf16>(words, odd, b);
  }
  template <int kTileN>
  __device__ Scales scales_of(const char*, int) const {
    return {};
  }
  template <bool kBf16>
  __device__ void fragments(const Kept& kept, const uint32_t (&words)[2], const Scales&, int,
                            uint32_t (&b)[4]) const {
    fragments_of<kCode, kBf16>(kept, words, b);
  }
#endif
};

// A scale of all, or one a row.
template <ByteCode kCode>
struct RowBytes : PlainBytes<kCode> {
  static constexpr int kScaleBytes = 0;
  static constexpr bool kGroupSums = false;
  static constexpr bool kColumnFactors = true;
  struct Fetched {};
  struct Row {};

  ScaleGrid scale;

#ifdef __CUDACC__
  __device__ Row row_at(int64_t) const { return {}; }
  __device__ Fetched fetch(const Row&, int) const { return {}; }
  template <bool kBf16, int kTileN>
  __device__ bool put(Fetched, int row, int step, int, char*) const {
    return step == 0 && ScaleGrid::is_odd(scale.at(row, 0));
  }
  __device__ float value(const char* codes, int64_t row, int k) const {
    return byte_value<kCode>(codes[k], scale.at(row, k));
  }
#endif
};

// Scales of a multiple of 32 columns.
template <ByteCode kCode>
struct GroupBytes : PlainBytes<kCode> {
  static constexpr int kScaleBytes = 8;  // f32 of two halves of 64 columns
  static constexpr bool kGroupSums = true;
  using Fetched = float2;
  struct Row {
    const char* from;
  };

  ScaleGrid scale;
  int k = 0;
  FastDivisor groups;  // of scale.columns

#ifdef __CUDACC__
  __device__ Row row_at(int64_t row) const {
    return {reinterpret_cast<const char*>(scale.place(row, 0))};
  }
  __device__ float scale_of(const Row& row, int column) const {
    if (column >= k) return 0;
    const auto g = static_cast<int64_t>(groups.divide(column));
    return __ldg(reinterpret_cast<const float*>(row.from + g * scale.column_bytes));
  }
  __device__ Fetched fetch(const Row& row, int step) const {
    return {scale_of(row, step * 64), scale_of(row, step * 64 + 32)};
  }
  template <bool kBf16, int kTileN>
  __device__ bool put(Fetched f, int, int, int at, char* scales) const {
    reinterpret_cast<float*>(scales)[at] = f.x;
    reinterpret_cast<float*>(scales)[kTileN + at] = f.y;
    return ScaleGrid::is_odd(f.x) || ScaleGrid::is_odd(f.y);
  }
  __device__ float value(const char* codes, int64_t row, int column) const {
    return byte_value<kCode>(codes[column], scale.at(row, column));
  }
#endif
};

}  // namespace pestle::cuda::many_rows
