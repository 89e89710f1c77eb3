// Decoding pieces of rows of a QuantMatrix to f32: what its format's dequantise gives, bit for bit.
//
// Under AVX-512 nibbles come out in blocks of 128 in the order that costs no shuffle: position
// 16 * s + i of a block holds column 8 * i + (s ^ high_first), for a vector's lane i and nibble s
// of its 32 bits. The other operand is stored in the same order; sums over k do not see it.
#if defined(PESTLE_SIMD_QUANT_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_DECODE_INL_H_
#undef PESTLE_SIMD_QUANT_DECODE_INL_H_
#else
#define PESTLE_SIMD_QUANT_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/quant_matrix.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/swizzle.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::Rebind<int32_t, DF>;
using DU = hn::Rebind<uint32_t, DF>;
using VF = hn::Vec<DF>;
using DI8 = hn::Rebind<int8_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using DI16 = hn::Rebind<int16_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;

inline constexpr int64_t kLanes = HWY_LANES(float);
inline constexpr bool kNibblesInLanes = kLanes == 16;

// E4M3 as f16 bits times 2^-8: exponent and fraction keep their places, subnormals included, so
// that the conversion instruction does the work. The NaN code reads as 480 * 2^-8.
inline constexpr float kE4M3Unit = 256.0f;
#if HWY_TARGET == HWY_SCALAR
// Its emulated f16 conversion knows neither Inf nor NaN.
HWY_INLINE VF e4m3_exact(const uint8_t* p) {
  return hn::Set(DF(), formats::f32_from_code<formats::E4m3>(*p));
}
HWY_INLINE VF e4m3_scaled(const uint8_t* p) {
  const VF v = e4m3_exact(p);
  return hn::Mul(hn::IfThenElse(hn::IsNaN(v), hn::Set(DF(), 480.0f), v),
                 hn::Set(DF(), 1.0f / kE4M3Unit));
}
HWY_INLINE VF e5m2_exact(const uint8_t* p) {
  return hn::Set(DF(), formats::f32_from_code<formats::E5m2>(*p));
}
#else
HWY_INLINE VF e4m3_scaled(const uint8_t* p) {
  const auto wide = hn::PromoteTo(DI16(), hn::LoadU(DI8(), reinterpret_cast<const int8_t*>(p)));
  const auto bits = hn::And(hn::ShiftLeft<7>(wide), hn::Set(DI16(), static_cast<int16_t>(0xBFFF)));
  return hn::PromoteTo(DF(), hn::BitCast(DF16(), bits));
}

HWY_INLINE VF e4m3_exact(const uint8_t* p) {
  const auto magnitude = hn::And(hn::PromoteTo(DI(), hn::LoadU(DU8(), p)), hn::Set(DI(), 0x7F));
  const auto is_nan = hn::RebindMask(DF(), hn::Eq(magnitude, hn::Set(DI(), 0x7F)));
  return hn::IfThenElse(is_nan, hn::Set(DF(), formats::f32_nan()),
                        hn::Mul(e4m3_scaled(p), hn::Set(DF(), kE4M3Unit)));
}

// E5M2 is the upper half of an f16.
HWY_INLINE VF e5m2_exact(const uint8_t* p) {
  const auto wide = hn::ShiftLeft<8>(hn::PromoteTo(DU16(), hn::LoadU(DU8(), p)));
  return hn::PromoteTo(DF(), hn::BitCast(DF16(), wide));
}
#endif

HWY_INLINE VF int8_exact(const uint8_t* p) {
  const auto code = hn::LoadU(DI8(), reinterpret_cast<const int8_t*>(p));
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), code));
}

HWY_INLINE VF e8m0_exact(const uint8_t* p) {
  const auto code = hn::PromoteTo(DI(), hn::LoadU(DU8(), p));
  const auto bits = hn::Max(hn::ShiftLeft<23>(code), hn::Set(DI(), 0x00400000));
  const auto is_nan = hn::RebindMask(DF(), hn::Eq(code, hn::Set(DI(), 255)));
  return hn::IfThenElse(is_nan, hn::Set(DF(), formats::f32_nan()), hn::BitCast(DF(), bits));
}

// kLanes codes at p; E4M3 in units of 2^8 and without NaN.
template <CodeKind kCode>
HWY_INLINE VF decode_fast(const uint8_t* p) {
  if constexpr (kCode == CodeKind::kE4M3)
    return e4m3_scaled(p);
  else if constexpr (kCode == CodeKind::kE5M2)
    return e5m2_exact(p);
  else
    return int8_exact(p);
}
template <CodeKind kCode>
HWY_INLINE VF decode_exact(const uint8_t* p) {
  if constexpr (kCode == CodeKind::kE4M3)
    return e4m3_exact(p);
  else
    return decode_fast<kCode>(p);
}

HWY_INLINE uint32_t largest_lane(hn::Vec<DI> v) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), v)));
}

HWY_INLINE int64_t scale_row(const QuantMatrix& q, int64_t row) {
  return q.rows_per_scale == 0 ? 0 : row / q.rows_per_scale;
}

// One-byte scales first..first+count of a row, side by side in `bytes` (room for 3 more).
HWY_INLINE const uint8_t* scale_bytes(const QuantMatrix& q, int64_t row, int64_t first,
                                      int64_t count, uint8_t* bytes) {
  const auto* base = static_cast<const uint8_t*>(q.scales);
  if (!q.swizzled) {
    std::memcpy(bytes, base + scale_row(q, row) * q.scale_row_stride + first,
                static_cast<size_t>(count));
    return bytes;
  }
  // Four scales of a row lie together; `first` is a multiple of 4 by the choice of panels.
  const int64_t columns = (q.columns + q.group - 1) / q.group;
  const uint8_t* p = base + formats::swizzle_offset(row, first, columns);
  for (int64_t c = 0; c < count; c += 4, p += 512) std::memcpy(bytes + c, p, 4);
  return bytes;
}

inline constexpr int64_t kMaxScales = 512;  // of one panel

HWY_INLINE void zero_slack(float* out) {
  for (int64_t i = 0; i < kScaleSlack; i += kLanes) hn::StoreU(hn::Zero(DF()), DF(), out + i);
}

// out[i] = load(i) * factor for i < count, then zeros; load gives kLanes of them, those past the
// end being of no account. Returns the largest magnitude as bits.
template <class Load>
HWY_INLINE uint32_t fill_each(int64_t count, float factor, const Load& load, float* out) {
  const DF d;
  const VF factors = hn::Set(d, factor);
  auto largest = hn::Zero(DI());
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF s = hn::Mul(load(i), factors);
    hn::StoreU(s, d, out + i);
    largest = hn::Max(largest, hn::And(hn::BitCast(DI(), s), hn::Set(DI(), 0x7FFFFFFF)));
  }
  zero_slack(out + count);
  return largest_lane(largest);
}

// One-byte scales without NaN: no test of each, and their largest code tells the largest magnitude.
HWY_INLINE uint32_t fill_finite(const QuantMatrix& q, const uint8_t* bytes, int64_t count,
                                float* out) {
  const DF d;
  if (q.scale_kind == ScaleKind::kE4M3) {
    const VF factor = hn::Set(d, q.factor * kE4M3Unit);
    for (int64_t i = 0; i < count; i += kLanes) {
      hn::StoreU(hn::Mul(e4m3_scaled(bytes + i), factor), d, out + i);
    }
    zero_slack(out + count);
    return formats::abs_bits(q.factor * 448.0f);
  }
  auto largest = hn::Zero(DI());
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto code = hn::ShiftLeft<23>(hn::PromoteTo(DI(), hn::LoadU(DU8(), bytes + i)));
    largest = hn::Max(largest, code);
    hn::StoreU(hn::BitCast(d, hn::Max(code, hn::Set(DI(), 0x00400000))), d, out + i);
  }
  zero_slack(out + count);
  return largest_lane(largest);
}

// Is there a NaN among `count` codes (zeros after them up to a multiple of 64)? `nan` is the code.
HWY_INLINE bool has_code(const uint8_t* bytes, int64_t count, uint8_t ignored_bits, uint8_t nan) {
  const hn::ScalableTag<uint8_t> d;
  const auto ignored = hn::Set(d, ignored_bits);
  auto found = hn::MaskFromVec(hn::Zero(d));
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    found = hn::Or(found, hn::Eq(hn::Or(hn::LoadU(d, bytes + i), ignored), hn::Set(d, nan)));
  }
  return !hn::AllFalse(d, found);
}

// Scales first..first+count of a row, times the factor; kScaleSlack zeros follow them. A NaN under
// round_to_int8 reads as 0, which is what the rounding makes of it. Returns the largest magnitude
// as bits, or more. `out` has room for kMaxScales + kScaleSlack.
HWY_INLINE uint32_t fill_scales(const QuantMatrix& q, int64_t row, int64_t first, int64_t count,
                                float* HWY_RESTRICT out) {
  const DF d;
  if (q.scales == nullptr) {
    return fill_each(count, 1.0f, [&](int64_t) HWY_ATTR { return hn::Set(d, 1.0f); }, out);
  }
  if (q.scale_kind == ScaleKind::kF32) {
    const char* p =
        static_cast<const char*>(q.scales) + (scale_row(q, row) * q.scale_row_stride + first) * 4;
    std::memcpy(out, p, static_cast<size_t>(count) * 4);
    zero_slack(out + count);
    return fill_each(
        count, q.factor, [&](int64_t i) HWY_ATTR { return hn::LoadU(d, out + i); }, out);
  }
  alignas(64) uint8_t bytes[kMaxScales + 64];
  scale_bytes(q, row, first, count, bytes);
  std::memset(bytes + count, 0, 64);
  const bool e4m3 = q.scale_kind == ScaleKind::kE4M3;
  const bool simple = e4m3 ? q.factor == q.factor : q.factor == 1.0f;
  if (simple && !has_code(bytes, count, e4m3 ? 0x80 : 0, 0xFF)) {
    return fill_finite(q, bytes, count, out);
  }
  return fill_each(
      count, q.factor,
      [&](int64_t i) HWY_ATTR {
        const VF s = e4m3 ? e4m3_exact(bytes + i) : e8m0_exact(bytes + i);
        return q.round_to_int8 ? hn::IfThenElse(hn::IsNaN(s), hn::Zero(d), s) : s;
      },
      out);
}

// Zero points beside the scales; the slack is 0.
HWY_INLINE void fill_zeros(const QuantMatrix& q, int64_t row, int64_t first, int64_t count,
                           float* HWY_RESTRICT out) {
  const uint8_t* p = q.zeros + scale_row(q, row) * q.zero_row_stride + first;
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(p[i]);
  zero_slack(out + count);
}

// Index of the first scale of columns [k0, k0 + columns), and how many they have.
HWY_INLINE int64_t first_scale(const QuantMatrix& q, int64_t k0) { return k0 / q.group; }
HWY_INLINE int64_t scale_count(const QuantMatrix& q, int64_t k0, int64_t columns) {
  return columns == 0 ? 0 : (k0 + columns - 1) / q.group - k0 / q.group + 1;
}

template <CodeKind kCode>
HWY_INLINE void decode_bytes(const QuantMatrix& q, const uint8_t* codes, int64_t k0,
                             int64_t columns, const float* scales, float* HWY_RESTRICT out) {
  const DF d;
  int64_t k = 0;
  int64_t left = q.group - k0 % q.group;  // columns of the current group still to come
  for (int64_t g = 0; k < columns; ++g, left = q.group) {
    const int64_t end = std::min(columns, k + left);
    const VF s = hn::Set(d, scales[g]);
    for (; k + kLanes <= end; k += kLanes) {
      hn::StoreU(hn::Mul(decode_exact<kCode>(codes + k), s), d, out + k);
    }
    if (k < end) {
      uint8_t tail[kLanes] = {};
      std::memcpy(tail, codes + k, static_cast<size_t>(end - k));
      alignas(64) float values[kLanes];
      hn::Store(hn::Mul(decode_exact<kCode>(tail), s), d, values);
      for (int64_t i = 0; k < end; ++i, ++k) out[k] = values[i];
    }
  }
}

HWY_INLINE VF round_int8(VF v) {
  const DF d;
  const VF finite = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), v);
  return hn::Round(hn::Min(hn::Max(finite, hn::Set(d, -127.0f)), hn::Set(d, 127.0f)));
}

#if HWY_TARGET <= HWY_AVX3
// For each lane of a block of 128 nibbles, its group counted from the block's first.
HWY_INLINE hn::Vec<DI> group_of_lane(const QuantMatrix& q) {
  alignas(64) int32_t lanes[16];
  for (int32_t i = 0; i < 16; ++i) {
    lanes[i] =
        q.group >= kQuantBlock || q.group >= q.columns ? 0 : static_cast<int32_t>(8 * i / q.group);
  }
  return hn::Load(DI(), lanes);
}
HWY_INLINE VF permute(VF table, hn::Vec<DI> index) {  // only the low four bits of an index count
  return VF{_mm512_permutexvar_ps(index.raw, table.raw)};
}
// The scales at `scales`, at most 8, as group_of_lane says which lane takes which.
HWY_INLINE VF spread(const float* scales, hn::Vec<DI> lane_group) {
  return permute(VF{_mm512_castps256_ps512(_mm256_loadu_ps(scales))}, lane_group);
}

HWY_INLINE void decode_nibbles(const QuantMatrix& q, const uint8_t* codes, int64_t row, int64_t k0,
                               int64_t columns, const float* scales, const float* zeros,
                               float* HWY_RESTRICT out) {
  const DF d;
  const VF table = hn::LoadU(d, q.table);
  const auto lane_group = group_of_lane(q);
  const VF post = hn::Set(d, q.row_scale ? float_at(q.row_scale, row) : 1.0f);
  const int64_t first = first_scale(q, k0);
  for (int64_t k = 0; k < columns; k += kQuantBlock) {
    uint8_t tail[64] = {};
    const uint8_t* p = codes + k / 2;
    if (columns - k < kQuantBlock) {
      std::memcpy(tail, p, static_cast<size_t>((columns - k + 1) / 2));
      p = tail;
    }
    auto index = hn::LoadU(DI(), reinterpret_cast<const int32_t*>(p));
    const int64_t g = (k0 + k) / q.group - first;
    const VF s = spread(scales + g, lane_group);
    const VF z = zeros ? spread(zeros + g, lane_group) : hn::Zero(d);
    for (int64_t nibble = 0; nibble < 8; ++nibble) {
      VF v = permute(table, index);
      index = hn::ShiftRight<4>(index);
      if (zeros) v = hn::Sub(v, z);
      v = hn::Mul(v, s);
      if (q.round_to_int8) v = hn::Mul(round_int8(v), post);
      hn::StoreU(v, d, out + k + 16 * nibble);
    }
  }
}
#else
HWY_INLINE void decode_nibbles(const QuantMatrix& q, const uint8_t* codes, int64_t row, int64_t k0,
                               int64_t columns, const float* scales, const float* zeros,
                               float* HWY_RESTRICT out) {
  const float post = q.row_scale ? float_at(q.row_scale, row) : 1.0f;
  const int high = q.high_first ? 0 : 1;  // column parity of the high nibble
  int64_t k = 0;
  int64_t left = q.group - k0 % q.group;
  for (int64_t g = 0; k < columns; ++g, left = q.group) {
    const int64_t end = std::min(columns, k + left);
    const float z = zeros ? zeros[g] : 0.0f;
    for (; k < end; ++k) {
      const uint8_t byte = codes[k / 2];
      float v = q.table[(k & 1) == high ? byte >> 4 : byte & 0xF];
      if (zeros) v -= z;
      v *= scales[g];
      if (q.round_to_int8) {
        v = v != v ? 0.0f : std::min(std::max(v, -127.0f), 127.0f);
        v = ((v + 12582912.0f) - 12582912.0f) * post;
      }
      out[k] = v;
    }
  }
}
#endif

// Columns [k0, k0 + columns) of a row as f32, zeros after them up to a multiple of kQuantBlock.
// k0 is a multiple of kQuantBlock and there are at most 2048 columns.
HWY_INLINE void decode_panel(const QuantMatrix& q, int64_t row, int64_t k0, int64_t columns,
                             float* HWY_RESTRICT out) {
  alignas(64) float scales[kMaxScales + kScaleSlack];
  alignas(64) float zeros[kMaxScales + kScaleSlack];
  const int64_t first = first_scale(q, k0);
  const int64_t count = scale_count(q, k0, columns);
  fill_scales(q, row, first, count, scales);
  const uint8_t* codes = q.codes + row * q.row_bytes;
  const int64_t padded = (columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
  if (q.code == CodeKind::kNibble) {
    if (q.zeros) fill_zeros(q, row, first, count, zeros);
    if (!kNibblesInLanes) {
      for (int64_t k = columns; k < padded; ++k) out[k] = 0.0f;
    }
    decode_nibbles(q, codes + k0 / 2, row, k0, columns, scales, q.zeros ? zeros : nullptr, out);
    return;
  }
  for (int64_t k = columns; k < padded; ++k) out[k] = 0.0f;
  codes += k0;
  switch (q.code) {
    case CodeKind::kE4M3: decode_bytes<CodeKind::kE4M3>(q, codes, k0, columns, scales, out); break;
    case CodeKind::kE5M2: decode_bytes<CodeKind::kE5M2>(q, codes, k0, columns, scales, out); break;
    default: decode_bytes<CodeKind::kI8>(q, codes, k0, columns, scales, out); break;
  }
  if (q.column_scale) {
    for (int64_t k = 0; k < columns; ++k) out[k] *= float_at(q.column_scale, k0 + k);
  }
}

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_DECODE_INL_H_
